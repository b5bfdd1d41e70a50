"""The application of the pages: a read-only JSON API, and the files of the pages.

The same application is served by `stateflow ui` and mounted by the plugin of Airflow: a catalog says which job roots
there are, and a policy who may read them. All addresses are relative, so that it works below any prefix.

An answer follows from the address and from the versions of the job roots, which make its ETag. So a request with the
ETag of the answer before is answered without making it again, and so is one for an answer that is still in memory.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import hashlib
import hmac
import json
import logging
import re
import threading
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Mapping, Sequence, Set
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from datetime import timedelta
from enum import StrEnum
from pathlib import Path
from typing import Protocol, TypeVar

import anyio
import msgspec
from starlette.applications import Starlette
from starlette.datastructures import Headers, MutableHeaders
from starlette.exceptions import HTTPException
from starlette.requests import Request as HttpRequest
from starlette.responses import PlainTextResponse, Response
from starlette.routing import BaseRoute, Mount, Route, Router
from starlette.staticfiles import StaticFiles
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from stateflow.checkpoint.history import read_run_file
from stateflow.checkpoint.log.documents import EntryRef, Manifest, SinkMode
from stateflow.checkpoint.restore.plan_document import GraphChanges
from stateflow.checkpoint.savepoints.catalog import is_confirmed, read_savepoint
from stateflow.checkpoint.savepoints.claim_slots import ClaimMode
from stateflow.checkpoint.savepoints.cleanup import SavepointRule
from stateflow.clock import parse_timestamp
from stateflow.errors import (
    ConfigError,
    DataError,
    InternalError,
    NotYetAvailable,
    StateflowError,
    StorageError,
    Unauthorized,
    UnknownJob,
)
from stateflow.operations.garbage import RetentionEffect, preview_retention
from stateflow.operations.job_savepoints import SavepointDescription, describe_contents
from stateflow.operations.restore_previews import (
    KnownHistory,
    PreviewRequest,
    RestorePreview,
    preview_restore,
    read_run_graph,
)
from stateflow.operations.savepoint_differences import SavepointDifference, compare_savepoints
from stateflow.outputs import encode_json, error_report, utc_text
from stateflow.runtime.restore.planner import RestoreOptions
from stateflow.storage import Storage
from stateflow.storage.paths import CLAIMS, SAVEPOINT, SAVEPOINTS, savepoint_file, savepoint_folder
from stateflow.ui.journal import JournalFilter, JournalKey, JournalPage, Read, journal_page, to_csv
from stateflow.ui.openapi import API, CSV, ApiError, Endpoint, Parameter, to_document
from stateflow.ui.roots import Calls, Catalog, CatalogJob, Reading, Roots, RootSearch
from stateflow.ui.snapshots import PointKey, Position, Snapshot
from stateflow.ui.views import (
    CheckpointPage,
    GraphPage,
    JobFamily,
    JobList,
    JobState,
    PointFilter,
    PointPage,
    RestorePlanPage,
    RetentionPreview,
    RunFiles,
    RunPage,
    SavepointDiff,
    SavepointPage,
    StoredGraph,
    TimelinePage,
    checkpoint_page,
    find_starts,
    graph_page,
    history_of,
    job_row,
    job_state,
    point_page,
    restore_plan_page,
    retention_preview,
    run_page,
    savepoint_diff,
    savepoint_page,
    timeline_page,
)

log = logging.getLogger(__name__)

K = TypeVar("K")
E = TypeVar("E", bound=StrEnum)
V = TypeVar("V")

STATIC = Path(__file__).parent / "static"
"""The files of the pages, as they were built."""
NOT_BUILT = f"The pages are not built; make ui-build builds them. The API is below {API}/: {API}/openapi.json\n"
"""The answer if there are none."""
PAGE_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self' 'unsafe-inline'; img-src 'self' data:; font-src 'self'; "
    "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
"""Content-Security-Policy of the pages. Their library of components writes its styles into the page."""
DATA_POLICY = "default-src 'none'; frame-ancestors 'none'"
_HEADERS = {
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "referrer-policy": "no-referrer",
    "cross-origin-resource-policy": "same-origin",
}

_STATUS: Mapping[type[StateflowError], int] = {
    Unauthorized: 401,
    UnknownJob: 404,
    ConfigError: 422,
    StorageError: 503,
    NotYetAvailable: 503,
}
_LARGEST_CACHE = 32 << 20
_ENCODERS = 4
"""Answers that are made concurrently."""
_LONGEST_SAVEPOINT_LIST = 200
_SAVEPOINT_READERS = 8
_MOST_RUN_FILES = 16
"""Runs whose job files, of up to 1 MiB each, stay in memory."""
_LIST_PATIENCE = timedelta(milliseconds=250)
"""How long a list of several jobs waits for each of them, all together."""


class Viewer(Protocol):
    """The user or client of a request."""

    def may_read(self, job: CatalogJob) -> bool:
        """Returns whether it may read a job. For the viewer, others do not exist."""


class AccessPolicy(Protocol):
    """Decides who may read.

    Attributes:
        serves_files_to_all: whether the files of the pages, which are the same everywhere, are served to anybody.
    """

    serves_files_to_all: bool

    async def admit(self, request: HttpRequest) -> Viewer:
        """Returns the viewer of a request. Raises Unauthorized for nobody who may read anything."""


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


class _ReadsAll:
    def may_read(self, job: CatalogJob) -> bool:
        return True


class TokenPolicy:
    """Everybody who knows a token reads everything; without a token, everybody who reaches the server.

    Args:
        token: the token; empty for none.
    """

    serves_files_to_all = True
    """A browser cannot send the token with the address of a page; the page asks for it, and sends it to the API."""

    def __init__(self, token: str = "") -> None:
        self._expected = f"Bearer {token}".encode() if token else b""

    async def admit(self, request: HttpRequest) -> Viewer:
        """Returns a viewer who may read everything. Raises Unauthorized without the token."""
        given = request.headers.get("authorization", "").encode()
        if self._expected and not hmac.compare_digest(given, self._expected):
            raise Unauthorized(
                "the token is missing or wrong",
                hint="enter the token of the server, or send it as Authorization: Bearer TOKEN",
            )
        return _ReadsAll()


# -- endpoints --------------------------------------------------------------------------------------------------------

_TEXT, _TIME, _FLAG = {"type": "string"}, {"type": "string", "format": "date-time"}, {"type": "boolean"}
_CURSOR = Parameter("cursor", _TEXT, "the next_cursor of the page before")
_TIMES = (
    Parameter("since", _TIME, "earliest time at which it ended"),
    Parameter("until", _TIME, "latest time at which it ended"),
)
_KIND = Parameter("kind", _TEXT, "kind of the entry, such as checkpoint or restore")


def _limit(default: int, largest: int) -> Parameter:
    return Parameter("limit", {"type": "integer", "minimum": 1, "maximum": largest, "default": default}, "how many")


_JOURNAL = (_KIND, Parameter("person", _TEXT, "part of the name of a person"), *_TIMES)
_POINTS = (
    _KIND,
    Parameter("status", {"enum": ["completed", "aborted"]}, "whether the checkpoint was completed"),
    Parameter("undone", _FLAG, "whether a restore has undone it"),
    Parameter("retained", _FLAG, "whether the job keeps it"),
    Parameter("generation", {"type": "integer", "minimum": 1}, "generation of the run"),
    *_TIMES,
)
_CHECKPOINT = Parameter("checkpoint_id", {"type": "integer", "minimum": 1}, "by default the newest one")
_COMPARED = (
    Parameter("from", _TEXT, "name of the first savepoint, or of its folder"),
    Parameter("to", _TEXT, "the same of the second one"),
)
_RETENTION = (
    Parameter("retain", {"type": "integer", "minimum": 1}, "checkpoints to keep; by default, none is released"),
    Parameter("savepoints", {"type": "integer", "minimum": 1}, "periodic savepoints to keep; by default all"),
    Parameter("max_age_days", {"type": "integer", "minimum": 1, "maximum": 36_500}, "largest age of those to keep"),
)
_CSV_LIMIT = _limit(10_000, 20_000)
_PLAN = (
    Parameter("target", _TEXT, "as the recovery DAG takes it: latest, an id, a name or path, or before:…"),
    Parameter("sinks", {"enum": ["restore", "keep"], "default": "restore"}, "whether tables are restored"),
    Parameter("keep_tables", _TEXT, "uids of sinks whose tables stay, with commas"),
    Parameter("drop", _TEXT, "uids of operators whose state is dropped, with commas"),
    Parameter("new_names", _TEXT, "OLD=NEW for each name that has changed, with commas"),
    Parameter("source_positions", _TEXT, "UID=POSITION, one a line"),
    Parameter("from_other_job", {**_FLAG, "default": False}, "whether the savepoint may be another job's"),
    Parameter("claim_mode", {"enum": ["no-claim", "claim"], "default": "no-claim"}, "who then owns the savepoint"),
)

ENDPOINTS = (
    Endpoint("jobs", "The jobs that the caller may read", JobList),
    Endpoint("jobs/{id}", "The state of a job", JobState),
    Endpoint("jobs/{id}/points", "Points of a job, newest first", PointPage, (_CURSOR, _limit(50, 500), *_POINTS)),
    Endpoint("jobs/{id}/timeline", "The newest part of the history of a job", TimelinePage, (_limit(500, 2000),)),
    Endpoint("jobs/{id}/checkpoints/{checkpoint_id}", "A checkpoint with its operators and subtasks", CheckpointPage),
    Endpoint("jobs/{id}/graph", "The graph of a job at a checkpoint", GraphPage, (_CHECKPOINT,)),
    Endpoint("jobs/{id}/runs/{generation}", "A run with its job file", RunPage),
    Endpoint("jobs/{id}/savepoints", "The savepoints of a job", SavepointPage),
    Endpoint("jobs/{id}/savepoint-diff", "Two savepoints, compared without reading state", SavepointDiff, _COMPARED),
    Endpoint("jobs/{id}/retention-preview", "What a retention would delete", RetentionPreview, _RETENTION),
    Endpoint("jobs/{id}/restore-plan", "A plan of a restore, made without the job file", RestorePlanPage, _PLAN),
    Endpoint("jobs/{id}/journal", "What persons did to a job", JournalPage, (_CURSOR, _limit(50, 500), *_JOURNAL)),
    Endpoint("jobs/{id}/journal.csv", "The same as a table", CSV, (_CSV_LIMIT, *_JOURNAL)),
    Endpoint("journal", "What persons did to all jobs", JournalPage, (_CURSOR, _limit(50, 500), *_JOURNAL)),
    Endpoint("journal.csv", "The same as a table", CSV, (_CSV_LIMIT, *_JOURNAL)),
)
"""All endpoints but the document about them, and those that need DAGs."""

DAG_ENDPOINTS = (
    Endpoint("dags/{dag_id}/jobs", "The jobs of a DAG", JobList),
    Endpoint("jobs/{id}/family", "The DAGs of a job", JobFamily),
)
"""The endpoints that only the plugin of Airflow has."""


@dataclass(frozen=True)
class _Call:
    """A request to an endpoint.

    Attributes:
        viewer: who has sent it.
        jobs: the jobs that its viewer may read, by id.
        path: parameters of the path.
        query: parameters of the query, of which the endpoint knows the names.
    """

    viewer: Viewer
    jobs: Mapping[str, CatalogJob]
    path: Mapping[str, str]
    query: Mapping[str, str]

    @property
    def job(self) -> CatalogJob:
        """The job that the path names. Raises UnknownJob also for one that the viewer may not read."""
        found = self.jobs.get(self.path["id"])
        if found is None:
            raise UnknownJob("there is no such job", hint="the list of jobs has the ids", id=self.path["id"][:100])
        return found

    def flag(self, name: str) -> bool | None:
        """Returns a parameter that is true or false. Raises ConfigError."""
        text = self.query.get(name)
        if text not in (None, "true", "false"):
            raise _wrong(name, "true or false")
        return None if text is None else text == "true"

    def number(self, parameter: Parameter) -> int | None:
        """Returns a parameter that is a whole number within its bounds, or its default. Raises ConfigError."""
        text, schema = self.query.get(parameter.name), parameter.schema
        if text is None:
            default = schema.get("default")
            return default if isinstance(default, int) else None
        least, most = schema.get("minimum", 0), schema.get("maximum", 1 << 62)
        assert isinstance(least, int) and isinstance(most, int)
        if not (text.isascii() and text.isdigit() and len(text) < 19 and least <= int(text) <= most):
            raise _wrong(parameter.name, f"a whole number between {least} and {most}")
        return int(text)

    def id(self, name: str) -> int:
        """Returns the number in the path. Raises ConfigError."""
        text = self.path[name]
        if not (text.isascii() and text.isdigit() and 0 < len(text) < 19 and int(text) > 0):
            raise _wrong(name, "a whole number above 0")
        return int(text)

    def member(self, name: str, members: type[E], default: E) -> E:
        """Returns a parameter that is a value of an enumeration. Raises ConfigError."""
        known = {member.value: member for member in members}
        text = self.query.get(name, default.value)
        if text not in known:
            raise _wrong(name, " or ".join(known))
        return known[text]

    def words(self, name: str) -> tuple[str, ...]:
        """Returns the texts of a parameter, which commas or blanks separate."""
        return tuple(each for each in re.split(r"[\s,]+", self.query.get(name, "")) if each)

    def time(self, name: str) -> str | None:
        """Returns a parameter that is a time, in UTC. Raises ConfigError."""
        text = self.query.get(name)
        if text is None:
            return None
        try:
            return utc_text(parse_timestamp(text))
        except (ValueError, OverflowError) as e:
            raise _wrong(name, "a time such as 2026-01-31T03:00:00Z") from e

    def cursor(self, kind: type[K]) -> K | None:
        """Returns the place that a cursor states. Raises ConfigError."""
        text = self.query.get("cursor")
        if text is None:
            return None
        try:
            data = base64.b64decode(text.encode() + b"=" * (-len(text) % 4), b"-_", validate=True)
            return msgspec.json.decode(data, type=kind)
        except (binascii.Error, UnicodeError, msgspec.DecodeError, RecursionError) as e:
            raise _wrong("cursor", "the next_cursor of a page") from e


def _wrong(name: str, wanted: str) -> ConfigError:
    return ConfigError(f"the parameter {name} has a wrong value", hint=f"pass {wanted}", parameter=name)


def _to_cursor(place: tuple[object, ...] | None) -> str:
    return "" if place is None else base64.urlsafe_b64encode(msgspec.json.encode(place)).decode().rstrip("=")


class _Refused(Exception):
    """An error with a status of its own."""

    def __init__(self, status: int, error: StateflowError) -> None:
        super().__init__(str(error))
        self.status = status
        self.error = error


@dataclass(frozen=True)
class _Answer:
    """What an endpoint answers.

    Attributes:
        versions: what the answer follows from, apart from the address.
        make: makes the answer: an object for JSON, or the text of a table.
    """

    versions: Sequence[str]
    make: Callable[[], object]


_Make = Callable[[_Call], Awaitable[_Answer]]


class PagesApi:
    """The endpoints.

    Args:
        catalog: the job roots.
        policy: who may read them.
        roots: follows the job roots.
        dags: the DAGs that work on the jobs; None if nobody knows them.
    """

    def __init__(self, catalog: Catalog, policy: AccessPolicy, roots: Roots, dags: Dags | None = None) -> None:
        self._catalog = catalog
        self._policy = policy
        self._roots = roots
        self._dags = dags
        self._endpoints = (*ENDPOINTS, *(DAG_ENDPOINTS if dags else ()))
        self._manifests: Calls[Manifest] = Calls(roots, None)
        self._savepoints: Calls[tuple[tuple[SavepointDescription, ...], bool]] = Calls(roots, timedelta(seconds=5))
        self._previews: Calls[RestorePreview] = Calls(roots, timedelta(seconds=10))
        self._retentions: Calls[RetentionEffect] = Calls(roots, timedelta(seconds=10))
        self._differences: Calls[SavepointDifference] = Calls(roots, timedelta(seconds=10))
        # A run stores its files after its record.
        self._graphs: Calls[StoredGraph] = Calls(roots, timedelta(seconds=10))
        self._run_files: Calls[RunFiles] = Calls(roots, timedelta(seconds=10), _MOST_RUN_FILES)
        self._known_savepoints = _SavepointCache()
        self._bodies = _Bodies()
        self._encoders: anyio.CapacityLimiter | None = None
        self._document = to_document(self._endpoints).encode()

    def routes(self) -> list[BaseRoute]:
        """Returns the routes of the endpoints, relative to `API`."""
        makers: Mapping[str, _Make] = {
            "jobs": self._jobs,
            "jobs/{id}": self._job,
            "jobs/{id}/points": self._points,
            "jobs/{id}/timeline": self._timeline,
            "jobs/{id}/checkpoints/{checkpoint_id}": self._checkpoint,
            "jobs/{id}/savepoints": self._list_savepoints,
            "jobs/{id}/savepoint-diff": self._savepoint_diff,
            "jobs/{id}/retention-preview": self._retention_preview,
            "jobs/{id}/graph": self._graph,
            "jobs/{id}/runs/{generation}": self._run,
            "jobs/{id}/restore-plan": self._restore_plan,
            "jobs/{id}/journal": self._journal,
            "jobs/{id}/journal.csv": self._journal_table,
            "journal": self._journal,
            "journal.csv": self._journal_table,
            "dags/{dag_id}/jobs": self._jobs_of_dag,
            "jobs/{id}/family": self._family,
        }
        routes: list[BaseRoute] = [
            Route(f"/{each.path}", self._endpoint(each, makers[each.path]), methods=["GET"]) for each in self._endpoints
        ]
        document = Route("/openapi.json", self._answer_document, methods=["GET"])
        return [*routes, document, Route("/{rest:path}", self._answer_nothing, methods=["GET"])]

    def _endpoint(self, endpoint: Endpoint, make: _Make) -> Callable[[HttpRequest], Awaitable[Response]]:
        names = {each.name for each in endpoint.parameters}

        async def answer(request: HttpRequest) -> Response:
            try:
                viewer = await self._policy.admit(request)
                call = _Call(viewer, self._readable(viewer), request.path_params, _query(request, names))
                return await self._respond(request, endpoint, await make(call))
            except Exception as e:
                return error_response(e)

        return answer

    async def _answer_document(self, request: HttpRequest) -> Response:
        try:
            await self._policy.admit(request)
        except Exception as e:
            return error_response(e)
        return Response(self._document, media_type="application/json")

    async def _answer_nothing(self, request: HttpRequest) -> Response:
        try:
            # Also what does not exist is for those only who may read anything.
            await self._policy.admit(request)
        except Exception as e:
            return error_response(e)
        return _nothing_here(404)

    def _readable(self, viewer: Viewer) -> dict[str, CatalogJob]:
        return {id: job for id, job in self._catalog.jobs().items() if viewer.may_read(job)}

    async def _respond(self, request: HttpRequest, endpoint: Endpoint, answer: _Answer) -> Response:
        parts = (request.url.path, sorted(request.query_params.multi_items()), list(answer.versions))
        tag = hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:32]
        headers = {"etag": f'W/"{tag}"', "cache-control": "private, no-cache"}
        if _matches(request.headers, tag):
            return Response(status_code=304, headers=headers)
        body = await self._body(tag, answer)
        if endpoint.output == CSV:
            headers["content-disposition"] = 'attachment; filename="journal.csv"'
            return Response(body, headers=headers, media_type=f"{CSV}; charset=utf-8")
        return Response(body, headers=headers, media_type="application/json")

    async def _body(self, tag: str, answer: _Answer) -> bytes:
        """Returns an answer; of several requests for the same one, the first one makes it."""
        if self._encoders is None:
            self._encoders = anyio.CapacityLimiter(_ENCODERS)
        future, is_first = self._bodies.claim(tag)
        if is_first:
            try:
                made = await anyio.to_thread.run_sync(lambda: _encoded(answer.make()), limiter=self._encoders)
            except BaseException as e:
                # Also if this request is cancelled: others that wait for it fail, and their clients ask again.
                self._bodies.give_up(tag, e)
                raise
            self._bodies.keep(tag, made)
            return made
        waiting = asyncio.wrap_future(future)
        # Not awaited itself: the end of this request would cancel it for the others.
        await asyncio.wait([waiting])
        return waiting.result()

    # -- the answers of each endpoint ---------------------------------------------------------------------------------

    async def _jobs(self, call: _Call) -> _Answer:
        return await self._list_jobs(list(call.jobs.values()), tuple(self._catalog.searches()))

    async def _jobs_of_dag(self, call: _Call) -> _Answer:
        assert self._dags is not None
        found = await self._dags.jobs_of(call.viewer, call.path["dag_id"])
        if found is None:
            missing = ConfigError("there is no such DAG", hint="Airflow lists the DAGs", dag=call.path["dag_id"][:250])
            raise _Refused(404, missing)
        return await self._list_jobs([job for id, job in call.jobs.items() if id in found.ids], tuple(found.problems))

    async def _family(self, call: _Call) -> _Answer:
        assert self._dags is not None
        family = await self._dags.family_of(call.viewer, call.job)
        return _Answer([repr(family)], lambda: family)

    async def _list_jobs(self, jobs: Sequence[CatalogJob], searches: tuple[RootSearch, ...]) -> _Answer:
        read = await self._read_all(jobs, whole=False)
        rows = [(job, each, self._catalog.awaits_approval(job.id)) for job, each in zip(jobs, read, strict=True)]
        return _Answer(
            [*(f"{_version(job, each)} {awaits}" for job, each, awaits in rows), repr(searches)],
            lambda: JobList(tuple(job_row(*row) for row in rows), searches),
        )

    async def _read_all(self, jobs: Sequence[CatalogJob], *, whole: bool) -> list[Reading[Snapshot]]:
        """Returns the job roots; one that does not answer soon as it was known before."""
        reads = (self._roots.read(job, _LIST_PATIENCE, whole=whole) for job in jobs)
        return await asyncio.gather(*reads)

    async def _job(self, call: _Call) -> _Answer:
        job = call.job
        reading = await self._roots.read(job, whole=True)
        awaits = self._catalog.awaits_approval(job.id)
        return _Answer([_version(job, reading), repr(awaits)], lambda: job_state(job, reading, awaits))

    async def _points(self, call: _Call) -> _Answer:
        before = call.cursor(PointKey)
        limit, generation = call.number(_limit(50, 500)), call.number(_POINTS[4])
        status = call.query.get("status")
        if status not in (None, "completed", "aborted"):
            raise _wrong("status", "completed or aborted")
        wanted = PointFilter(
            kind=call.query.get("kind"),
            status=status,
            undone=call.flag("undone"),
            retained=call.flag("retained"),
            generation=generation,
            since=call.time("since"),
            until=call.time("until"),
        )
        reading = await self._roots.read(call.job, whole=True)
        assert limit is not None

        def make() -> PointPage:
            page, last = point_page(reading, wanted, before, limit)
            return PointPage(page.points, _to_cursor(last), page.freshness)

        return _Answer([_version(call.job, reading)], make)

    async def _timeline(self, call: _Call) -> _Answer:
        limit = call.number(_limit(500, 2000))
        reading = await self._roots.read(call.job, whole=True)
        assert limit is not None
        return _Answer([_version(call.job, reading)], lambda: timeline_page(reading, limit))

    async def _checkpoint(self, call: _Call) -> _Answer:
        job, checkpoint_id = call.job, call.id("checkpoint_id")
        reading, snapshot, position = await self._read_position(job)
        ref = position.entries.refs.get(checkpoint_id)
        manifest = await self._read_manifest(job, snapshot, ref) if ref else None
        at = ref.at if ref else ""

        def make() -> CheckpointPage:
            page = checkpoint_page(reading, checkpoint_id, manifest, at)
            if page is None:
                raise _Refused(404, _no_checkpoint(checkpoint_id))
            return page

        return _Answer([_version(job, reading), *([_state(manifest)] if manifest else [])], make)

    async def _read_position(self, job: CatalogJob) -> tuple[Reading[Snapshot], Snapshot, Position]:
        """Returns a job root whose newest log entry is known. Raises the error of reading it, or NotYetAvailable."""
        reading = await self._roots.read(job, whole=True)
        snapshot = reading.value
        if snapshot is None or snapshot.position is None:
            raise reading.problem or NotYetAvailable("the job has no checkpoint that could be read yet", job=job.id)
        return reading, snapshot, snapshot.position

    async def _read_manifest(self, job: CatalogJob, snapshot: Snapshot, ref: EntryRef) -> Reading[Manifest]:
        handle, root = ref.manifest, snapshot.root
        key = (job.job_root, root.job.job_uuid, handle.sha256)
        return await self._manifests.read(key, lambda: root.checkpoints.read_manifest(handle))

    async def _graph(self, call: _Call) -> _Answer:
        job = call.job
        wanted = call.number(_CHECKPOINT)
        reading, snapshot, position = await self._read_position(job)
        checkpoint_id = wanted or position.head.checkpoint_id
        ref = position.entries.refs.get(checkpoint_id)
        if ref is None and checkpoint_id:
            raise _Refused(404, _no_checkpoint(checkpoint_id))
        run, root = history_of(snapshot).newest_run, snapshot.root
        generation = run.seq if run else 0

        def read() -> StoredGraph:
            return StoredGraph(read_run_graph(root, run) if run else None, generation)

        graph = await self._graphs.read((job.job_root, root.job.job_uuid, str(generation)), read)
        manifest = await self._read_manifest(job, snapshot, ref) if ref else None
        states = [_state(graph), str(graph.value and graph.value.graph is None)]
        versions = [_version(job, reading), *states, *([_state(manifest)] if manifest else [])]
        return _Answer(versions, lambda: graph_page(reading, checkpoint_id, manifest, graph))

    async def _run(self, call: _Call) -> _Answer:
        job, generation = call.job, call.id("generation")
        reading, snapshot, _ = await self._read_position(job)
        storage, starts = snapshot.root.storage, find_starts(snapshot, generation)
        hashes = [each.text("job_file_sha256") if each else "" for each in starts]

        def read() -> RunFiles:
            return RunFiles(*(read_run_file(storage, each) if each else None for each in hashes))

        files = await self._run_files.read((job.job_root, *hashes), read)

        def make() -> RunPage:
            page = run_page(reading, generation, files)
            if page is None:
                hint = "the state of the job has the newest runs"
                raise _Refused(404, ConfigError("the history has no such run", hint=hint, generation=generation))
            return page

        known = files.value
        versions = [_version(job, reading), _state(files)]
        return _Answer([*versions, repr(known and (known.own is None, known.previous is None))], make)

    async def _list_savepoints(self, call: _Call) -> _Answer:
        job = call.job
        reading = await self._roots.read(job, whole=True)
        if reading.value is None:
            raise reading.problem or NotYetAvailable("the job root has not been read yet", job=job.id)
        storage = reading.value.root.storage
        listed = await self._savepoints.read((job.job_root,), lambda: self._known_savepoints.read(storage))
        versions = [_version(job, reading), _state(listed), repr(listed.value)]
        return _Answer(versions, lambda: savepoint_page(reading, listed))

    async def _restore_plan(self, call: _Call) -> _Answer:
        job, options = call.job, _restore_options(call)
        target = call.query.get("target", "").strip()
        if not target:
            raise _wrong("target", "latest, the id of a checkpoint, or the name or path of a savepoint")
        reading, snapshot, _ = await self._read_position(job)
        root, roots = snapshot.root, tuple(sorted(each.job_root for each in call.jobs.values()))
        # The server opens a path with its own rights, which are not the viewer's.
        request = PreviewRequest(target, options, roots if "/" in target else ())

        def make() -> RestorePreview:
            found = self._roots.known(job)
            return preview_restore(root, request, history_of(found) if found else KnownHistory())

        preview = await self._previews.read((job.job_root, snapshot.version, repr(request)), make)
        versions = [_version(job, reading), _state(preview), _version_of_plan(_value_of(preview, job))]
        return _Answer(versions, lambda: restore_plan_page(reading, preview))

    async def _savepoint_diff(self, call: _Call) -> _Answer:
        job, names = call.job, [call.query.get(each.name, "").strip() for each in _COMPARED]
        for parameter, name in zip(_COMPARED, names, strict=True):
            if not name:
                raise _wrong(parameter.name, "the name of a savepoint")
        reading, snapshot, _ = await self._read_position(job)
        storage, (old, new) = snapshot.root.storage, names
        found = await self._differences.read(
            (job.job_root, snapshot.version, old, new), lambda: compare_savepoints(storage, old, new)
        )
        value = _value_of(found, job)
        return _Answer([_version(job, reading), _state(found), repr(value)], lambda: savepoint_diff(reading, found))

    async def _retention_preview(self, call: _Call) -> _Answer:
        job, (retain, savepoints, days) = call.job, [call.number(each) for each in _RETENTION]
        rule = SavepointRule(savepoints, None if days is None else timedelta(days=days))
        reading, snapshot, _ = await self._read_position(job)
        root, key = snapshot.root, (job.job_root, snapshot.version, repr(retain), repr(rule))
        found = await self._retentions.read(key, lambda: preview_retention(root, retain, rule))
        value = _value_of(found, job)
        return _Answer([_version(job, reading), _state(found), repr(value)], lambda: retention_preview(reading, found))

    async def _journal(self, call: _Call) -> _Answer:
        before, wanted = call.cursor(JournalKey), _journal_filter(call)
        limit, read = call.number(_limit(50, 500)), await self._read_journal(call)
        assert limit is not None

        def make() -> JournalPage:
            page, last = journal_page(read, wanted, before, limit)
            return JournalPage(page.entries, page.jobs, _to_cursor(last))

        return _Answer([_version(job, reading) for job, reading in read], make)

    async def _journal_table(self, call: _Call) -> _Answer:
        wanted, limit, read = _journal_filter(call), call.number(_CSV_LIMIT), await self._read_journal(call)
        assert limit is not None
        return _Answer(
            [_version(job, reading) for job, reading in read],
            lambda: to_csv(journal_page(read, wanted, None, limit)[0].entries),
        )

    async def _read_journal(self, call: _Call) -> list[Read]:
        if "id" in call.path:
            return [(call.job, await self._roots.read(call.job, whole=True))]
        jobs = list(call.jobs.values())
        return list(zip(jobs, await self._read_all(jobs, whole=True), strict=True))


def _journal_filter(call: _Call) -> JournalFilter:
    query = call.query
    return JournalFilter(query.get("kind"), query.get("person"), call.time("since"), call.time("until"))


def _no_checkpoint(checkpoint_id: int) -> ConfigError:
    hint = "the list of points has those that the history knows"
    return ConfigError("the checkpoint does not exist", hint=hint, checkpoint_id=checkpoint_id)


def _restore_options(call: _Call) -> RestoreOptions:
    positions = call.query.get("source_positions", "").splitlines()
    return RestoreOptions(
        call.member("sinks", SinkMode, SinkMode.RESTORE),
        frozenset(call.words("drop")),
        bool(call.flag("from_other_job")),
        frozenset(call.words("keep_tables")),
        GraphChanges(call.words("new_names"), tuple(each.strip() for each in positions if each.strip())),
        call.member("claim_mode", ClaimMode, ClaimMode.NO_CLAIM),
    )


def _value_of(reading: Reading[V], job: CatalogJob) -> V:
    """Returns the value of a call that the parameters of a request decide; an earlier one while the storage fails.

    Raises the error of the call, with the status 422 if the storage has answered: another value may do.
    """
    problem = reading.problem
    is_of_storage = isinstance(problem, StorageError | NotYetAvailable | InternalError)
    if reading.value is not None and (problem is None or is_of_storage):
        return reading.value
    if problem is None:
        raise NotYetAvailable("the answer is not made yet", hint="ask again", job=job.id)
    if is_of_storage:
        raise problem
    raise _Refused(422, problem)


def _version_of_plan(preview: RestorePreview) -> str:
    plan = preview.plan
    return repr((msgspec.structs.replace(plan, made_at="") if plan else None, preview.checks))


def _query(request: HttpRequest, names: set[str]) -> dict[str, str]:
    """Returns the parameters of a query. Raises ConfigError for an unknown one, and for one that is given twice."""
    found: dict[str, str] = {}
    for name, value in request.query_params.multi_items():
        if name not in names or name in found:
            raise ConfigError(
                "the query has a parameter that is unknown or given twice",
                hint=f"the parameters are: {', '.join(sorted(names)) or 'none'}",
                parameter=name[:100],
            )
        found[name] = value
    return found


def _version(job: CatalogJob, reading: Reading[Snapshot]) -> str:
    return f"{job.id} {reading.value.version if reading.value else ''} {_state(reading)}"


def _state(reading: Reading[object]) -> str:
    """Identifies whether a reading is current, and since when it is not."""
    return f"{reading.read_at} {reading.problem}" if reading.problem else str(reading.value is not None)


def _matches(headers: Headers, tag: str) -> bool:
    given = [each.strip().removeprefix("W/") for each in headers.get("if-none-match", "").split(",")]
    return f'"{tag}"' in given


def _encoded(made: object) -> bytes:
    # Bytes, because a text that a user wrote may have lone surrogates, which JSON escapes.
    return made.encode("utf-8", "replace") if isinstance(made, str) else encode_json(made).encode()


def error_response(error: Exception) -> Response:
    """Returns the answer to a request that failed."""
    status: int | None = None
    if isinstance(error, _Refused):
        status, error = error.status, error.error
    if not isinstance(error, StateflowError):
        log.error("unexpected error while answering a request", exc_info=error)
        error = InternalError("the answer could not be made", hint="report this with the log of the server")
    if status is None:
        status = next((_STATUS[kind] for kind in type(error).__mro__ if kind in _STATUS), 500)
    headers = {"cache-control": "no-store", **({"www-authenticate": "Bearer"} if status == 401 else {})}
    body = encode_json(ApiError(error_report(error)))
    return Response(body, status, headers, media_type="application/json")


class _Bodies:
    """The newest answers, bounded in bytes, and those that are being made."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._found: OrderedDict[str, Future[bytes]] = OrderedDict()
        self._size = 0

    def claim(self, tag: str) -> tuple[Future[bytes], bool]:
        """Returns the answer with this tag, and whether the caller must make it."""
        with self._lock:
            known = self._found.get(tag)
            if known is not None:
                self._found.move_to_end(tag)
                return known, False
            self._found[tag] = made = Future[bytes]()
            return made, True

    def keep(self, tag: str, body: bytes) -> None:
        """Adds an answer that was claimed, and forgets old ones if there are too many."""
        with self._lock:
            self._found[tag].set_result(body)
            self._size += len(body)
            for old, each in list(self._found.items()):
                if self._size <= _LARGEST_CACHE:
                    return
                if each.done():
                    del self._found[old]
                    self._size -= len(each.result())

    def give_up(self, tag: str, error: BaseException) -> None:
        """Forgets an answer that was claimed and could not be made."""
        with self._lock:
            self._found.pop(tag).set_exception(error if isinstance(error, Exception) else _interrupted())


