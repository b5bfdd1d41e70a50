"""The DAGs that work on the jobs, and their endpoints; only Airflow has them."""

from __future__ import annotations

from collections.abc import Sequence, Set
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol

from stateflow.errors import ConfigError
from stateflow.outputs import Timestamp
from stateflow.ui.access import Viewer
from stateflow.ui.answers import Answer, Handler, Refused
from stateflow.ui.jobs import JobEndpoints, JobList
from stateflow.ui.openapi import Endpoint
from stateflow.ui.requests import Call
from stateflow.ui.roots import CatalogJob, RootSearch


class DagRole(StrEnum):
    """What a DAG does with a job."""

    RUN = "run"
    SAVEPOINT = "savepoint"
    RETENTION = "retention"
    RECOVERY = "recovery"
    PARTITIONS = "partitions"


@dataclass(frozen=True)
class FamilyDag:
    """A DAG that works on a job.

    Attributes:
        dag_id: its id.
        role: what it does with the job.
        may_trigger: whether the caller may trigger it.
        may_pause: whether the caller may pause it and unpause it.
        may_answer: whether the caller may answer its questions, such as approvals, if they are not assigned to others.
        is_paused: whether it is paused.
    """

    dag_id: str
    role: DagRole
    may_trigger: bool
    may_pause: bool
    may_answer: bool
    is_paused: bool


@dataclass(frozen=True)
class OpenQuestion:
    """A question about a job that waits for the answer of a person.

    Attributes:
        dag_id: the DAG that asks it.
        dag_run_id: the DAG run.
        subject: the question.
        asked_at: when it was asked.
    """

    dag_id: str
    dag_run_id: str
    subject: str
    asked_at: Timestamp


@dataclass(frozen=True)
class JobFamily:
    """The DAGs that work on a job.

    Attributes:
        dags: all that the caller may read, ordered by id; several may have the same role.
        questions: the newest questions about the job that wait for an answer, of the DAGs whose questions the caller
            may read, newest first.
        may_read_state: whether the caller may read values of the job's state.
    """

    dags: tuple[FamilyDag, ...]
    questions: tuple[OpenQuestion, ...]
    may_read_state: bool


@dataclass(frozen=True)
class DagJobs:
    """The jobs of a DAG.

    Attributes:
        ids: ids of the jobs that it works on; those that the viewer may not read have no effect.
        problems: the job roots of the DAG that are not known, and why.
    """

    ids: Set[str]
    problems: Sequence[RootSearch] = ()


class Dags(Protocol):
    """The DAGs that work on the jobs; only Airflow has them."""

    async def jobs_of(self, viewer: Viewer, dag_id: str) -> DagJobs | None:
        """Returns the jobs of a DAG; None if there is no such DAG, or none that the viewer may read."""

    async def family_of(self, viewer: Viewer, job: CatalogJob) -> JobFamily:
        """Returns the DAGs that work on a job which the viewer may read."""


DAG_ENDPOINTS = (
    Endpoint("dags/{dag_id}/jobs", "The jobs of a DAG", JobList),
    Endpoint("jobs/{id}/family", "The DAGs of a job", JobFamily),
)


class DagEndpoints:
    """Answers about DAGs.

    Args:
        dags: the DAGs.
        jobs: answers about jobs.
    """

    def __init__(self, dags: Dags, jobs: JobEndpoints) -> None:
        self._dags = dags
        self._jobs = jobs

    def handlers(self) -> dict[str, Handler]:
        """Returns what answers each endpoint, by its path."""
        return {"dags/{dag_id}/jobs": self._jobs_of_dag, "jobs/{id}/family": self._family}

    async def _jobs_of_dag(self, call: Call) -> Answer:
        found = await self._dags.jobs_of(call.viewer, call.path["dag_id"])
        if found is None:
            missing = ConfigError("there is no such DAG", hint="Airflow lists the DAGs", dag=call.path["dag_id"][:250])
            raise Refused(404, missing)
        return await self._jobs.list_jobs(
            [job for id, job in call.jobs.items() if id in found.ids], tuple(found.problems)
        )

    async def _family(self, call: Call) -> Answer:
        family = await self._dags.family_of(call.viewer, call.job)
        return Answer([repr(family)], lambda: family)
