"""Writes tables in Apache Iceberg's format, found by name in a catalog."""
