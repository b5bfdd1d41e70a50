"""Conversion of state values to and from Arrow columns."""
