"""The pages of jobs in Airflow: which jobs its DAGs have, who may read them, and what its API server mounts.

Only the API server imports this module, and with it `stateflow.ui`; `plugin` names both only when it is asked for them.

A serialized DAG has the values of template fields, and so the job roots of its tasks. They are read from Airflow's
database again after 30 seconds, and only those DAGs that have changed. Rights are asked for at each request.
"""

from __future__ import annotations

import asyncio
import functools
import logging
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence, Set
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar
from uuid import UUID

import anyio
from airflow.api_fastapi.app import get_auth_manager
from airflow.api_fastapi.auth.managers.models.base_user import BaseUser
from airflow.api_fastapi.auth.managers.models.resource_details import DagAccessEntity, DagDetails
from airflow.api_fastapi.core_api.security import bearer_scheme, get_user, oauth2_scheme
from airflow.models.dag import DagModel
from airflow.models.dag_version import DagVersion
from airflow.models.dagrun import DagRun
from airflow.models.deadline import Deadline
from airflow.models.hitl import HITLDetail
from airflow.models.serialized_dag import SerializedDagModel
from airflow.models.taskinstance import TaskInstance
from airflow.sdk import conf
from airflow.utils.session import create_session
from airflow.utils.state import DagRunState, State
from sqlalchemy import and_, func, or_, select, tuple_
from sqlalchemy.exc import SQLAlchemyError
from starlette.exceptions import HTTPException
from starlette.requests import Request

from stateflow.clock import Clock, SystemClock
from stateflow.errors import ConfigError, NotYetAvailable, StorageError, Unauthorized
from stateflow.outputs import error_report
from stateflow.storage import Storage, check_location, open_below, open_storage
from stateflow.storage.locations import without_secrets
from stateflow.ui.access import Viewer
from stateflow.ui.app import make_app
from stateflow.ui.catalog import job_opened_by
from stateflow.ui.dags import DagJobs, DagRole, FamilyDag, JobFamily, OpenQuestion
from stateflow.ui.roots import CatalogJob, Cell, Orchestration, RootLimits, RootSearch, Threads
from stateflow_airflow.versions import base_of_bundles

if TYPE_CHECKING:
    from airflow.api_fastapi.auth.managers.base_auth_manager import ResourceMethod

log = logging.getLogger(__name__)

T = TypeVar("T")

PREFIX = "/stateflow"
"""Where the application is mounted; each bundle finds the API beside itself."""
STATE_VIEW = "Stateflow state"
"""The custom view of Airflow whose readers may read values of state, if they may read the job."""
_FRESH = timedelta(seconds=30)
_STATES_FRESH = timedelta(seconds=5)
_READ_AT_ONCE = 100
"""Serialized DAGs in memory at a time; one may have hundreds of kilobytes."""
_MOST_QUESTIONS = 100

# -- job roots of serialized DAGs -------------------------------------------------------------------------------------

_ROLES: Mapping[str, DagRole] = {
    "StateflowRestorePlanOperator": DagRole.RECOVERY,
    "StateflowRestoreOperator": DagRole.RECOVERY,
    "StateflowRunOperator": DagRole.RUN,
    "StateflowRetentionOperator": DagRole.RETENTION,
    "StateflowTablesOperator": DagRole.RETENTION,
    "StateflowSavepointOperator": DagRole.SAVEPOINT,
    "StateflowStopOperator": DagRole.SAVEPOINT,
    "StateflowPartitionEventsOperator": DagRole.PARTITIONS,
}
"""The role of a DAG by its tasks; the first that applies. Not by sensors and exports, which others may have: who may
read a DAG that waits for a job need not be allowed to read the job."""
_RUN_FIELDS = {"job", "job_root", "from_savepoint", "run_folder", "env_vars"}
"""Template fields by which a subclass of the run operator is recognized: a serialized task has no base classes."""
_QUESTION_FIELDS = {"subject", "body", "job_root"}
"""The same of the operators that ask a person about a job."""


@dataclass(frozen=True)
class DagRoots:
    """The job roots of a DAG, as its file gives them.

    Attributes:
        version: identifies the serialized DAG.
        roles: what the DAG does with each; templates are not rendered.
        questions: ids of the tasks that ask a person about each.
    """

    version: tuple[UUID, str]
    roles: Mapping[str, DagRole]
    questions: Mapping[str, Set[str]] = field(default_factory=dict)


