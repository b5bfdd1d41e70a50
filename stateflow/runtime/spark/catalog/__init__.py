"""The tables of sinks under their names in the catalog of a Spark session."""
