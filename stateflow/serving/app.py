"""The HTTP interface of a state server, as an ASGI application."""

from __future__ import annotations

import asyncio
import contextlib
import hmac
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import TypeVar

import anyio
import msgspec
from starlette.applications import Starlette
from starlette.requests import ClientDisconnect
from starlette.requests import Request as HttpRequest
from starlette.responses import Response
from starlette.routing import Route

from stateflow.clock import to_milliseconds
from stateflow.errors import (
    CheckpointNotServed,
    ConfigError,
    CorruptFile,
    NotYetAvailable,
    QueryError,
    QueryTooLarge,
    StateError,
    StateflowError,
    Unauthorized,
    UnknownKey,
    UnknownState,
    WrongKeyType,
)
from stateflow.serving.follower import Follower, ServedCheckpoint
from stateflow.serving.lookups import (
    LARGEST_REQUEST,
    Format,
    GetRequest,
    KeysRequest,
    Lookups,
    ScanRequest,
    StateDescription,
    StatesAnswer,
    encode_entries,
    encode_error,
    encode_keys,
    encode_values,
)
from stateflow.types.decoders import largest_size

R = TypeVar("R", GetRequest, ScanRequest, KeysRequest)

_STATUS: Mapping[type[StateflowError], int] = {
    Unauthorized: 401,
    UnknownState: 404,
    UnknownKey: 404,
    WrongKeyType: 422,
    ConfigError: 422,
    StateError: 422,
    QueryTooLarge: 413,
    CheckpointNotServed: 410,
    NotYetAvailable: 503,
    QueryError: 400,
}
_MEMORY = 64 << 20
"""Bytes of memory that a request may take when it is decoded."""
_INLINE_KEYS, _INLINE_BYTES = 100, 256 << 10
"""A request for more keys, or for more bytes of values, runs in a thread, so that others need not wait for it."""


@dataclass(frozen=True)
class AppSettings:
    """Limits of the interface.

    Attributes:
        token: the token of clients; empty for none.
        largest_request: bytes of a request's body.
        read_seconds: maximum duration of reading a request's body, and of each write of an answer.
        threads: number of long look-ups that run concurrently.
    """

    token: str = ""
    largest_request: int = LARGEST_REQUEST
    read_seconds: float = 10.0
    threads: int = 4


