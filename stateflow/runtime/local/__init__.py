"""Runs a job without Spark, in one process."""
