"""The engine process and what composes it."""