def _interrupted() -> StateflowError:
    return NotYetAvailable("the answer was not made, because another request for it ended", hint="ask again")


class _SavepointCache:
    """Descriptions of savepoints, which are read again only if their documents or owners are others."""

    def __init__(self) -> None:
        self._known: dict[str, dict[str, tuple[str, SavepointDescription]]] = {}

    def read(self, storage: Storage) -> tuple[tuple[SavepointDescription, ...], bool]:
        """Returns the complete savepoints in a job root, newest first, and whether it has more than were read."""
        names = [name for name in storage.folders(SAVEPOINTS) if savepoint_file(f"{SAVEPOINTS}{name}/{SAVEPOINT}")]
        folders = [savepoint_folder(name) for name in names[-_LONGEST_SAVEPOINT_LIST:]]
        known = self._known.get(storage.uri, {})
        with ThreadPoolExecutor(_SAVEPOINT_READERS) as pool:
            described = pool.map(lambda folder: _describe_savepoint(storage, folder, known.get(folder)), folders)
            found = {folder: each for folder, each in zip(folders, described, strict=True) if each is not None}
        self._known[storage.uri] = found
        ordered = sorted((each for _, each in found.values()), key=lambda each: each.report.made_at, reverse=True)
        return tuple(ordered), len(names) > _LONGEST_SAVEPOINT_LIST


