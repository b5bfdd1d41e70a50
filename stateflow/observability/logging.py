"""Structured log events, and the context that is added to every log record of a run."""

from __future__ import annotations

import logging
from dataclasses import asdict, dataclass, replace
from typing import TypedDict, Unpack


@dataclass(frozen=True)
class LogContext:
    """The run that this process works for, and its position.

    Attributes:
        run: id of the requester, or host and process id.
        batch: ordinal of the newest barrier that the run has started to work towards; 0 before the first.
        checkpoint: id of the newest checkpoint; 0 before the first.
    """

    job: str = ""
    run: str = ""
    generation: int = 0
    batch: int = 0
    checkpoint: int = 0


class ContextFilter(logging.Filter):
    """Adds the context of the process to each record: ``context`` as a dictionary, ``where`` as text."""

    def filter(self, record: logging.LogRecord) -> bool:
        record.context = asdict(_context[0])
        record.where = _to_text(_context[0])
        return True


def log_event(log: logging.Logger, level: int, event: str, *, text: str = "", **facts: object) -> None:
    """Logs ``event name=value …``, with `event` and `facts` as attributes of the record for structured handlers.

    Args:
        text: replaces the message for human readers.
    """
    line = text or " ".join([event, *(f"{name}={_format_fact(value)}" for name, value in facts.items())])
    log.log(level, "%s", line, extra={"event": event, "facts": facts})


def _format_fact(value: object) -> str:
    """Returns a fact as text; a dictionary as ``visits:12,late:3``."""
    return ",".join(f"{k}:{v}" for k, v in value.items()) if isinstance(value, dict) else str(value)


class _ContextFields(TypedDict, total=False):
    job: str
    run: str
    generation: int
    batch: int
    checkpoint: int


def set_log_context(**fields: Unpack[_ContextFields]) -> None:
    """Sets fields of the process's `LogContext`, for the later records of all threads."""
    _context[0] = replace(_context[0], **fields)


# Of the process, not of a thread: background threads and libraries log for the same run.
_context = [LogContext()]


def _to_text(context: LogContext) -> str:
    known = [f"{name}={value}" for name, value in asdict(context).items() if value]
    return f" | {' '.join(known)}" if known else ""
