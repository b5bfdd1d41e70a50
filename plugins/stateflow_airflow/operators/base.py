"""Base classes of operators on a job root.

Constructors of operators have more parameters than other functions of this project: Airflow passes each as a keyword
argument, and renders templates in the attribute of the same name (`template_fields`).
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import TYPE_CHECKING, Any, TypeAlias, cast

from airflow.sdk import BaseOperator, RetryPolicy

from stateflow_airflow.failures import hide_tracebacks, translate_errors
from stateflow_airflow.operators.locations import allowed_locations
from stateflow_airflow.operators.template_values import as_list, check_texts
from stateflow_airflow.retry import BY_ERROR_CODE

if TYPE_CHECKING:
    from airflow.sdk import Context

TaskArgument: TypeAlias = Any
"""An argument of Airflow's own base class, such as ``task_id`` or ``retries``."""


class LibraryOperator(BaseOperator):
    """An operator that calls the library. By default, the error code decides whether the task is retried.

    Args:
        locations: paths and URIs outside of the job root below which savepoints and forks may be. Not templated: a
            user who may only trigger the DAG cannot extend them.
    """

    # A default in the signature is one of a mapped operator, too: `partial` reads it there, and calls no constructor.
    def __init__(
        self,
        *,
        locations: str | Sequence[str] = (),
        retry_policy: RetryPolicy | None = BY_ERROR_CODE,
        **kwargs: TaskArgument,
    ) -> None:
        super().__init__(retry_policy=retry_policy, **kwargs)
        self.locations = as_list(locations)

    def pre_execute(self, context: Context) -> None:
        """Hides the tracebacks of failures whose messages explain them, and checks rendered texts."""
        hide_tracebacks()
        check_texts(self)

    def library(self) -> AbstractContextManager[None]:
        """Restricts the library to the allowed locations, and translates its errors into failures of the task."""
        return restricted_library(self.locations)


class JobRootOperator(LibraryOperator):
    """An operator on a job root.

    Args:
        job_root: the job root.
    """

    def __init__(self, *, job_root: str, **kwargs: TaskArgument) -> None:
        super().__init__(**kwargs)
        self.job_root = job_root


class JobOperator(JobRootOperator):
    """An operator that also loads the job file, with the settings of the job's runs."""

    def __init__(
        self, *, job: str, job_root: str, settings: Mapping[str, object] | str | None = None, **kwargs: TaskArgument
    ) -> None:
        super().__init__(job_root=job_root, **kwargs)
        self.job = job
        # Not copied: the output of a task or a template is a mapping only once it is rendered.
        self.settings = cast("Mapping[str, object]", settings or {})


@contextmanager
def restricted_library(locations: Sequence[str]) -> Iterator[None]:
    """Restricts the library to the allowed locations, and translates its errors into failures of the task.

    Args:
        locations: see `LibraryOperator`.
    """
    restricted = {**os.environ, **allowed_locations(locations)}
    with translate_errors(), environment(restricted):
        yield


@contextmanager
def environment(variables: Mapping[str, str]) -> Iterator[None]:
    """Sets the environment of this process, and restores it at the end."""
    before = dict(os.environ)
    os.environ.clear()
    os.environ.update(variables)
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)
