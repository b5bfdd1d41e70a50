"""Operators that write savepoints from other data than a job's run."""
