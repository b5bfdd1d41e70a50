"""Operators that validate a job's state."""
