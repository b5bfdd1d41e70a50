"""The retry policy of stateflow's operators."""

from __future__ import annotations

from typing import TYPE_CHECKING

from airflow.sdk import RetryDecision, RetryPolicy

from stateflow_airflow.failures import PermanentFailure, StateflowTaskFailed

if TYPE_CHECKING:
    from airflow.sdk import Context


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
