"""Metrics, spans and log events, and the exporters for the first two."""
