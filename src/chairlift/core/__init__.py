"""Scheduling and the engine loop; standard library only."""
