"""Chairlift: a continuous-batching inference server for language models."""

__version__ = "0.1.0"
