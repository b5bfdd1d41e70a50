"""Checkpoints of a run: which barriers become one, and the steps from a barrier to published output."""
