"""Log lines that programs read as well: an event, and facts with names; and what every line of a run says of it."""

from __future__ import annotations

import logging
from dataclasses import asdict, dataclass, replace
from typing import Any


@dataclass(frozen=True)
class LogContext:
    """Where a process is: what its log lines are about.

    Attributes:
        run: who launched it, or host and process.
        batch: ordinal of the newest barrier that the run began to work towards; 0 before the first.
        checkpoint: id of the newest checkpoint; 0 before the first.
    """

    job: str = ""
    run: str = ""
    generation: int = 0
    batch: int = 0
    checkpoint: int = 0


class ContextFilter(logging.Filter):
    """Puts the context of its process into every record that passes: ``context``, and ``where`` for people."""

    def filter(self, record: logging.LogRecord) -> bool:
        record.context = asdict(_here[0])
        record.where = _where(_here[0])
        return True


def log_event(log: logging.Logger, level: int, event: str, *, text: str = "", **facts: object) -> None:
    """Logs ``event name=value …``; a handler that knows of them finds `event` and `facts` in the record.

    Args:
        text: the line for people, instead of the event and its facts.
    """
    line = text or " ".join([event, *(f"{name}={_plain(value)}" for name, value in facts.items())])
    log.log(level, "%s", line, extra={"event": event, "facts": facts})


def _plain(value: object) -> str:
    """For people: a dictionary as ``visits:12,late:3``."""
    return ",".join(f"{k}:{v}" for k, v in value.items()) if isinstance(value, dict) else str(value)


def log_within(**facts: Any) -> None:
    """Lines that this process logs from here on, in any thread, are about these: fields of `LogContext`."""
    _here[0] = replace(_here[0], **facts)


# Of the process, not of a thread: what is done beside the batches, and what libraries log, belongs to the same run.
_here = [LogContext()]


def _where(context: LogContext) -> str:
    told = [f"{name}={value}" for name, value in asdict(context).items() if value]
    return f" | {' '.join(told)}" if told else ""
