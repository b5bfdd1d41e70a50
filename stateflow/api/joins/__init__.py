"""Operators that join two streams."""
