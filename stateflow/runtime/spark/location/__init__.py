"""The checkpoint location of Spark's streaming query."""
