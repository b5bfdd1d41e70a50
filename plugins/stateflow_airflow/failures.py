"""How a task fails: with the job's own error, told apart by whether trying again can help.

::

    StateflowTaskFailed                code, hint
    ├── PermanentFailure               configuration, fencing, damaged data: a person has to act
    └── TransientFailure               a crash, a signal, storage, a broken batch: the next try continues
"""

from __future__ import annotations

import logging
import sys
from typing import Any

import structlog
from airflow.sdk.exceptions import AirflowException
from structlog.typing import EventDict

# What the program's exit codes say; used only when it could not write its result.
PERMANENT_EXIT_CODES = {2: "config", 3: "fenced", 4: "data"}


class StateflowTaskFailed(AirflowException):
    """A stateflow task ended without success.

    Args:
        code: the stable error code, as in stateflow's own errors.
        message: what happened.
        hint: what the reader can do now.
    """

    def __init__(self, code: str, message: str, hint: str = "") -> None:
        super().__init__(code, message, hint)
        self.code = code
        self.message = message
        self.hint = hint

    def __str__(self) -> str:
        # A message that comes from a run's result has its hint on its last line already.
        hint = f"\n  hint: {self.hint}" if self.hint and self.hint not in self.message else ""
        return f"[{self.code}] {self.message}{hint}"


class PermanentFailure(StateflowTaskFailed):
    """Another try would fail in the same way, or must not happen."""


class TransientFailure(StateflowTaskFailed):
    """Another try continues from the job's last checkpoint."""


def report(failed: StateflowTaskFailed) -> StateflowTaskFailed:
    """Logs the error's sentence and hint and returns the error, to be raised. Airflow's own line about the failed task
    comes after it, and without a traceback unless stateflow itself is at fault."""
    logging.getLogger("airflow.task").error("%s", failed)
    # Airflow logs a failed task by log.exception, which offers no way to leave the traceback out. Loggers that exist
    # share this list.
    processors = structlog.get_config()["processors"]
    if _without_traceback not in processors:
        processors.insert(0, _without_traceback)
    return failed


def _without_traceback(_logger: Any, _method: str, event: EventDict) -> EventDict:
    """A structlog processor: removes the traceback of a failure that its sentence explains."""
    error = sys.exception()
    if isinstance(error, StateflowTaskFailed) and error.code != "internal":
        event.pop("exc_info", None)
    return event


def failure(code: str, message: str, hint: str, *, retryable: bool) -> StateflowTaskFailed:
    """The failure that an error of a stateflow program, or of its library, stands for."""
    return (TransientFailure if retryable else PermanentFailure)(code, message, hint)


def misconfigured(message: str, hint: str) -> PermanentFailure:
    """Something that is wrong before any program was started."""
    return PermanentFailure("config", message, hint)


def ended_without_result(exit_code: int | None) -> StateflowTaskFailed:
    """The failure of a program that ended before it wrote its result."""
    if exit_code is None:
        return TransientFailure("killed", "the run was ended together with everything it had started")
    if exit_code < 0:
        return TransientFailure("signal", f"the run was ended by signal {-exit_code}")
    if code := PERMANENT_EXIT_CODES.get(exit_code):
        return PermanentFailure(code, f"the run ended with exit code {exit_code}", "its log above says more")
    return TransientFailure(
        "no-result",
        f"the run ended with exit code {exit_code} and wrote no result",
        "its log above says more",
    )
