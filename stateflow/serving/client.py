"""The client of state servers: `QueryableStateClient`, and `AsyncQueryableStateClient` for asyncio."""

from __future__ import annotations

import asyncio
import concurrent.futures
import os
import ssl
import threading
from collections.abc import AsyncIterator, Callable, Generator, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from functools import partial
from types import TracebackType
from typing import Self, TypedDict, TypeVar, Unpack

import httpx

from stateflow.clock import Clock, SystemClock, to_milliseconds
from stateflow.errors import NotYetAvailable, QueryError, UnknownJob, UnknownKey
from stateflow.serving.lookups import LARGEST_ANSWER, PAGE, Format, ScanRequest, StateDescription
from stateflow.serving.protocol import QueryProtocol
from stateflow.serving.registry import Registry, ServerLease
from stateflow.serving.steps import (
    HttpCall,
    HttpReply,
    ListingPosition,
    QueryEntry,
    QueryOptions,
    QueryResult,
    ReadLeases,
    Result,
    Step,
    WaitStep,
)
from stateflow.storage import open_storage
from stateflow.storage.paths import FORMAT

R = TypeVar("R")

_LARGEST = 2 * LARGEST_ANSWER
_CONNECT_SECONDS = 3.0
_GRACE = timedelta(seconds=20)
"""How much longer than its time a query may take: its last request, and a storage that does not answer."""
FAILURES = (httpx.HTTPError, httpx.InvalidURL, UnicodeError, TimeoutError)
"""Errors of sending a request; UnicodeError for a name of a host that cannot be encoded."""


class _Leases:
    """Reads the servers of a job root, in the client's thread or another one."""

    def __init__(self, job_root: str, clock: Clock) -> None:
        self._storage = open_storage(job_root)
        self._registry = Registry(self._storage, clock)

    def read(self) -> list[ServerLease]:
        """Returns the leases of the servers; raises UnknownJob if there is no job."""
        leases = self._registry.read()
        if not leases and self._storage.size(FORMAT) is None:
            raise UnknownJob("the job root has no job", hint="check the path", job_root=self._storage.uri)
        return leases


class _Worker:
    """The event loop and the connections of a client in one process.

    Args:
        client: carries out queries.
    """

    def __init__(self, client: AsyncQueryableStateClient) -> None:
        self.client = client
        # Requests run in an event loop: only there has a call a deadline as a whole, however its bytes trickle in.
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="stateflow-query", daemon=True)
        self._thread.start()

    def submit(self, steps: Generator[Step, Result, R]) -> concurrent.futures.Future[R]:
        """Starts a query; not called during or after `close`."""
        return asyncio.run_coroutine_threadsafe(self.client.run(steps), self._loop)

    def close(self) -> None:
        """Cancels the queries, and ends the thread."""
        asyncio.run_coroutine_threadsafe(self._end(), self._loop).result()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    async def _end(self) -> None:
        queries = asyncio.all_tasks() - {asyncio.current_task()}
        for query in queries:
            query.cancel()
        await asyncio.gather(*queries, return_exceptions=True)
        await self.client.close()


@dataclass
class _OfProcess:
    """A client's worker in one process: after a fork, locks may stay locked, and threads do not exist."""

    lock: threading.Lock = field(default_factory=threading.Lock)
    worker: _Worker | None = None


