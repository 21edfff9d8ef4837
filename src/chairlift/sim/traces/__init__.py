"""Recorded workloads of others, read into requests."""
