"""The planner: which rate a fleet can serve within objectives, and with which settings."""
