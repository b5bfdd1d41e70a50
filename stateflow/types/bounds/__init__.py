"""Bounds of the memory and the time of decoding stored values."""
