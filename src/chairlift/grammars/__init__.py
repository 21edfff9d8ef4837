"""Grammars: compiled in a child that may be killed, kept within bounds, followed token by token."""
