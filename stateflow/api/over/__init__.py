"""Aggregates over the rows of a key before each row."""