def _describe_savepoint(
    storage: Storage, folder: str, known: tuple[str, SavepointDescription] | None
) -> tuple[str, SavepointDescription] | None:
    """Returns a savepoint with the version of its document and claims; None if it is not complete, or damaged."""
    blob = storage.info(f"{folder}{SAVEPOINT}")
    if blob is None:
        return None
    claims = [each.key for each in storage.list(f"{folder}{CLAIMS}")]
    version = f"{blob.size} {blob.modified_ms} {blob.version} {claims[-1:]}"
    if known is not None and known[0] == version:
        return known
    try:
        stored = read_savepoint(storage, folder)
        confirmed = stored is not None and is_confirmed(storage, stored)
        return (version, describe_contents(stored)) if stored is not None and confirmed else None
    except (DataError, ConfigError) as e:
        log.warning("skipped savepoint %s: %s", folder.rstrip("/"), e)
        return None


# -- application ------------------------------------------------------------------------------------------------------


def make_app(
    catalog: Catalog,
    policy: AccessPolicy,
    *,
    roots: Roots | None = None,
    static: Path | None = STATIC,
    hosts: Set[str] = frozenset(),
    dags: Dags | None = None,
) -> Starlette:
    """Returns the application of the pages.

    Args:
        catalog: the job roots.
        policy: who may read them.
        roots: follows the job roots; by default with the default limits.
        static: the files of the pages; None to serve none.
        hosts: the names of hosts that a request may name; empty for any.
        dags: the DAGs that work on the jobs; None if nobody knows them.
    """
    api = PagesApi(catalog, policy, roots or Roots(), dags)
    # A redirect would go to whatever host the request names.
    routes: list[BaseRoute] = [Mount(f"/{API}", app=Router(api.routes(), redirect_slashes=False))]
    if static is not None:
        routes.append(Mount("/", app=_Files(static, policy)))
    app = Starlette(
        routes=routes, exception_handlers={HTTPException: _answer_http_error, Exception: _answer_unexpected}
    )
    app.router.redirect_slashes = False
    if hosts:
        app.add_middleware(_HostCheck, hosts=hosts)
    app.add_middleware(_SafeHeaders)
    return app


