"""Load generators and their reports."""
