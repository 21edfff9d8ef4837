"""Pictures of a run: what an engine did at every step, and how those who asked fared."""