async def _answer_http_error(request: HttpRequest, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    if error.status_code == 405:
        return error_response(_Refused(405, ConfigError("the pages are read-only", hint="send a GET request")))
    return _nothing_here(error.status_code)


def _nothing_here(status: int) -> Response:
    hint = f"{API}/openapi.json lists the paths"
    return error_response(_Refused(status, ConfigError("there is nothing at this path", hint=hint)))


async def _answer_unexpected(request: HttpRequest, error: Exception) -> Response:
    return error_response(error)


class _Files:
    """The files of the pages; a sentence if they are not there."""

    def __init__(self, folder: Path, policy: AccessPolicy) -> None:
        self._folder = folder
        self._policy = policy
        self._files = StaticFiles(directory=folder, check_dir=False)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if not self._policy.serves_files_to_all:
            try:
                await self._policy.admit(HttpRequest(scope, receive))
            except Exception as e:
                await error_response(e)(scope, receive, send)
                return
        if not (self._folder / "index.html").is_file():
            await PlainTextResponse(NOT_BUILT, 404)(scope, receive, send)
            return
        if self._files.get_path(scope) == ".":
            await (await self._files.get_response("index.html", scope))(scope, receive, send)
            return
        await self._files(scope, receive, send)


class _SafeHeaders:
    """Adds the headers that let a browser do nothing with an answer but what it is for."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        # Now: routing changes the scope. Not by the answer's type: the answer that a page has not changed has none, and
        # its policy replaces the page's.
        is_data = scope.get("path", "").removeprefix(scope.get("root_path", "")).startswith(f"/{API}/")

        async def send_safely(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                headers["content-security-policy"] = DATA_POLICY if is_data else PAGE_POLICY
                for name, value in _HEADERS.items():
                    headers[name] = value
                if "cache-control" not in headers:
                    headers["cache-control"] = "no-cache"
            await send(message)

        await self._app(scope, receive, send_safely)


class _HostCheck:
    """Refuses requests that name another host than this one.

    Without it, the page of another site whose name resolves to this address could read the answers.
    """

    def __init__(self, app: ASGIApp, hosts: Set[str]) -> None:
        self._app = app
        self._hosts = frozenset(host.lower() for host in hosts)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        given = Headers(scope=scope).getlist("host") if scope["type"] == "http" else []
        if len(given) != 1 or _name_of(given[0]) not in self._hosts:
            error = Unauthorized(
                "the request names another host than this server",
                hint="use the address that the server has printed; behind a proxy, start it with --allowed-host NAME",
            )
            await error_response(_Refused(421, error))(scope, receive, send)
            return
        await self._app(scope, receive, send)


def _name_of(host: str) -> str:
    """Returns the name in a header Host, without the port."""
    if host.startswith("["):
        return host.partition("]")[0][1:].lower()
    return host.partition(":")[0].lower()
