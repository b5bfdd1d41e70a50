"""Typed scalar expressions, and their two renderings: Spark SQL and Python."""