class QueryableStateClient:
    """Queries the committed state of a job. Threads may share a client; `close` it, or use it in a `with` block.

    A process that is forked may use the client, too: it makes connections of its own.

    Args:
        job_root: path or URI of the job root, which has the addresses of the job's state servers.
        token: the token of the servers; empty for none.
        timeout: how long a query may take, with its repetitions: servers may be restarting, and a checkpoint that is
            requested with `at_least` may not be committed yet.
        tls: for servers with a proxy that has TLS: the authorities that the client trusts, and the certificate that it
            presents; None for the public authorities, and no certificate.
    """

    def __init__(
        self,
        job_root: str,
        *,
        token: str = "",
        timeout: timedelta = timedelta(seconds=30),
        tls: ssl.SSLContext | None = None,
    ) -> None:
        self._new_client = partial(AsyncQueryableStateClient, job_root, token=token, timeout=timeout, tls=tls)
        # Before the loop runs: it raises QueryError for wrong arguments.
        self._first, self._owner = self._new_client(), os.getpid()
        self._timeout, self._is_closed = timeout, False
        # After a fork, the parent's loop is never used, and kept: closing it would close descriptors that both share.
        self._processes: dict[int, _OfProcess] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Closes the connections; queries of other threads raise QueryError. A closed client may be closed again."""
        own = self._own
        with own.lock:
            self._is_closed = True
            worker, own.worker = own.worker, None
            if worker is not None:
                worker.close()

    def states(self) -> list[StateDescription]:
        """Returns the states that can be queried. Raises UnknownJob or NotYetAvailable."""
        return self._run(lambda protocol: protocol.states()).states

    def get(self, name: str, key: object, map_key: object = None, **options: Unpack[QueryOptions]) -> QueryResult:
        """Returns the value of a key.

        Args:
            name: the queryable name of the state.
            key: a tuple with a value for each key column, or the value if there is one column.
            map_key: for a map state, the key in the map.
            options: see `QueryOptions`.

        Raises:
            UnknownJob: the job root has no job.
            UnknownState: no state has the name.
            UnknownKey: the key has no value at the checkpoint.
            WrongKeyType: the key is not of the recorded types.
            NotYetAvailable: no server answered in time, or none has a checkpoint that is as new as requested.
            CheckpointNotServed: servers no longer have the checkpoint `exactly` open, or not for a key that has moved.
            Unauthorized: the token is missing or wrong.
            QueryError: the client is closed.
        """
        (result,) = self.get_many(name, [key], None if map_key is None else [map_key], **options)
        return _found(result, name, key, map_key)

    def get_many(
        self,
        name: str,
        keys: Sequence[object],
        map_keys: Sequence[object] | None = None,
        **options: Unpack[QueryOptions],
    ) -> list[QueryResult]:
        """Returns the values of many keys, in order; `found` is False for a key without a value.

        Servers open a new checkpoint at different times: each result names its own. With `exactly`, all are
        of one checkpoint.

        Args:
            name: the queryable name of the state.
            keys: the keys, as for `get`.
            map_keys: for a map state, the key in the map for each of `keys`.
            options: see `QueryOptions`.

        Raises as `get` does, but not UnknownKey.
        """
        return self._run(lambda protocol: protocol.get_many(name, keys, map_keys, options))

    def scan(
        self, name: str, key: object, prefix: str | None = None, **options: Unpack[QueryOptions]
    ) -> Iterator[QueryEntry]:
        """Yields the entries of one key's map, in order of the map's keys, page by page.

        Without `exactly`, later pages may be of a later checkpoint: each entry names its own.

        Args:
            name: the queryable name of a map state.
            key: the key, as for `get`.
            prefix: only entries whose map key begins with this text; for maps with str keys.
            options: see `QueryOptions`.

        Raises as `get_many` does.
        """
        after = ""
        while True:
            page = ScanRequest(state=name, key=[], prefix=prefix, after=after, limit=PAGE)
            entries, after = self._run(partial(QueryProtocol.scan_page, name=name, key=key, page=page, options=options))
            yield from entries
            if not after:
                return

    def keys(self, name: str, **options: Unpack[QueryOptions]) -> Iterator[QueryEntry]:
        """Yields the keys that have a value, in order of key groups, page by page; see `scan`."""
        at: ListingPosition | None = ListingPosition()
        while at is not None:
            entries, at = self._run(partial(QueryProtocol.keys_page, name=name, at=at, limit=PAGE, options=options))
            yield from entries

    def _run(self, query: Callable[[QueryProtocol], Generator[Step, Result, R]]) -> R:
        own = self._own
        with own.lock:
            if self._is_closed:
                raise _closed()
            if own.worker is None:
                own.worker = _Worker(self._first if os.getpid() == self._owner else self._new_client())
            answer = own.worker.submit(query(own.worker.client.protocol))
        try:
            return answer.result((self._timeout + _GRACE).total_seconds())
        except concurrent.futures.CancelledError:
            raise _closed() from None
        except TimeoutError:
            if not answer.cancel():
                raise
            raise NotYetAvailable(
                "the query did not end in time",
                hint="check the storage of the job root",
                timeout_ms=to_milliseconds(self._timeout.total_seconds()),
            ) from None

    @property
    def _own(self) -> _OfProcess:
        return self._processes.setdefault(os.getpid(), _OfProcess())


class AsyncQueryableStateClient:
    """`QueryableStateClient` for asyncio: its methods are coroutines and asynchronous iterators.

    Args:
        job_root: as for `QueryableStateClient`.
        token: the token of the servers; empty for none.
        timeout: how long a query may take, with its repetitions.
        tls: as for `QueryableStateClient`.

    Attributes:
        protocol: the steps of its queries.
    """

    def __init__(
        self,
        job_root: str,
        *,
        token: str = "",
        timeout: timedelta = timedelta(seconds=30),
        tls: ssl.SSLContext | None = None,
    ) -> None:
        self._clock = SystemClock()
        self._leases = _Leases(job_root, self._clock)
        self.protocol = QueryProtocol(self._clock, timeout)
        self._http = httpx.AsyncClient(**_http_options(token, tls))

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Closes the connections."""
        await self._http.aclose()

    async def states(self) -> list[StateDescription]:
        """Returns the states that can be queried. Raises UnknownJob or NotYetAvailable."""
        return (await self.run(self.protocol.states())).states

    async def get(self, name: str, key: object, map_key: object = None, **options: Unpack[QueryOptions]) -> QueryResult:
        """Returns the value of a key; arguments and errors as for `QueryableStateClient.get`."""
        (result,) = await self.get_many(name, [key], None if map_key is None else [map_key], **options)
        return _found(result, name, key, map_key)

    async def get_many(
        self,
        name: str,
        keys: Sequence[object],
        map_keys: Sequence[object] | None = None,
        **options: Unpack[QueryOptions],
    ) -> list[QueryResult]:
        """Returns the values of many keys; arguments and errors as for `QueryableStateClient.get_many`."""
        return await self.run(self.protocol.get_many(name, keys, map_keys, options))

    async def scan(
        self, name: str, key: object, prefix: str | None = None, **options: Unpack[QueryOptions]
    ) -> AsyncIterator[QueryEntry]:
        """Yields the entries of one key's map; arguments and errors as for `QueryableStateClient.scan`."""
        after = ""
        while True:
            page = ScanRequest(state=name, key=[], prefix=prefix, after=after, limit=PAGE)
            entries, after = await self.run(self.protocol.scan_page(name, key, page, options))
            for entry in entries:
                yield entry
            if not after:
                return

    async def keys(self, name: str, **options: Unpack[QueryOptions]) -> AsyncIterator[QueryEntry]:
        """Yields the keys that have a value; see `QueryableStateClient.keys`."""
        at: ListingPosition | None = ListingPosition()
        while at is not None:
            entries, at = await self.run(self.protocol.keys_page(name, at, PAGE, options))
            for entry in entries:
                yield entry

    async def run(self, steps: Generator[Step, Result, R]) -> R:
        """Carries out the steps of a query of `protocol`, and returns its result. Raises QueryError if closed."""
        if self._http.is_closed:
            raise _closed()
        result: Result = None
        while True:
            try:
                step = steps.send(result)
            except StopIteration as done:
                value: R = done.value
                return value
            if isinstance(step, ReadLeases):
                # The storage may be slow, and its client blocks.
                result = await asyncio.to_thread(self._leases.read)
            elif isinstance(step, WaitStep):
                await asyncio.sleep(step.seconds)
                result = None
            else:
                result = list(await asyncio.gather(*map(self._call, step)))

    async def _call(self, call: HttpCall) -> HttpReply:
        body = _Body()
        try:
            async with (
                asyncio.timeout(call.seconds),
                self._http.stream(_method(call), call.url, content=call.body, timeout=_timeout(call)) as answer,
            ):
                async for piece in answer.aiter_raw():
                    body.add(piece)
                return HttpReply(answer.status_code, body.content())
        except FAILURES as e:
            return HttpReply(failure=_reason(e))


