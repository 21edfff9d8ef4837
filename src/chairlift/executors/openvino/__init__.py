"""The CPU back end."""
