"""Operators that run services of a job."""
