"""Rules of other engines about who may join a step, as options of a run: the scheduler stays the one that is served."""
