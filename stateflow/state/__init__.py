"""Keyed state: backends over bytes, and the state types written once above them."""
