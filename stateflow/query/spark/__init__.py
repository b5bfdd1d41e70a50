"""State of a snapshot as Spark DataFrames."""
