"""Spans of what takes time, by OpenTelemetry's interface: without an SDK in the process they cost next to nothing."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from opentelemetry import trace

from stateflow.errors import StateflowError

BATCH, CHECKPOINT, UPLOAD, RESTORE = "batch", "checkpoint", "upload", "restore"
"""Names of the spans that there are."""
_ROLE = "stateflow"


@contextmanager
def span(name: str, **facts: str | int | float | bool) -> Iterator[None]:
    """A span around what is done inside; an error that passes is recorded by its code.

    Args:
        facts: attributes, whose names get ``stateflow.`` before them. No credentials, and nothing of rows.
    """
    attributes = {f"{_ROLE}.{key}": value for key, value in facts.items()}
    tracer = trace.get_tracer(_ROLE)
    with tracer.start_as_current_span(name, attributes=attributes, record_exception=False,
                                      set_status_on_exception=False) as current:  # fmt: skip
        try:
            yield
        except BaseException as e:
            code = e.code if isinstance(e, StateflowError) else type(e).__name__
            current.set_status(trace.StatusCode.ERROR, code)
            raise
