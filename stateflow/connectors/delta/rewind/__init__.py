"""Rewinds a Delta table to the version of a checkpoint, and previews what changes."""
