"""Log lines that programs read as well: an event, and facts with names."""

from __future__ import annotations

import logging


def log_event(log: logging.Logger, level: int, event: str, **facts: object) -> None:
    """Logs ``event name=value …``; a handler that knows of them finds `event` and `facts` in the record."""
    text = " ".join([event, *(f"{name}={value}" for name, value in facts.items())])
    log.log(level, "%s", text, extra={"event": event, "facts": facts})
