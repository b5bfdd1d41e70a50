"""Processes that run operators start: how they are launched, found again, followed and ended."""
