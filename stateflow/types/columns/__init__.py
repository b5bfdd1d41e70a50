"""Columns of declared types, and their conversion to and from Python objects."""
