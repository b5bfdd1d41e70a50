"""Task failures: the job's own error, and whether a retry can succeed; and the retry policy of the operators.

::

    StateflowTaskFailed                code, message, hint, facts
    ├── PermanentFailure               configuration, fencing, damaged data: a user must act
    └── TransientFailure               a crash, a signal, storage, a failed batch: a retry continues the job
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING

import structlog
from airflow.sdk.exceptions import AirflowException
from structlog.typing import EventDict

from stateflow_airflow.versions import FinalFailure, RetryDecision, RetryPolicy

if TYPE_CHECKING:
    from airflow.sdk import Context


PERMANENT_EXIT_CODES = {2: "config", 3: "fenced", 4: "data"}
"""Error codes by the program's exit code; used only if the program could not write its result."""


class StateflowTaskFailed(AirflowException):
    """A stateflow task failed. A callback of the task finds the error in ``context["exception"]``.

    Attributes:
        code: the stable error code, as of stateflow's own errors.
        message: what failed, with the facts.
        hint: what the user can do; may be empty.
        facts: values that help to find the cause, by name. For a failed run, they are plain JSON values.
    """

    def __init__(self, code: str, message: str, hint: str = "", facts: Mapping[str, object] | None = None) -> None:
        super().__init__(code, message, hint, facts)
        self.code = code
        self.message = message
        self.hint = hint
        self.facts = dict(facts or {})

    def __str__(self) -> str:
        return f"[{self.code}] {self.message}" + (f"\n  hint: {self.hint}" if self.hint else "")


class PermanentFailure(StateflowTaskFailed, FinalFailure):
    """A retry would fail in the same way, or must not happen.

    Where Airflow has no retry policies, its own class for such failures prevents the retry.
    """


class TransientFailure(StateflowTaskFailed):
    """A retry continues from the job's last checkpoint."""


def log_failure(failed: StateflowTaskFailed) -> StateflowTaskFailed:
    """Logs the message and hint of a failure, and returns it for a `raise` statement."""
    logging.getLogger("airflow.task").error("%s", failed)
    return failed


def hide_tracebacks() -> None:
    """Makes Airflow log a failure of stateflow without its traceback, unless it is a bug in stateflow."""
    # Airflow logs a failed task with log.exception, which always adds the traceback. Existing loggers share this list.
    processors = structlog.get_config()["processors"]
    if _without_traceback not in processors:
        processors.insert(0, _without_traceback)


def _without_traceback(_logger: object, _method: str, event: EventDict) -> EventDict:
    """A structlog processor: removes the traceback of a failure whose message explains it."""
    error = sys.exception()
    if isinstance(error, StateflowTaskFailed) and error.code != "internal":
        event.pop("exc_info", None)
    return event


def failure(
    code: str, message: str, hint: str, facts: Mapping[str, object] | None = None, *, retryable: bool
) -> StateflowTaskFailed:
    """Returns the failure for an error of a stateflow program or of the library."""
    return (TransientFailure if retryable else PermanentFailure)(code, message, hint, facts)


def config_failure(message: str, hint: str, /, **facts: object) -> PermanentFailure:
    """Returns the failure for a configuration error that is found before a program starts."""
    return PermanentFailure("config", message, hint, facts)


def failure_without_result(exit_code: int | None) -> StateflowTaskFailed:
    """Returns the failure for a run whose program ended before it wrote its result.

    Args:
        exit_code: negative for a signal; None if it is unknown.
    """
    if exit_code is None:
        return TransientFailure("killed", "the run was killed together with all of its processes")
    if exit_code < 0:
        return TransientFailure("signal", f"the run was killed by signal {-exit_code}", facts={"signal": -exit_code})
    hint, facts = "see the run's log above", {"exit_code": exit_code}
    if code := PERMANENT_EXIT_CODES.get(exit_code):
        return PermanentFailure(code, f"the run ended with exit code {exit_code}", hint, facts)
    message = f"the run ended with exit code {exit_code} and wrote no result"
    return TransientFailure("no-result", message, hint, facts)


def server_failure(exit_code: int) -> StateflowTaskFailed:
    """Returns the failure for a state server that ended before its time.

    Args:
        exit_code: negative for a signal.
    """
    if exit_code < 0:
        facts = {"signal": -exit_code}
        return TransientFailure("signal", f"the state server was killed by signal {-exit_code}", facts=facts)
    code = PERMANENT_EXIT_CODES.get(exit_code)
    message, hint = f"the state server ended with exit code {exit_code}", "see its log above"
    return failure(code or "server-ended", message, hint, {"exit_code": exit_code}, retryable=code is None)


@contextmanager
def translate_errors() -> Iterator[None]:
    """Translates a StateflowError into a failure of the task, with its code and whether a retry can succeed."""
    from stateflow.errors import StateflowError

    try:
        yield
    except StateflowError as error:
        # Only a bug in the library needs the library's traceback; any other message explains the error.
        cause = error if error.code == "internal" else None
        failed = failure(error.code, error.sentence, error.hint, error.facts, retryable=error.retryable)
        raise log_failure(failed) from cause


class RetryByErrorCode(RetryPolicy):
    """Fails immediately for errors that a user must fix; else uses the task's `retries` and `retry_delay`.

    Configuration errors, a newer run that owns the job, and damaged data are not retried. The reason that Airflow shows
    for a retry is the job's error with its code.
    """

    def evaluate(
        self, exception: BaseException, try_number: int, max_tries: int, context: Context | None = None
    ) -> RetryDecision:
        if isinstance(exception, PermanentFailure):
            return RetryDecision.fail(reason=str(exception))
        if isinstance(exception, StateflowTaskFailed):
            return RetryDecision.retry(reason=str(exception))
        return RetryDecision.default()

    def serialize(self) -> dict[str, object]:
        return {"__type": type(self).__name__}

    @classmethod
    def deserialize(cls, data: dict[str, object]) -> RetryByErrorCode:
        return cls()


BY_ERROR_CODE = RetryByErrorCode()
"""The default of stateflow's operators and sensors."""
