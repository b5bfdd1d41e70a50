"""Completion of barriers from task reports, and coordination of checkpoints."""
