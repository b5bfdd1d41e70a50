"""Map state: one map per key, its user keys, and Python's operators for maps."""