class StateApp:
    """The endpoints of a state server.

    Args:
        follower: has the open checkpoints.
        settings: limits and token.
    """

    def __init__(self, follower: Follower, settings: AppSettings) -> None:
        self._follower = follower
        self._settings = settings
        self._token = settings.token.encode()
        self._threads: anyio.CapacityLimiter | None = None
        self._answers: dict[str, int] = {}
        self._keys = 0

    def asgi(self) -> Starlette:
        """Returns the ASGI application."""
        app = Starlette(
            routes=[
                Route("/v1/get", self._endpoint(self._get), methods=["POST"]),
                Route("/v1/scan", self._endpoint(self._scan), methods=["POST"]),
                Route("/v1/keys", self._endpoint(self._list_keys), methods=["POST"]),
                Route("/v1/states", self._endpoint(self._states), methods=["GET"]),
                Route("/metrics", self._endpoint(self._metrics), methods=["GET"]),
                Route("/v1/health", self._health, methods=["GET"]),
            ]
        )
        # A redirect would go to whatever host the request names.
        app.router.redirect_slashes = False
        return app

    def _endpoint(
        self, answer: Callable[[HttpRequest], Awaitable[Response]]
    ) -> Callable[[HttpRequest], Awaitable[Response]]:
        async def endpoint(request: HttpRequest) -> Response:
            try:
                self._authorize(request)
                response = await answer(request)
            except StateflowError as e:
                response = self._failed(e)
            self._count(response.status_code)
            return response

        return endpoint

    def _authorize(self, request: HttpRequest) -> None:
        given = request.headers.get("authorization", "")
        if self._token and not hmac.compare_digest(given.encode(), b"Bearer " + self._token):
            raise Unauthorized(
                "the token is missing or wrong",
                hint="pass the server's token to the client, or send it as Authorization: Bearer TOKEN",
            )

    def _failed(self, error: StateflowError) -> Response:
        if isinstance(error, CorruptFile):
            self._follower.report_damage()
        status = next((_STATUS[kind] for kind in type(error).__mro__ if kind in _STATUS), 500)
        headers = {"www-authenticate": "Bearer"} if status == 401 else None
        return Response(encode_error(error), status, headers, media_type=Format.JSON.value)

    async def _get(self, http: HttpRequest) -> Response:
        request, wanted = await self._read(http, GetRequest), _format(http)
        self._keys += len(request.keys)

        def answer(checkpoint: ServedCheckpoint, largest: int | None = None) -> bytes:
            lookups = Lookups(checkpoint, request)
            values = lookups.get(request, largest)
            return encode_values(checkpoint.checkpoint_id, values, lookups.state.reader, wanted)

        if len(request.keys) <= _INLINE_KEYS:
            with (
                contextlib.suppress(QueryTooLarge),
                self._follower.checkpoint(request.at_least, request.exactly) as checkpoint,
            ):
                return Response(answer(checkpoint, _INLINE_BYTES), media_type=wanted.value)
        return await self._answer(request, answer, wanted)

    async def _scan(self, http: HttpRequest) -> Response:
        request, wanted = await self._read(http, ScanRequest), _format(http)

        def answer(checkpoint: ServedCheckpoint) -> bytes:
            lookups = Lookups(checkpoint, request)
            return encode_entries(checkpoint.checkpoint_id, lookups.scan(request), lookups.state.reader, wanted)

        return await self._answer(request, answer, wanted)

    async def _list_keys(self, http: HttpRequest) -> Response:
        request, wanted = await self._read(http, KeysRequest), _format(http)

        def answer(checkpoint: ServedCheckpoint) -> bytes:
            lookups = Lookups(checkpoint, request)
            return encode_keys(checkpoint.checkpoint_id, lookups.keys(request), lookups.state.key_names, wanted)

        return await self._answer(request, answer, wanted)

    async def _answer(self, request: R, answer: Callable[[ServedCheckpoint], bytes], wanted: Format) -> Response:
        def run() -> bytes:
            with self._follower.checkpoint(request.at_least, request.exactly) as checkpoint:
                return answer(checkpoint)

        if self._threads is None:
            self._threads = anyio.CapacityLimiter(self._settings.threads)
        return Response(await anyio.to_thread.run_sync(run, limiter=self._threads), media_type=wanted.value)

    async def _states(self, http: HttpRequest) -> Response:
        with self._follower.checkpoint() as checkpoint:
            return Response(msgspec.json.encode(describe(checkpoint)), media_type=Format.JSON.value)

    async def _health(self, http: HttpRequest) -> Response:
        newest, problem = self._follower.newest, self._follower.problem
        status = "starting" if newest is None else "degraded" if problem else "ok"
        body = {"status": status, "checkpoint_id": newest.checkpoint_id if newest else 0}
        if problem:
            body["problem"] = problem.code
        return Response(msgspec.json.encode(body), 503 if newest is None else 200, media_type=Format.JSON.value)

    async def _metrics(self, http: HttpRequest) -> Response:
        newest, problem = self._follower.newest, self._follower.problem
        lines = [
            "# TYPE stateflow_server_checkpoint_id gauge",
            f"stateflow_server_checkpoint_id {newest.checkpoint_id if newest else 0}",
            "# TYPE stateflow_server_follows gauge",
            f"stateflow_server_follows {int(problem is None)}",
            "# TYPE stateflow_server_keys_total counter",
            f"stateflow_server_keys_total {self._keys}",
            "# TYPE stateflow_server_answers_total counter",
            *(f'stateflow_server_answers_total{{status="{s}"}} {n}' for s, n in sorted(self._answers.items())),
        ]
        return Response("\n".join(lines) + "\n", media_type="text/plain; version=0.0.4")

    def _count(self, status: int) -> None:
        self._answers[str(status)] = self._answers.get(str(status), 0) + 1

    async def _read(self, request: HttpRequest, kind: type[R]) -> R:
        data = await self._body(request)
        try:
            if largest_size(data) > _MEMORY:
                raise QueryTooLarge("the request would take too much memory", hint="ask for fewer keys at once")
            return msgspec.json.decode(data, type=kind)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as e:
            raise ConfigError(
                "the request is not of the documented form", hint="see the guide about queries", reason=str(e)[:200]
            ) from e

    async def _body(self, request: HttpRequest) -> bytes:
        limit = self._settings.largest_request
        pieces, size = [], 0
        try:
            async with asyncio.timeout(self._settings.read_seconds):
                async for piece in request.stream():
                    size += len(piece)
                    if size > limit:
                        raise QueryTooLarge(
                            "the request is too large", hint="ask for fewer keys at once", limit_bytes=limit
                        )
                    pieces.append(piece)
        except (TimeoutError, ClientDisconnect) as e:
            waited = to_milliseconds(self._settings.read_seconds)
            raise QueryError("the request did not arrive in time", timeout_ms=waited) from e
        return b"".join(pieces)


def describe(checkpoint: ServedCheckpoint) -> StatesAnswer:
    """Returns the states that can be queried, in order of their names."""
    states = [
        StateDescription(
            name=name,
            operator=state.operator,
            state=state.schema.name,
            kind=state.schema.kind,
            value_type=state.schema.value_type,
            key_names=list(state.key_names),
            key_types=list(state.key_types),
            map_key_type=state.schema.key_type,
        )
        for name, state in sorted(checkpoint.states.items())
        if state is not None
    ]
    return StatesAnswer(
        checkpoint_id=checkpoint.checkpoint_id, max_parallelism=checkpoint.max_parallelism, states=states
    )


def _format(request: HttpRequest) -> Format:
    return Format.from_accept_header(request.headers.get("accept", ""))