class _Body:
    """The body of one answer, which has a largest size."""

    def __init__(self) -> None:
        self._pieces: list[bytes] = []
        self._size = 0

    def add(self, piece: bytes) -> None:
        """Adds bytes that have arrived; raises HTTPError for an answer that is too large."""
        self._pieces.append(piece)
        self._size += len(piece)
        if self._size > _LARGEST:
            raise httpx.HTTPError(f"the answer has more than {_LARGEST} bytes")

    def content(self) -> bytes:
        """Returns the whole body."""
        return b"".join(self._pieces)


class _HttpOptions(TypedDict):
    headers: dict[str, str]
    limits: httpx.Limits
    trust_env: bool
    verify: ssl.SSLContext | bool


def _http_options(token: str, tls: ssl.SSLContext | None) -> _HttpOptions:
    headers = {"accept": Format.MSGPACK.value, "content-type": "application/json", "accept-encoding": "identity"}
    if token:
        headers["authorization"] = f"Bearer {token}"
    # Redirects are not followed, and variables of the environment do not select a proxy: the token goes to the servers
    # of the job root only.
    return {
        "headers": headers,
        "limits": httpx.Limits(max_connections=64, max_keepalive_connections=32, keepalive_expiry=30.0),
        "trust_env": False,
        "verify": True if tls is None else tls,
    }


def _timeout(call: HttpCall) -> httpx.Timeout:
    return httpx.Timeout(call.seconds, connect=min(_CONNECT_SECONDS, call.seconds))


def _reason(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}"[:200]


def _method(call: HttpCall) -> str:
    return "GET" if call.body is None else "POST"


def _closed() -> QueryError:
    return QueryError("the client is closed", hint="make a new one, or close it after the last query")


def _found(result: QueryResult, name: str, key: object, map_key: object) -> QueryResult:
    if result.found:
        return result
    facts = {} if map_key is None else {"map_key": repr(map_key)[:200]}
    raise UnknownKey(
        "the state has no value for the key",
        name=name,
        key=repr(key)[:200],
        **facts,
        checkpoint_id=result.checkpoint_id,
    )
