"""Comparison of the state of two checkpoints or savepoints, of one job or of two."""
