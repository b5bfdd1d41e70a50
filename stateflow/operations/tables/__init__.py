"""Maintenance of the Delta tables of a job's sinks."""
