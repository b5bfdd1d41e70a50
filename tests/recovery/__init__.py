"""Runs that die, stop, race and find damage: what is committed survives, and comes out exactly once."""
