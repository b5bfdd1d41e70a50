"""What operators on a job root have in common."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from airflow.sdk import BaseOperator

from stateflow_airflow.retry import RetryByErrorCode


class JobRootOperator(BaseOperator):
    """Works on a job root. Unless the task says something else, the error decides whether it is tried again."""

    def __init__(self, *, job_root: str, **kwargs: Any) -> None:
        kwargs.setdefault("retry_policy", RetryByErrorCode())
        super().__init__(**kwargs)
        self.job_root = job_root


class JobOperator(JobRootOperator):
    """Needs the job file too, with the settings of the job's runs."""

    def __init__(
        self, *, job: str, job_root: str, settings: Mapping[str, Any] | None = None, **kwargs: Any
    ) -> None:
        super().__init__(job_root=job_root, **kwargs)
        self.job = job
        self.settings = dict(settings or {})
