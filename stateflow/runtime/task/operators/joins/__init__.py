"""Operators of joins, which get the rows of two inputs as columns."""
