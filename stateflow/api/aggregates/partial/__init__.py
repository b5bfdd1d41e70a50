"""Partial aggregation: what is computed of the rows of a partition before the shuffle."""