def roots_in(data: object) -> dict[str, DagRole]:
    """Returns the job roots in a serialized DAG, as text, and what the DAG does with each."""
    found: dict[str, set[DagRole]] = {}
    for fields in _tasks(data):
        role = _role_of(fields)
        if role is not None:
            for root in _job_roots(fields):
                found.setdefault(root, set()).add(role)
    order = list(dict.fromkeys(_ROLES.values()))
    return {root: min(roles, key=order.index) for root, roles in found.items()}


def questions_in(data: object) -> dict[str, set[str]]:
    """Returns the job roots in a serialized DAG about which a person is asked, and the ids of the tasks that ask."""
    found: dict[str, set[str]] = {}
    for fields in _tasks(data):
        if _template_fields(fields) >= _QUESTION_FIELDS:
            for root in _job_roots(fields):
                found.setdefault(root, set()).add(str(_value(fields, "task_id")))
    return found


def _tasks(data: object) -> Iterator[object]:
    """Yields the fields of each task of a serialized DAG."""
    for task in _items(_value(_value(data, "dag"), "tasks")):
        yield _value(task, "__var")


def _template_fields(fields: object) -> set[str]:
    return {name for name in _items(_value(fields, "template_fields")) if isinstance(name, str)}


def _role_of(fields: object) -> DagRole | None:
    module, kind = _value(fields, "_task_module"), _value(fields, "task_type")
    if str(module).startswith("stateflow_airflow."):
        return _ROLES.get(str(kind))
    return DagRole.RUN if _template_fields(fields) >= _RUN_FIELDS else None


def _job_roots(fields: object) -> Iterator[str]:
    """Yields the job roots of a task, or of a mapped one."""
    mapped = _value(_value(_value(_value(fields, "expand_input"), "value"), "__var"), "job_root")
    for given in (_value(fields, "job_root"), _value(_value(fields, "partial_kwargs"), "job_root"), mapped):
        if given is not None:
            # Anything but a text or a list of texts is the output of another task.
            yield from (each if isinstance(each, str) else "{{ … }}" for each in _items(given) or [given])


def _value(data: object, name: str) -> object:
    return data.get(name) if isinstance(data, Mapping) else None


def _items(data: object) -> Sequence[object]:
    return data if isinstance(data, Sequence) and not isinstance(data, str) else ()


def read_dags(known: Mapping[str, DagRoots]) -> dict[str, DagRoots]:
    """Returns the job roots of all DAGs that Airflow still has, by DAG id.

    Args:
        known: what was returned before; only DAGs that have changed are read.
    """
    newest = (
        select(DagVersion.dag_id, func.max(DagVersion.version_number).label("number"))
        .join(SerializedDagModel, SerializedDagModel.dag_version_id == DagVersion.id)
        .group_by(DagVersion.dag_id)
        .subquery()
    )
    listed = (
        select(SerializedDagModel.dag_id, SerializedDagModel.id, SerializedDagModel.dag_hash)
        .join(DagVersion, SerializedDagModel.dag_version_id == DagVersion.id)
        .join(newest, and_(DagVersion.dag_id == newest.c.dag_id, DagVersion.version_number == newest.c.number))
        .join(DagModel, DagModel.dag_id == SerializedDagModel.dag_id)
        .where(DagModel.is_stale.is_(False))
    )
    with create_session() as session:
        versions = {dag_id: (id, digest) for dag_id, id, digest in session.execute(listed)}
        found = {dag: known[dag] for dag, each in versions.items() if dag in known and known[dag].version == each}
        changed = sorted(versions.keys() - found.keys())
        for at in range(0, len(changed), _READ_AT_ONCE):
            ids = [versions[dag][0] for dag in changed[at : at + _READ_AT_ONCE]]
            for row in session.scalars(select(SerializedDagModel).where(SerializedDagModel.id.in_(ids))):
                data = row.data
                found[row.dag_id] = DagRoots(versions[row.dag_id], roots_in(data), questions_in(data))
            session.expunge_all()
    return found


@dataclass(frozen=True)
class DagStates:
    """States of DAGs in Airflow's database that change often, by DAG id.

    Attributes:
        asking: the tasks that wait for the answer of a person: for each, the id of its DAG and its own.
        next_runs: when the scheduler creates the next run of a DAG that is not paused.
    """

    asking: Set[tuple[str, str]] = frozenset()
    next_runs: Mapping[str, datetime] = field(default_factory=dict)


