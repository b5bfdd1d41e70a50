"""Patterns: sequences of rows of a key, in the order of event time."""
