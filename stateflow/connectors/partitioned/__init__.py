"""A source in Python whose partitions Spark reads in parallel."""