_IS_OPEN = and_(
    HITLDetail.responded_at.is_(None), or_(TaskInstance.state.is_(None), TaskInstance.state.not_in(State.finished))
)
"""A question that waits for an answer: a task that was ended by hand leaves its question without one."""


def read_dag_states() -> DagStates:
    """Returns the states of all DAGs."""
    asking = (
        select(TaskInstance.dag_id, TaskInstance.task_id)
        .join(HITLDetail, HITLDetail.ti_id == TaskInstance.id)
        .where(_IS_OPEN)
        .distinct()
    )
    next_runs = select(DagModel.dag_id, DagModel.next_dagrun_create_after).where(
        DagModel.next_dagrun_create_after.is_not(None), DagModel.is_paused.is_(False), DagModel.is_stale.is_(False)
    )
    with create_session() as session:
        return DagStates(
            frozenset((dag_id, task_id) for dag_id, task_id in session.execute(asking)),
            {dag_id: at for dag_id, at in session.execute(next_runs) if at is not None},
        )


def read_questions(tasks: Collection[tuple[str, str]]) -> tuple[OpenQuestion, ...]:
    """Returns the newest questions of tasks that wait for an answer, newest first.

    Args:
        tasks: for each, the id of its DAG and its own.
    """
    query = (
        select(TaskInstance.dag_id, TaskInstance.run_id, HITLDetail.subject, HITLDetail.created_at)
        .join(HITLDetail, HITLDetail.ti_id == TaskInstance.id)
        .where(_IS_OPEN, tuple_(TaskInstance.dag_id, TaskInstance.task_id).in_(tasks))
        .order_by(HITLDetail.created_at.desc())
        .limit(_MOST_QUESTIONS)
    )
    with create_session() as session:
        return tuple(
            OpenQuestion(dag_id, run_id, subject, at.isoformat())
            for dag_id, run_id, subject, at in session.execute(query)
        )


def read_late_dags() -> frozenset[str]:
    """Returns the DAGs with a missed deadline after which none of their runs has succeeded.

    It reads all deadlines that were ever missed: Airflow keeps that of a DAG run, also if a later one succeeds.
    """
    missed = (
        select(DagRun.dag_id, func.max(Deadline.deadline_time).label("at"))
        .join(Deadline, Deadline.dagrun_id == DagRun.id)
        .where(Deadline.missed.is_(True))
        .group_by(DagRun.dag_id)
        .subquery()
    )
    succeeded = select(DagRun.id).where(
        DagRun.dag_id == missed.c.dag_id, DagRun.state == DagRunState.SUCCESS, DagRun.end_date > missed.c.at
    )
    with create_session() as session:
        return frozenset(session.scalars(select(missed.c.dag_id).where(~succeeded.exists())))


# -- catalog ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class JobDags:
    """A job, and the DAGs that work on it.

    Attributes:
        job: the job.
        roles: what each DAG does with it, by the id of the DAG.
        questions: the tasks of these DAGs that ask a person about it: the id of the DAG and that of the task.
    """

    job: CatalogJob
    roles: Mapping[str, DagRole]
    questions: Set[tuple[str, str]] = frozenset()


@dataclass(frozen=True)
class DagIndex:
    """The jobs of all DAGs.

    Attributes:
        jobs: by the id of the job.
        ids: ids of jobs by the id of the DAG.
        problems: the job roots that are not known, and why, by the id of the DAG.
    """

    jobs: Mapping[str, JobDags] = field(default_factory=dict)
    ids: Mapping[str, Set[str]] = field(default_factory=dict)
    problems: Mapping[str, Sequence[RootSearch]] = field(default_factory=dict)


def to_index(dags: Mapping[str, DagRoots], job_at: Callable[[str], CatalogJob]) -> DagIndex:
    """Returns the jobs of DAGs: DAGs with the same job root work on the same job.

    Args:
        dags: by id.
        job_at: returns the job at a job root. Raises ConfigError.
    """
    jobs: dict[str, CatalogJob] = {}
    roles: dict[str, dict[str, DagRole]] = {}
    questions: dict[str, set[tuple[str, str]]] = {}
    ids: dict[str, set[str]] = {}
    problems: dict[str, list[RootSearch]] = {}
    for dag_id, dag in sorted(dags.items()):
        for root, role in sorted(dag.roles.items()):
            try:
                job = job_at(root)
            except ConfigError as e:
                problems.setdefault(dag_id, []).append(RootSearch(without_secrets(root), 0, False, error_report(e)))
                continue
            jobs.setdefault(job.id, job)
            roles.setdefault(job.id, {})[dag_id] = role
            ids.setdefault(dag_id, set()).add(job.id)
        # Also of a DAG that only asks, or names the job root in another way.
        for root, tasks in dag.questions.items():
            with suppress(ConfigError):
                questions.setdefault(job_at(root).id, set()).update((dag_id, task) for task in tasks)
    known = {id: JobDags(jobs[id], roles[id], questions.get(id, frozenset())) for id in sorted(jobs)}
    return DagIndex(known, ids, problems)


