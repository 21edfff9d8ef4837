"""What the scheduler was told, on disk: written while serving, and replayed to equal plans."""
