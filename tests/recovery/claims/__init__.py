"""Claims of savepoints by restores and by new job roots."""