def job_of(job_root: str, locations: Sequence[str]) -> CatalogJob:
    """Returns the job at a job root that a DAG file gives.

    Args:
        job_root: path or URI.
        locations: the paths and URIs below which it may be; empty for anywhere.

    Raises ConfigError for one that only a task knows: a template, or a relative path.
    """
    if any(begin in job_root for begin in ("{{", "{%", "{#")):
        raise ConfigError(
            "the job root is a template, whose value only a task knows",
            hint="write the job root into the DAG file without a template",
            job_root=job_root,
        )
    if "://" not in job_root and not Path(job_root).is_absolute():
        raise ConfigError(
            "the job root is neither a URI nor an absolute path",
            hint="pass an absolute path, such as /data/jobs/flights",
            job_root=job_root,
        )
    return job_opened_by(functools.partial(_open, locations=locations), job_root)


def _open(job_root: str, locations: Sequence[str]) -> Storage:
    if not locations:
        return open_storage(job_root)
    try:
        check_location(job_root, locations)
    except ConfigError as e:
        # Not the error itself, whose hint names settings of tasks and not the setting of the pages.
        hint = "an administrator can add its location to [stateflow] pages_locations"
        raise ConfigError("the pages may not show this job root", hint=hint, job_root=job_root) from e
    # By its location, because a folder may be replaced by a link after the check.
    return open_below(job_root, locations)


class DagCatalog:
    """The jobs of Airflow's DAGs, at most 30 seconds old while its database answers.

    Args:
        read: reads the job roots of DAGs; see `read_dags`.
        clock: measures ages.
        locations: the paths and URIs below which job roots may be; empty for anywhere.
        states: reads what changes often; see `read_dag_states`.
        late: reads which DAGs are late, once in 30 seconds; see `read_late_dags`.
    """

    def __init__(
        self,
        read: Callable[[Mapping[str, DagRoots]], dict[str, DagRoots]] = read_dags,
        clock: Clock | None = None,
        locations: Sequence[str] = (),
        states: Callable[[], DagStates] = read_dag_states,
        late: Callable[[], Set[str]] = read_late_dags,
    ) -> None:
        self._read = read
        self._dags: dict[str, DagRoots] = {}
        # The same object for the same job root, whose storage is opened once.
        self._job_at = functools.lru_cache(4096)(functools.partial(job_of, locations=tuple(locations)))
        clock, limits = clock or SystemClock(), RootLimits()
        make = functools.partial(Cell, Threads(limits, clock), clock=clock, limits=limits, source="Airflow's database")
        # Each with a name of its own: a slow query of one kind does not delay the others.
        self._index: Cell[DagIndex] = make(self._load, fresh=_FRESH, root="dags")
        self._states: Cell[DagStates] = make(lambda: _with_database(states), fresh=_STATES_FRESH, root="states")
        self._late: Cell[Set[str]] = make(lambda: _with_database(late), fresh=_FRESH, root="late")

    async def current(self) -> DagIndex:
        """Returns the jobs, after reading them if they are too old. Raises an error before the first time."""
        reading, *_ = await asyncio.gather(self._index.read(), self._states.read(), self._late.read())
        if reading.value is None:
            raise reading.problem or NotYetAvailable("the DAGs have not been read yet", hint="ask again")
        return reading.value

    def jobs(self) -> Mapping[str, CatalogJob]:
        """Returns the jobs as they were read last, by id."""
        index = self._index.now().value or DagIndex()
        return {id: each.job for id, each in index.jobs.items()}

    def searches(self) -> Sequence[RootSearch]:
        """Returns why the jobs are not current; none otherwise."""
        reading = self._index.now()
        if reading.problem is None:
            return ()
        count = len(reading.value.jobs) if reading.value else 0
        return [RootSearch("the DAGs of Airflow", count, False, error_report(reading.problem))]

    def orchestration_of(self, id: str) -> Orchestration:
        """Returns what Airflow knows of a job: its DAGs, whether one waits for an answer about it, and their runs."""
        states, late = self._states.now().value, self._late.now().value
        found = (self._index.now().value or DagIndex()).jobs.get(id)
        if found is None:
            return Orchestration()
        dag_ids = tuple(sorted(found.roles))
        if states is None:
            return Orchestration(dag_ids)
        # By the DAGs of the job only: a list of jobs asks for each of them.
        runs = {dag_id for dag_id, role in found.roles.items() if role is DagRole.RUN}
        starts = [states.next_runs[dag_id] for dag_id in runs if dag_id in states.next_runs]
        return Orchestration(
            dag_ids,
            awaits_approval=not states.asking.isdisjoint(found.questions),
            late=None if late is None or not runs else not late.isdisjoint(runs),
            next_run_at=min(starts).isoformat() if starts else "",
        )

    def _load(self) -> DagIndex:
        self._dags = _with_database(lambda: self._read(self._dags))
        return to_index(self._dags, self._job_at)


