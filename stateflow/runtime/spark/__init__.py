"""Runs a job on Spark."""
