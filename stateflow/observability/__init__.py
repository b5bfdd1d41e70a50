"""Metrics, spans and log events.

- `metrics`: definitions, recorders and exporters
- `tracing`: spans
- `logging`: log events with fields
"""