def _with_database(call: Callable[[], T]) -> T:
    try:
        return call()
    except SQLAlchemyError as e:
        log.warning("Airflow's database could not be read: %s", e)
        # Its text may have statements and addresses.
        hint = "see the log of the API server"
        raise StorageError("Airflow's database could not be read", hint=hint, error=type(e).__name__) from e


# -- users ------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class AirflowViewer:
    """A user of Airflow.

    Attributes:
        user: as the auth manager has authenticated it.
        dag_ids: the DAGs that the user may read.
        index: the jobs of all DAGs.
    """

    user: BaseUser
    dag_ids: Set[str]
    index: DagIndex = field(repr=False)

    def dags_of(self, job: CatalogJob) -> dict[str, DagRole]:
        """Returns the DAGs of a job that the user may read, with their roles."""
        found = self.index.jobs.get(job.id)
        return {dag: role for dag, role in found.roles.items() if dag in self.dag_ids} if found else {}

    def may_read(self, job: CatalogJob) -> bool:
        """Returns whether the user may read a DAG of the job."""
        return bool(self.dags_of(job))

    async def may_read_code(self, job: CatalogJob) -> bool:
        """Returns whether the user may read the code of a DAG of the job, as on Airflow's own page *Code*."""
        return await _in_thread(lambda: _may_read_code(self.user, self.dags_of(job)))


class AirflowAccess:
    """Airflow's users, as its own API authenticates them, and their rights.

    Args:
        catalog: the jobs of all DAGs.
    """

    serves_files_to_all = False

    def __init__(self, catalog: DagCatalog) -> None:
        self._catalog = catalog

    async def admit(self, request: Request) -> AirflowViewer:
        """Returns the user of a session cookie or bearer token. Raises Unauthorized for nobody."""
        try:
            # Called as FastAPI does it: `Depends` works only in an application of FastAPI.
            user = await get_user(request, await oauth2_scheme(request), await bearer_scheme(request))
        except HTTPException as e:
            if e.status_code not in (401, 403):
                raise
            hint = "log in to Airflow, or send a token of its API as Authorization: Bearer TOKEN"
            raise Unauthorized("you are not logged in to Airflow", hint=hint) from e
        dag_ids = await _in_thread(lambda: get_auth_manager().get_authorized_dag_ids(user=user))
        return AirflowViewer(user, dag_ids, await self._catalog.current())

    async def jobs_of(self, viewer: Viewer, dag_id: str) -> DagJobs | None:
        """Returns the jobs of a DAG; None if there is no such DAG, or none that the viewer may read."""
        assert isinstance(viewer, AirflowViewer)
        if dag_id not in viewer.dag_ids:
            return None
        return DagJobs(viewer.index.ids.get(dag_id, frozenset()), viewer.index.problems.get(dag_id, ()))

    async def family_of(self, viewer: Viewer, job: CatalogJob) -> JobFamily:
        """Returns the DAGs of a job that the viewer may read."""
        assert isinstance(viewer, AirflowViewer)
        questions = viewer.index.jobs[job.id].questions
        return await _in_thread(lambda: _family(viewer.user, viewer.dags_of(job), questions))


async def _in_thread(call: Callable[[], T]) -> T:
    return await anyio.to_thread.run_sync(lambda: _with_database(call))


