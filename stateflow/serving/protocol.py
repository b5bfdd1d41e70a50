"""The protocol of a client, without I/O: generators that yield steps, and receive their results.

The synchronous and the asynchronous client carry out the same steps. A query goes to the servers that have the key
groups of its keys. It is repeated, with the newest leases, while a server cannot be reached, does not have a key group,
or has no checkpoint that is as new as requested, until the time of the query is over.

An answer may be of a proxy, of another version, or forged: one that is not of the documented form, or not of a
checkpoint that was asked for, is an error.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Generator, Iterable, Sequence
from datetime import timedelta
from typing import TypedDict, TypeVar

import msgspec

from stateflow import errors
from stateflow.clock import Clock
from stateflow.errors import NotYetAvailable, QueryError, QueryTooLarge, StateflowError, UnknownState, WrongKeyType
from stateflow.serving.lookups import (
    LARGEST_REQUEST,
    ErrorAnswer,
    GetRequest,
    KeysRequest,
    MsgpackPage,
    MsgpackValues,
    QueryRequest,
    ScanRequest,
    StateDescription,
    StatesAnswer,
    listing_group,
    page_token,
)
from stateflow.serving.registry import ServerLease
from stateflow.serving.steps import (
    HttpCall,
    HttpReply,
    Knowledge,
    ListingPosition,
    QueryEntry,
    QueryOptions,
    QueryResult,
    ReadLeases,
    Result,
    Step,
    WaitStep,
)
from stateflow.types.key_values import Scalar, convert_key, convert_map_key, group_of, plain_key
from stateflow.types.serializers import decode_untyped, value_serializer

CHUNK = 1_000
"""Keys of one HTTP request; a query for more makes several."""
_FIRST_PAUSE, _LONGEST_PAUSE = 0.05, 1.0
_SHORTEST_CALL, _LONGEST_CALL = 1.0, 10.0
"""Seconds that an HTTP request may take: another server may answer while one hangs."""


class _Attempts:
    """The time of one query, and how often each server failed it."""

    def __init__(self, clock: Clock, timeout: timedelta) -> None:
        self._clock = clock
        self._until = clock.monotonic() + timeout.total_seconds()
        self._pause = _FIRST_PAUSE
        self._failures: Counter[str] = Counter()
        self.error: StateflowError | None = None

    def add_failure(self, url: str, error: StateflowError) -> None:
        """Records that a server could not answer."""
        self._failures[url] += 1
        self.error = error

    def best(self, servers: Sequence[ServerLease]) -> ServerLease:
        """Returns the server that failed least, the newest one of several.

        The lease of a dead server stays for a while; an older server may be about to drop the key group.
        """
        return min(reversed(servers), key=lambda lease: self._failures[lease.url])

    @property
    def seconds(self) -> float:
        """How long the next HTTP request may take."""
        left = self._until - self._clock.monotonic()
        return min(max(left, _SHORTEST_CALL), _LONGEST_CALL)

    def next_pause(self) -> float:
        """Returns how long to wait before the next attempt; raises the last error when the time is over."""
        left = self._until - self._clock.monotonic()
        if left <= 0:
            raise self.error or NotYetAvailable(
                "no state server answered in time", hint="start one: stateflow serve --job-root ROOT"
            )
        pause = min(self._pause, left)
        self._pause = min(2 * self._pause, _LONGEST_PAUSE)
        return pause


class QueryProtocol:
    """Makes the steps of queries.

    Args:
        clock: measures the time of a query.
        timeout: how long a query is repeated.
    """

    def __init__(self, clock: Clock, timeout: timedelta) -> None:
        self._clock = clock
        self._timeout = timeout
        self._known = Knowledge()

    def states(self) -> Generator[Step, Result, StatesAnswer]:
        """Returns the states that can be queried."""
        return (yield from self._describe(_Attempts(self._clock, self._timeout)))

    def get_many(
        self, name: str, keys: Sequence[object], map_keys: Sequence[object] | None, options: QueryOptions
    ) -> Generator[Step, Result, list[QueryResult]]:
        """Returns the value of each key, in order.

        Args:
            name: the queryable name.
            keys: tuples with a value for each key column, or values if there is one column.
            map_keys: for a map, the key in the map for each of `keys`.
            options: options of the query.
        """
        attempts = _Attempts(self._clock, self._timeout)
        state = yield from self._state(name, attempts)
        request = GetRequest(
            keys=[_plain(key, state) for key in keys],
            map_keys=_plain_map_keys(map_keys, state),
            **_common(name, options),
        )
        groups = [self._group(key, state) for key in request.keys]
        results: list[QueryResult | None] = [None] * len(groups)
        limit = CHUNK
        while pending := [i for i, result in enumerate(results) if result is None]:
            chunks = yield from self._chunks(pending, groups, limit, attempts)
            calls = [_call(url, "get", _part(request, chunk), attempts) for url, chunk in chunks]
            if any(map(_is_too_large, calls)) and limit > 1:
                limit = max(1, min(limit, len(pending)) // 2)
                continue
            replies = yield [_check_request_size(call) for call in calls]
            for (url, chunk), reply in zip(chunks, _replies(replies), strict=True):
                if reply.status == 200:
                    for position, result in zip(chunk, values_of(reply.body, len(chunk), options), strict=True):
                        results[position] = result
                elif error_of(reply).code == errors.QueryTooLarge.code and len(chunk) > 1:
                    limit = max(1, len(chunk) // 2)
                else:
                    yield from self._failed(url, reply, attempts)
        return [result for result in results if result is not None]

    def scan_page(
        self, name: str, key: object, page: ScanRequest, options: QueryOptions
    ) -> Generator[Step, Result, tuple[list[QueryEntry], str]]:
        """Returns entries of one key's map, and where the next page begins.

        Args:
            name: the queryable name.
            key: the key, as for `get_many`.
            page: prefix, start and limit of the page.
            options: options of the query.
        """
        attempts = _Attempts(self._clock, self._timeout)
        state = yield from self._state(name, attempts)
        plain = _plain(key, state)
        common = _common(name, options)
        request = ScanRequest(key=plain, prefix=page.prefix, after=page.after, limit=page.limit, **common)
        body = yield from self._ask("scan", request, self._group(plain, state), attempts)
        return entries_of(body, page.after, state, options)

    def keys_page(
        self, name: str, at: ListingPosition, limit: int, options: QueryOptions
    ) -> Generator[Step, Result, tuple[list[QueryEntry], ListingPosition | None]]:
        """Returns keys of one server, and where the next page begins; None at the end.

        Args:
            name: the queryable name.
            at: where the page begins.
            limit: the largest number of keys.
            options: options of the query.
        """
        attempts = _Attempts(self._clock, self._timeout)
        state = yield from self._state(name, attempts)
        while True:
            lease = yield from self._server_of(at.group, attempts)
            last = next(r.last for r in lease.ranges if at.group in r)
            request = KeysRequest(
                first_group=at.group, last_group=last, after=at.after, limit=limit, **_common(name, options)
            )
            (reply,) = _replies((yield [_call(lease.url, "keys", request, attempts)]))
            if reply.status == 200:
                break
            yield from self._failed(lease.url, reply, attempts)
        entries, following = keys_of(reply.body, request, state.key_types, options)
        if following:
            return entries, ListingPosition(listing_group(following), following)
        return entries, ListingPosition(last + 1) if last + 1 < self._known.max_parallelism else None

    def _ask(self, path: str, request: QueryRequest, group: int, attempts: _Attempts) -> Generator[Step, Result, bytes]:
        while True:
            lease = yield from self._server_of(group, attempts)
            (reply,) = _replies((yield [_check_request_size(_call(lease.url, path, request, attempts))]))
            if reply.status == 200:
                return reply.body
            yield from self._failed(lease.url, reply, attempts)

    def _state(self, name: str, attempts: _Attempts) -> Generator[Step, Result, StateDescription]:
        if name not in self._known.states:
            yield from self._describe(attempts)
        found = self._known.states.get(name)
        if found is None:
            raise UnknownState(
                "no state of the job has this queryable name",
                hint="name the state with set_queryable; it appears with the next checkpoint",
                name=name[:100],
                found=sorted(self._known.states)[:20],
            )
        return found

    def _describe(self, attempts: _Attempts) -> Generator[Step, Result, StatesAnswer]:
        while True:
            leases = yield from self._leases()
            if not leases:
                yield from self._read_again(attempts)
                continue
            url = attempts.best(leases).url
            (reply,) = _replies((yield [HttpCall(f"{url}/v1/states", attempts.seconds)]))
            if reply.status == 200:
                answer = states_of(reply.body)
                self._known.states = {state.name: state for state in answer.states}
                self._known.max_parallelism = answer.max_parallelism
                return answer
            yield from self._failed(url, reply, attempts)

    def _leases(self) -> Generator[Step, Result, list[ServerLease]]:
        if self._known.leases is None:
            found = yield ReadLeases()
            self._known.leases = [lease for lease in found or [] if isinstance(lease, ServerLease)]
        return self._known.leases

    def _read_again(self, attempts: _Attempts) -> Generator[Step, Result, None]:
        yield WaitStep(attempts.next_pause())
        self._known.leases = None

    def _server_of(self, group: int, attempts: _Attempts) -> Generator[Step, Result, ServerLease]:
        while True:
            leases = yield from self._leases()
            serving = [lease for lease in leases if any(group in r for r in lease.ranges)]
            if serving:
                return attempts.best(serving)
            yield from self._read_again(attempts)

    def _chunks(
        self, pending: Iterable[int], groups: Sequence[int], limit: int, attempts: _Attempts
    ) -> Generator[Step, Result, list[tuple[str, list[int]]]]:
        """Returns the positions that each server is asked for, in chunks."""
        by_group: dict[int, str] = {}
        by_url: dict[str, list[int]] = {}
        for position in pending:
            group = groups[position]
            if group not in by_group:
                by_group[group] = (yield from self._server_of(group, attempts)).url
            by_url.setdefault(by_group[group], []).append(position)
        return [
            (url, positions[start : start + limit])
            for url, positions in by_url.items()
            for start in range(0, len(positions), limit)
        ]

    def _failed(self, url: str, reply: HttpReply, attempts: _Attempts) -> Generator[Step, Result, None]:
        """Raises the error of a reply, or waits if another attempt may succeed."""
        error = error_of(reply)
        if not (reply.failure or error.retryable):
            # The next query asks again which states there are: the types of a key may have changed.
            self._known.states = {}
            raise error
        attempts.add_failure(url, error)
        yield from self._read_again(attempts)

    def _group(self, plain: Sequence[object], state: StateDescription) -> int:
        return group_of(convert_key(plain, state.key_types), state.key_types, self._known.max_parallelism)


class _Common(TypedDict):
    state: str
    namespace: Scalar
    at_least: int | None
    exactly: int | None


def _common(name: str, options: QueryOptions) -> _Common:
    return {
        "state": name,
        "namespace": options.get("namespace"),
        "at_least": options.get("at_least"),
        "exactly": options.get("exactly"),
    }


def _plain(key: object, state: StateDescription) -> list[Scalar]:
    values = key if isinstance(key, tuple | list) else (key,)
    return plain_key(convert_key(values, state.key_types, state.key_names))


def _plain_map_keys(map_keys: Sequence[object] | None, state: StateDescription) -> list[Scalar] | None:
    if (map_keys is None) == (state.kind == "map"):
        raise WrongKeyType(
            "a map needs a key of the map for each key, and no other state has one",
            hint="pass map_key for a map state only",
            state=state.name,
            kind=state.kind,
        )
    if map_keys is None:
        return None
    return plain_key([convert_map_key(key, state.map_key_type) for key in map_keys])


def _part(request: GetRequest, chunk: Sequence[int]) -> GetRequest:
    return msgspec.structs.replace(
        request,
        keys=[request.keys[i] for i in chunk],
        map_keys=None if request.map_keys is None else [request.map_keys[i] for i in chunk],
    )


def _call(url: str, path: str, request: QueryRequest, attempts: _Attempts) -> HttpCall:
    return HttpCall(f"{url}/v1/{path}", attempts.seconds, msgspec.json.encode(request))


def _is_too_large(call: HttpCall) -> bool:
    return len(call.body or b"") > LARGEST_REQUEST


def _check_request_size(call: HttpCall) -> HttpCall:
    """Returns the call; raises QueryTooLarge for one that a server refuses, perhaps before it has read it."""
    if _is_too_large(call):
        raise QueryTooLarge(
            "the key is too large for a query", size_bytes=len(call.body or b""), limit_bytes=LARGEST_REQUEST
        )
    return call


def _replies(result: Result) -> list[HttpReply]:
    return [reply for reply in result or [] if isinstance(reply, HttpReply)]


D = TypeVar("D")


_LONGEST_HINT = 1_000
_NO_FACTS = ("self", "message", "hint")
"""Names of arguments of an error, which a fact cannot have."""


def error_of(reply: HttpReply) -> StateflowError:
    """Returns the error that a reply reports; one that can be retried if the reply is not from a state server."""
    if reply.failure:
        return NotYetAvailable("a state server cannot be reached", reason=reply.failure)
    try:
        answer = msgspec.json.decode(reply.body, type=ErrorAnswer)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return NotYetAvailable("a state server could not answer", status=reply.status)
    kind = _KINDS.get(answer.code, QueryError)
    facts = {name: value for name, value in answer.facts.items() if name not in _NO_FACTS}
    return kind(answer.message, hint=answer.hint[:_LONGEST_HINT], **facts)


def _kinds(base: type[StateflowError]) -> dict[str, type[StateflowError]]:
    found = {base.code: base}
    for kind in base.__subclasses__():
        found |= _kinds(kind)
    return found


_KINDS = _kinds(StateflowError)
"""The classes of errors by code."""


def states_of(body: bytes) -> StatesAnswer:
    """Returns the states that can be queried; raises QueryError for another answer."""
    return _decoded(lambda: msgspec.json.decode(body, type=StatesAnswer))


def values_of(body: bytes, count: int, options: QueryOptions) -> list[QueryResult]:
    """Returns the values of keys.

    Args:
        body: the answer.
        count: number of keys.
        options: options of the query.

    Raises:
        QueryError: the answer is of another form, number of keys or checkpoint.
        CorruptFile: a value does not decode.
    """
    answer = _decoded(lambda: msgspec.msgpack.decode(body, type=MsgpackValues))
    if len(answer.values) != count:
        raise QueryError("a state server answered for another number of keys", wanted=count)
    checked = _check_checkpoint_id(answer.checkpoint_id, options)
    decode = _decoder(options)
    return [QueryResult(checked, None if data is None else decode(data), data is not None) for data in answer.values]


def entries_of(body: bytes, after: str, state: StateDescription, options: QueryOptions) -> tuple[list[QueryEntry], str]:
    """Returns the entries of a page of a map, and the `next` of the page.

    Args:
        body: the answer.
        after: where the page begins.
        state: the map.
        options: options of the query.

    Raises:
        QueryError: the answer is of another form or checkpoint, or the next page is not after this one.
        CorruptFile: a value does not decode.
    """
    answer = _page(body, after)
    if len(answer.keys) != len(answer.values):
        raise QueryError("a page of a state server does not have one value for each key")
    checked = _check_checkpoint_id(answer.checkpoint_id, options)
    decode = _decoder(options)
    keys = [convert_map_key(key, state.map_key_type) for key in answer.keys]
    return [QueryEntry(checked, k, decode(v)) for k, v in zip(keys, answer.values, strict=True)], answer.next


def keys_of(
    body: bytes, request: KeysRequest, types: Sequence[str], options: QueryOptions
) -> tuple[list[QueryEntry], str]:
    """Returns the keys of a page, and the `next` of the page.

    Args:
        body: the answer.
        request: the request, with its first and last key group.
        types: types of the key columns.
        options: options of the query.

    Raises:
        QueryError: the answer is of another form or checkpoint, or the next page is not after this one.
    """
    answer = _page(body, request.after)
    first, last = request.first_group or 0, request.last_group or 0
    if answer.next and not first <= listing_group(answer.next) <= last:
        raise QueryError("the next page of a state server has other key groups", first=first, last=last)
    checked = _check_checkpoint_id(answer.checkpoint_id, options)
    keys = [convert_key(key, types) for key in answer.keys if isinstance(key, list)]
    return [QueryEntry(checked, key) for key in keys], answer.next


def _page(body: bytes, after: str) -> MsgpackPage:
    answer = _decoded(lambda: msgspec.msgpack.decode(body, type=MsgpackPage))
    # Otherwise a query for all pages would never end.
    if answer.next and page_token(answer.next) <= page_token(after):
        raise QueryError("the next page of a state server is not after this one")
    return answer


def _check_checkpoint_id(checkpoint_id: int, options: QueryOptions) -> int:
    """Returns the id of an answer's checkpoint; raises QueryError if the query is for another one."""
    at_least, exactly = options.get("at_least"), options.get("exactly")
    if checkpoint_id < (at_least or 1) or (exactly is not None and checkpoint_id != exactly):
        raise QueryError(
            "the answer of a state server is of another checkpoint than requested",
            checkpoint_id=checkpoint_id,
            at_least=at_least,
            exactly=exactly,
        )
    return checkpoint_id


def _decoded(decode: Callable[[], D]) -> D:
    try:
        return decode()
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as e:
        raise QueryError("the answer of a state server is not of the documented form", reason=str(e)[:200]) from e


def _decoder(options: QueryOptions) -> Callable[[bytes], object]:
    if "value_type" not in options and "serializer" not in options:
        return decode_untyped
    return value_serializer(options.get("value_type", object), options.get("serializer")).decode
