"""Streams and their operators."""
