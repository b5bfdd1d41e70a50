"""The application of the pages: a read-only JSON API, and the files of the pages.

The same application is served by `stateflow ui` and mounted by the plugin of Airflow: a catalog says which job roots
there are, and a policy who may read them. All addresses are relative, so that it works below any prefix.

An answer follows from the address, the versions of the job roots and the program that makes it, which make its ETag. So
a request with the ETag of the answer before is answered without making it again, and so is one for an answer that is
still in memory.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
from collections.abc import Awaitable, Callable, Set
from pathlib import Path

from starlette.applications import Starlette
from starlette.datastructures import Headers, MutableHeaders
from starlette.exceptions import HTTPException
from starlette.requests import Request as HttpRequest
from starlette.responses import PlainTextResponse, Response
from starlette.routing import BaseRoute, Mount, Route, Router
from starlette.staticfiles import StaticFiles
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from stateflow.errors import ConfigError, Unauthorized
from stateflow.helpers import installed_version
from stateflow.ui.access import AccessPolicy, Viewer
from stateflow.ui.answers import Answer, Bodies, Handler, Refused, error_response, matches, nothing_here
from stateflow.ui.checkpoints import CHECKPOINT_ENDPOINTS, CheckpointEndpoints
from stateflow.ui.dags import DAG_ENDPOINTS, DagEndpoints, Dags
from stateflow.ui.jobs import JOB_ENDPOINTS, JobEndpoints
from stateflow.ui.journal import JOURNAL_ENDPOINTS, JournalEndpoints
from stateflow.ui.openapi import API, CSV, Endpoint, to_document
from stateflow.ui.requests import Call, read_query
from stateflow.ui.restores import RESTORE_ENDPOINTS, RestoreEndpoints
from stateflow.ui.roots import Catalog, CatalogJob, Roots
from stateflow.ui.runs import RUN_ENDPOINTS, RunEndpoints, StoredGraphs
from stateflow.ui.savepoints import SAVEPOINT_ENDPOINTS, SavepointEndpoints
from stateflow.ui.timeline import TIMELINE_ENDPOINTS, TimelineEndpoints

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

ENDPOINTS = (
    *JOB_ENDPOINTS,
    *CHECKPOINT_ENDPOINTS,
    *TIMELINE_ENDPOINTS,
    *RUN_ENDPOINTS,
    *SAVEPOINT_ENDPOINTS,
    *RESTORE_ENDPOINTS,
    *JOURNAL_ENDPOINTS,
)
"""All endpoints but the document about them, and those that need DAGs (`DAG_ENDPOINTS`)."""


class PagesApi:
    """The endpoints.

    Args:
        catalog: the job roots.
        policy: who may read them.
        roots: follows the job roots.
        dags: the DAGs that work on the jobs; None if they are not known.
    """

    def __init__(self, catalog: Catalog, policy: AccessPolicy, roots: Roots, dags: Dags | None = None) -> None:
        self._catalog = catalog
        self._policy = policy
        graphs = StoredGraphs(roots)
        jobs = JobEndpoints(catalog, roots, graphs)
        self._handlers: dict[str, Handler] = {
            **jobs.handlers(),
            **CheckpointEndpoints(roots).handlers(),
            **TimelineEndpoints(catalog, roots).handlers(),
            **RunEndpoints(catalog, roots, graphs).handlers(),
            **SavepointEndpoints(roots).handlers(),
            **RestoreEndpoints(roots).handlers(),
            **JournalEndpoints(roots).handlers(),
            **(DagEndpoints(dags, jobs).handlers() if dags else {}),
        }
        self._endpoints = (*ENDPOINTS, *(DAG_ENDPOINTS if dags else ()))
        self._bodies = Bodies()
        self._document = to_document(self._endpoints).encode()
        # Of the same job roots, another version of stateflow makes other answers. The document also tells apart two
        # states of a program that is being changed.
        self._program = [installed_version(), hashlib.sha256(self._document).hexdigest()]

    def routes(self) -> list[BaseRoute]:
        """Returns the routes of the endpoints, relative to `API`."""
        routes: list[BaseRoute] = [
            Route(f"/{each.path}", self._endpoint(each), methods=["GET"]) for each in self._endpoints
        ]
        document = Route("/openapi.json", self._answer_document, methods=["GET"])
        return [*routes, document, Route("/{rest:path}", self._answer_nothing, methods=["GET"])]

    def _endpoint(self, endpoint: Endpoint) -> Callable[[HttpRequest], Awaitable[Response]]:
        make = self._handlers[endpoint.path]
        names = {each.name for each in endpoint.parameters}

        async def answer(request: HttpRequest) -> Response:
            try:
                viewer = await self._policy.admit(request)
                call = Call(viewer, self._readable(viewer), request.path_params, read_query(request, names))
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
        return nothing_here(404)

    def _readable(self, viewer: Viewer) -> dict[str, CatalogJob]:
        return {id: job for id, job in self._catalog.jobs().items() if viewer.may_read(job)}

    async def _respond(self, request: HttpRequest, endpoint: Endpoint, answer: Answer) -> Response:
        address = request.url.path, sorted(request.query_params.multi_items())
        parts = (self._program, address, list(answer.versions))
        tag = hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:32]
        headers = {"etag": f'W/"{tag}"', "cache-control": "private, no-cache"}
        if matches(request.headers, tag):
            return Response(status_code=304, headers=headers)
        body = await self._body(tag, answer)
        if endpoint.output == CSV:
            headers["content-disposition"] = 'attachment; filename="journal.csv"'
            return Response(body, headers=headers, media_type=f"{CSV}; charset=utf-8")
        return Response(body, headers=headers, media_type="application/json")

    async def _body(self, tag: str, answer: Answer) -> bytes:
        waiting = asyncio.wrap_future(self._bodies.body(tag, answer))
        # Not awaited itself: the end of this request would cancel it for the others.
        await asyncio.wait([waiting])
        return waiting.result()


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
        dags: the DAGs that work on the jobs; None if they are not known.
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
        return error_response(Refused(405, ConfigError("the pages are read-only", hint="send a GET request")))
    return nothing_here(error.status_code)


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
            await error_response(Refused(421, error))(scope, receive, send)
            return
        await self._app(scope, receive, send)


def _name_of(host: str) -> str:
    """Returns the name in a header Host, without the port."""
    if host.startswith("["):
        return host.partition("]")[0][1:].lower()
    return host.partition(":")[0].lower()