def _may_read_code(user: BaseUser, dag_ids: Collection[str]) -> bool:
    _, teams = _dag_facts(dag_ids)
    may, code = get_auth_manager().is_authorized_dag, DagAccessEntity.CODE
    details = (DagDetails(id=dag_id, team_name=teams.get(dag_id)) for dag_id in dag_ids)
    return any(may(method="GET", access_entity=code, details=each, user=user) for each in details)


def _family(user: BaseUser, roles: Mapping[str, DagRole], questions: Set[tuple[str, str]]) -> JobFamily:
    """Returns the DAGs of a job with what a user may do.

    Args:
        user: the user.
        roles: what each DAG does that the user may read.
        questions: the tasks that ask about the job, also those of other DAGs.
    """
    manager = get_auth_manager()
    paused, teams = _dag_facts(roles.keys())

    def may(dag_id: str, method: ResourceMethod, entity: DagAccessEntity | None) -> bool:
        details = DagDetails(id=dag_id, team_name=teams.get(dag_id))
        return manager.is_authorized_dag(method=method, access_entity=entity, details=details, user=user)

    asking = {dag_id for dag_id in paused if may(dag_id, "GET", DagAccessEntity.HITL_DETAIL)}
    return JobFamily(
        dags=tuple(
            FamilyDag(
                dag_id=dag_id,
                role=roles[dag_id],
                may_trigger=may(dag_id, "POST", DagAccessEntity.RUN),
                may_pause=may(dag_id, "PUT", None),
                may_answer=may(dag_id, "PUT", DagAccessEntity.HITL_DETAIL),
                is_paused=is_paused,
            )
            for dag_id, is_paused in sorted(paused.items())
        ),
        questions=read_questions([(dag_id, task) for dag_id, task in questions if dag_id in asking]),
        may_read_state=manager.is_authorized_custom_view(method="GET", resource_name=STATE_VIEW, user=user),
    )


def _dag_facts(dag_ids: Collection[str]) -> tuple[dict[str, bool], Mapping[str, str | None]]:
    """Returns whether each DAG is paused, and its team."""
    with create_session() as session:
        rows = session.execute(select(DagModel.dag_id, DagModel.is_paused).where(DagModel.dag_id.in_(dag_ids)))
        paused = {row.dag_id: row.is_paused for row in rows}
        return paused, DagModel.get_dag_id_to_team_name_mapping(list(dag_ids), session=session)


# -- what Airflow mounts ----------------------------------------------------------------------------------------------

_ICON = (
    "data:image/svg+xml,%3Csvg xmlns='http://www.w3.org/2000/svg' viewBox='0 0 24 24' fill='none' stroke='%237c8898'"
    " stroke-width='2' stroke-linecap='round'%3E%3Cpath d='M3 12h18M9 12c0-5 7-5 7 0'/%3E%3Cg fill='%237c8898'%3E"
    "%3Ccircle cx='4' cy='12' r='2'/%3E%3Ccircle cx='9' cy='12' r='2'/%3E%3Ccircle cx='20' cy='12' r='2'/%3E"
    "%3C/g%3E%3C/svg%3E"
)
"""Checkpoints on a line, and a way back; in a tone that is visible on light and on dark."""


def pages_mounts() -> list[dict[str, object]]:
    """Returns the application of the pages, for Airflow's users, and where it is mounted."""
    configured = conf.get("stateflow", "pages_locations", fallback=None) or ""
    catalog = DagCatalog(locations=configured.split())
    access = AirflowAccess(catalog)
    return [{"app": make_app(catalog, access, dags=access), "url_prefix": PREFIX, "name": "stateflow"}]


def pages_entries() -> list[dict[str, object]]:
    """Returns the places where Airflow shows the pages: navigation, tab of a DAG, and card on Home."""
    # An absolute path would break behind a path prefix.
    bundle = f"{base_of_bundles()}{PREFIX[1:]}/plugin.js"
    return [
        # The name is that of the bundle's global; the card on Home leads to this route.
        {
            "name": "Stateflow",
            "bundle_url": bundle,
            "destination": "nav",
            "nav_top_level": True,
            "url_route": "stateflow",
            "icon": _ICON,
        },
        {"name": "State", "bundle_url": bundle, "destination": "dag", "url_route": "stateflow-state"},
        {"name": "Stateflow jobs", "bundle_url": bundle, "destination": "dashboard", "url_route": "stateflow-jobs"},
    ]
