"""Watching a server: a page, and the figures that it and `chairlift top` show."""
