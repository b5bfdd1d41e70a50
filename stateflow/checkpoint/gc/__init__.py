"""Garbage collection of a job root."""
