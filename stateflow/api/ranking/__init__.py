"""Deduplication and top-n of the rows of a key."""
