"""Tests of chairlift.models."""
