"""Writes savepoints from DataFrames, without a run: bootstrapped state, and changed state of existing savepoints."""
