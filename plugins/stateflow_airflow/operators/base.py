"""Base classes of operators on a job root.

Constructors of operators have more parameters than other functions of this project: Airflow passes each as a keyword
argument, and renders templates in the attribute of the same name (`template_fields`).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from airflow.sdk import BaseOperator

from stateflow_airflow.retry import RetryByErrorCode


class JobRootOperator(BaseOperator):
    """An operator on a job root. By default, the error code decides whether the task is retried."""

    def __init__(self, *, job_root: str, **kwargs: Any) -> None:
        kwargs.setdefault("retry_policy", RetryByErrorCode())
        super().__init__(**kwargs)
        self.job_root = job_root


class JobOperator(JobRootOperator):
    """An operator that also loads the job file, with the settings of the job's runs."""

    def __init__(self, *, job: str, job_root: str, settings: Mapping[str, object] | None = None, **kwargs: Any) -> None:
        super().__init__(job_root=job_root, **kwargs)
        self.job = job
        self.settings = dict(settings or {})
