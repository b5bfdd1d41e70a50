"""Tracing spans through OpenTelemetry's API, which has almost no cost without an SDK in the process."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from opentelemetry import trace

from stateflow.errors import StateflowError

BATCH, CHECKPOINT, UPLOAD, RESTORE = "batch", "checkpoint", "upload", "restore"
"""Names of the spans."""
_TRACER = "stateflow"


@contextmanager
def span(name: str, **facts: str | int | float | bool) -> Iterator[None]:
    """Records a span around the body; an exception sets its status to the error's code.

    Args:
        facts: attributes of the span, prefixed with ``stateflow.``. They must not contain credentials or row data.
    """
    attributes = {f"{_TRACER}.{key}": value for key, value in facts.items()}
    tracer = trace.get_tracer(_TRACER)
    with tracer.start_as_current_span(
        name, attributes=attributes, record_exception=False, set_status_on_exception=False
    ) as current:
        try:
            yield
        except BaseException as e:
            code = e.code if isinstance(e, StateflowError) else type(e).__name__
            current.set_status(trace.StatusCode.ERROR, code)
            raise
