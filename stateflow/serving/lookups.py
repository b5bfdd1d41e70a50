"""Look-ups in one open checkpoint: values of keys, entries of a map, and keys that have values.

The requests and answers are as JSON has them; an answer can also be in the other formats that clients ask for.
"""

from __future__ import annotations

import base64
import binascii
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Annotated

import msgspec
import pyarrow as pa

from stateflow.errors import ConfigError, QueryError, QueryTooLarge, StateflowError, WrongKeyType
from stateflow.query.value_types import ValueReader
from stateflow.serving.follower import QueryableState, ServedCheckpoint
from stateflow.state.backends.base import KeyedStateReader, after_prefix
from stateflow.state.stored_key import KEY_OFFSET, after_key, decode_group, encode_group, state_id
from stateflow.types.key_encoding import decode_key, decode_key_parts, ends_at
from stateflow.types.key_groups import MAX_PARALLELISM_LIMIT
from stateflow.types.key_values import Scalar, convert_key, convert_map_key, encode_typed_key, group_of, plain_key
from stateflow.types.serializers import VALUE_FORMAT, payload_start

MOST_KEYS = 10_000
"""Keys of one request."""
LARGEST_REQUEST = 1 << 20
"""Bytes of a request's body."""
PAGE = 1_000
"""Entries of a page unless the request states another number."""


Name = Annotated[str, msgspec.Meta(min_length=1, max_length=100)]
Key = Annotated[list[Scalar], msgspec.Meta(min_length=1, max_length=100)]
CheckpointId = Annotated[int, msgspec.Meta(ge=1, le=(1 << 63) - 1)]
Limit = Annotated[int, msgspec.Meta(ge=1, le=MOST_KEYS)]
Group = Annotated[int, msgspec.Meta(ge=0, lt=MAX_PARALLELISM_LIMIT)]
Token = Annotated[str, msgspec.Meta(max_length=100_000)]


class QueryRequest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Base class of requests about one state.

    Attributes:
        state: the queryable name of the state.
        namespace: the namespace of the keys; None for the void namespace.
        at_least: the answer must be of this checkpoint or a later one.
        exactly: the answer must be of this checkpoint.
    """

    state: Name
    namespace: Scalar = None
    at_least: CheckpointId | None = None
    exactly: CheckpointId | None = None


class GetRequest(QueryRequest, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A request for the values of keys.

    Attributes:
        keys: the keys, each a value for each key column.
        map_keys: for a map state, the key of the map for each of `keys`.
    """

    keys: Annotated[list[Key], msgspec.Meta(max_length=MOST_KEYS)]
    map_keys: Annotated[list[Scalar], msgspec.Meta(max_length=MOST_KEYS)] | None = None


class ScanRequest(QueryRequest, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A request for the entries of one key's map, in order of the map's keys.

    Attributes:
        key: the key.
        prefix: only entries whose map key begins with this text; for maps with str keys.
        after: the `next` of the previous page.
        limit: the largest number of entries in the answer.
    """

    key: Key
    prefix: str | None = None
    after: Token = ""
    limit: Limit = PAGE


class KeysRequest(QueryRequest, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A request for keys that have values, in order of key groups.

    Attributes:
        first_group: the first key group to list; None for the first that the server has.
        last_group: the last key group to list; None for the last that the server has.
        after: the `next` of the previous page.
        limit: the largest number of keys in the answer.
    """

    first_group: Group | None = None
    last_group: Group | None = None
    after: Token = ""
    limit: Limit = PAGE


class StateDescription(msgspec.Struct, frozen=True, kw_only=True):
    """A state that can be queried.

    Attributes:
        name: the queryable name.
        operator: uid of the operator.
        state: name within the operator.
        kind: ``value``, ``map``, ``reducing`` or ``aggregating``.
        value_type: the declared type, as text.
        key_names: names of the key columns.
        key_types: Spark's simple type name of each key column.
        map_key_type: the declared type of a map's keys, as text; empty for other kinds.
    """

    name: str
    operator: str
    state: str
    kind: str
    value_type: str
    key_names: list[str]
    key_types: list[str]
    map_key_type: str = ""


class StatesAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """The states that can be queried, as of the newest checkpoint."""

    checkpoint_id: int
    max_parallelism: Annotated[int, msgspec.Meta(ge=1, le=MAX_PARALLELISM_LIMIT)]
    states: list[StateDescription]


class ErrorAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """An error of `stateflow.errors`."""

    code: str
    message: str
    hint: str = ""
    facts: dict[str, str] = {}


LARGEST_ANSWER = 8 << 20
"""Bytes of the values and keys in an answer."""
_KEYS_AT_ONCE = 16
"""Keys whose values are read before their size is checked."""
_MOST_GROUPS = 1024
"""Key groups that one page of keys visits: most of them may have no key."""


@dataclass(frozen=True)
class Page:
    """A part of a scan.

    Attributes:
        keys: keys of a map, or keys of the state, each with a value for each key column.
        values: the stored value for each key of a map, without timestamp.
        next: where the next page begins, for `after`; empty at the end.
    """

    keys: list[object] = field(default_factory=list)
    values: list[bytes] = field(default_factory=list)
    next: str = ""


class Lookups:
    """Answers requests from a checkpoint; the caller is a user of the checkpoint meanwhile.

    Args:
        checkpoint: the open checkpoint.
        request: names the state.

    Raises:
        UnknownState: the checkpoint has no such state.
    """

    def __init__(self, checkpoint: ServedCheckpoint, request: QueryRequest) -> None:
        self._checkpoint = checkpoint
        self.state: QueryableState = checkpoint.state(request.state)
        self._id = state_id(self.state.schema.name)
        self._namespace = encode_typed_key((request.namespace,))
        self._exactly = request.exactly is not None

    def get(self, request: GetRequest, largest: int | None = None) -> list[bytes | None]:
        """Returns the stored value of each key, without timestamp; None for a key without one, or with an expired one.

        A key that is given several times is read once, and counts each time, as in the answer.

        Args:
            request: the keys.
            largest: bytes of all values, if less than an answer may have; at most one value more is read.

        Raises:
            WrongKeyType: a key is not of the recorded types.
            QueryTooLarge: the values are larger than an answer may be.
            NotYetAvailable: another server has a key.
            CheckpointNotServed: the server has the key group of a key in later checkpoints only.
        """
        stored = self._stored_keys(request)
        times, found, size = Counter(stored), dict[bytes, bytes](), 0
        limit = LARGEST_ANSWER if largest is None else min(largest, LARGEST_ANSWER)
        at_once = _KEYS_AT_ONCE if largest is None else 1
        for store, keys in self._by_store(sorted(times)):
            for at in range(0, len(keys), at_once):
                portion = keys[at : at + at_once]
                for key, data in zip(portion, store.multi_get(portion), strict=True):
                    if data is not None and not self.state.is_expired(data):
                        found[key] = without_timestamp(data)
                        size += len(data) * times[key]
                if size > limit:
                    raise _too_large()
        return [found.get(key) for key in stored]

    def _by_store(self, stored: Sequence[bytes]) -> list[tuple[KeyedStateReader, list[bytes]]]:
        """Returns the keys that each store has, without keys of key groups that have no store."""
        by_store: dict[int, tuple[KeyedStateReader, list[bytes]]] = {}
        for key in stored:
            store = self._store(decode_group(key))
            if store is not None:
                by_store.setdefault(id(store), (store, []))[1].append(key)
        return list(by_store.values())

    def scan(self, request: ScanRequest) -> Page:
        """Returns the entries of one key's map.

        Raises as `get` does, and:
            WrongKeyType: the state is not a map, or its keys are not texts, which a prefix needs.
            ConfigError: `after` is not from a previous page.
        """
        self._check_map(request.prefix)
        base = self._stored_key(request.key)
        prefix = base if request.prefix is None else base + encode_typed_key((request.prefix,))[:-1]
        start = max(prefix, base + page_token(request.after) + b"\0") if request.after else prefix
        page, size = Page(), 0
        store = self._store(decode_group(base))
        for key, data in self._entries(store, start, prefix, base):
            if len(page.keys) == request.limit or size + len(data) + len(key) > LARGEST_ANSWER:
                return Page(page.keys, page.values, self._next_entry(page, base))
            size += len(data) + len(key)
            page.keys.append(decode_key(key[len(base) :])[0])
            page.values.append(without_timestamp(data))
        return page

    def _next_entry(self, page: Page, base: bytes) -> str:
        if not page.keys:
            raise _too_large()
        return _text_of(encode_typed_key((page.keys[-1],)))

    def _entries(
        self, store: KeyedStateReader | None, start: bytes, prefix: bytes, base: bytes
    ) -> Iterator[tuple[bytes, bytes]]:
        if store is None:
            return
        for key, data in store.scan_range(start, after_prefix(prefix)):
            if ends_at(key, len(base)) and not self.state.is_expired(data):
                yield key, data

    def keys(self, request: KeysRequest) -> Page:
        """Returns keys that have a value, in order of key groups and encoded keys.

        Raises:
            NotYetAvailable: another server has one of the key groups.
            CheckpointNotServed: the server has one of the key groups in later checkpoints only.
            ConfigError: `after` is not from a previous page.
        """
        token = page_token(request.after) if request.after else b""
        groups = self._groups(request, decode_group(token))
        page, size = Page(), 0
        for visited, group in enumerate(groups):
            prefix, store = encode_group(group) + self._id, self._store(group)
            if visited == _MOST_GROUPS:
                return Page(page.keys, [], _text_of(prefix))
            if store is None:
                continue
            start = token if token.startswith(prefix) else prefix
            for stored, key in self._keys_of(store, start, prefix):
                page.keys.append(list(key))
                size += len(stored)
                if len(page.keys) == request.limit or size > LARGEST_ANSWER:
                    return Page(page.keys, [], _text_of(after_key(stored)))
        return page

    def _groups(self, request: KeysRequest, first: int) -> range:
        """Returns the key groups to list, from that of the previous page on."""
        opened = self._checkpoint.groups
        lowest = min((r.first for r in opened), default=0) if request.first_group is None else request.first_group
        highest = max((r.last for r in opened), default=-1) if request.last_group is None else request.last_group
        return range(max(first, lowest), min(highest, self._checkpoint.max_parallelism - 1) + 1)

    def _keys_of(
        self, store: KeyedStateReader, start: bytes, prefix: bytes
    ) -> Iterator[tuple[bytes, tuple[object, ...]]]:
        """Yields the keys with a visible entry in this namespace: their stored form up to the namespace, and values."""
        at = start
        while True:
            found = self._next_key(store, at, prefix)
            if found is None:
                return
            stored, key, is_visible = found
            if is_visible:
                yield stored, key
            at = after_key(stored)

    def _next_key(
        self, store: KeyedStateReader, start: bytes, prefix: bytes
    ) -> tuple[bytes, tuple[object, ...], bool] | None:
        """Returns the first key from `start` on, and whether it has a visible entry; None at the end of the group."""
        entry = next(store.scan_range(start, after_prefix(prefix)), None)
        if entry is None:
            return None
        key, end = decode_key_parts(entry[0], KEY_OFFSET, len(self.state.key_types))
        stored = entry[0][:end]
        visible = self._entries(store, stored + self._namespace, stored + self._namespace, stored + self._namespace)
        return stored, tuple(key), next(visible, None) is not None

    def _stored_keys(self, request: GetRequest) -> list[bytes]:
        is_map = self.state.schema.kind == "map"
        if is_map != (request.map_keys is not None) or (is_map and len(request.map_keys or ()) != len(request.keys)):
            raise WrongKeyType(
                "a map needs a key of the map for each key, and no other state has one",
                hint="pass map_keys for a map state only",
                state=request.state,
                kind=self.state.schema.kind,
            )
        keys = [self._stored_key(key) for key in request.keys]
        if request.map_keys is None:
            return keys
        declared = self.state.schema.key_type
        return [
            key + encode_typed_key((convert_map_key(each, declared),))
            for key, each in zip(keys, request.map_keys, strict=True)
        ]

    def _stored_key(self, given: Sequence[object]) -> bytes:
        types = self.state.key_types
        key = convert_key(given, types, self.state.key_names)
        group = group_of(key, types, self._checkpoint.max_parallelism)
        return encode_group(group) + self._id + encode_typed_key(key) + self._namespace

    def _store(self, group: int) -> KeyedStateReader | None:
        return self._checkpoint.store_of(self.state.operator, group, exactly=self._exactly)

    def _check_map(self, prefix: str | None) -> None:
        schema = self.state.schema
        if schema.kind != "map" or (prefix is not None and schema.key_type != "str"):
            raise WrongKeyType(
                "only maps can be scanned, and only those with str keys by prefix",
                hint="get the value of the key instead, or scan without a prefix",
                state=schema.queryable,
                kind=schema.kind,
                map_key_type=schema.key_type,
            )


def without_timestamp(data: bytes) -> bytes:
    """Returns a stored value without the timestamp of its TTL; raises CorruptFile for an unknown format."""
    return data if data[:1] == VALUE_FORMAT else VALUE_FORMAT + data[payload_start(data) :]


def listing_group(after: str) -> int:
    """Returns the key group in which the page of keys after `after` begins; raises ConfigError."""
    return decode_group(page_token(after))


def _text_of(token: bytes) -> str:
    return base64.urlsafe_b64encode(token).decode()


def page_token(text: str) -> bytes:
    """Returns the bytes of a position between pages, which sort as the pages do; raises ConfigError."""
    try:
        return base64.b64decode(text.encode(), altchars=b"-_", validate=True)
    except (binascii.Error, ValueError, UnicodeEncodeError) as e:
        raise ConfigError(
            "no server has returned this position of a page", hint="pass `next` of the page before"
        ) from e


def _too_large() -> QueryError:
    return QueryTooLarge(
        "the answer would exceed the largest size", hint="ask for fewer keys at once", limit_bytes=LARGEST_ANSWER
    )


class Format(Enum):
    """The format of an answer, by its media type."""

    JSON = "application/json"
    """Values with the recorded names of their fields; dates and Decimals as text, bytes in base64."""
    ARROW = "application/vnd.apache.arrow.stream"
    """An Arrow stream with a column of values; its metadata has ``checkpoint_id`` and ``next``."""
    MSGPACK = "application/vnd.msgpack"
    """Values as they are stored, for clients that decode them with their type."""

    @classmethod
    def from_accept_header(cls, accept: str) -> Format:
        """Returns the format for an ``Accept`` header; JSON unless it names another one."""
        return next((wanted for wanted in (cls.MSGPACK, cls.ARROW) if wanted.value in accept), cls.JSON)


class MsgpackValues(msgspec.Struct, frozen=True, array_like=True):
    """Values of keys in msgpack: the id of the checkpoint, and each stored value; None without one."""

    checkpoint_id: int
    values: list[bytes | None]


class MsgpackPage(msgspec.Struct, frozen=True, array_like=True):
    """A page of a scan in msgpack: keys as JSON has them, and for a map each stored value."""

    checkpoint_id: int
    keys: list[object]
    values: list[bytes]
    next: str


def encode_values(checkpoint_id: int, values: Sequence[bytes | None], reader: ValueReader, wanted: Format) -> bytes:
    """Returns the answer with the values of keys.

    Args:
        checkpoint_id: the checkpoint that they are from.
        values: the stored values; None for a key without one.
        reader: decodes them.
        wanted: the format.

    Raises:
        CorruptFile: a value does not decode as the recorded type.
        StateError, QueryError: a value cannot be represented in a column, or in JSON.
    """
    if wanted is Format.MSGPACK:
        return msgspec.msgpack.encode(MsgpackValues(checkpoint_id, list(values)))
    present = _column(reader, [data for data in values if data is not None])
    found = [data is not None for data in values]
    if wanted is Format.ARROW:
        numbers = iter(range(len(present)))
        column = present.take(pa.array([next(numbers) if each else None for each in found], pa.int64()))
        return _arrow({"found": pa.array(found, pa.bool_()), "value": column}, checkpoint_id, "")
    decoded = iter(present.to_pylist())
    answers = [{"found": True, "value": next(decoded)} if each else {"found": False} for each in found]
    return _json({"checkpoint_id": checkpoint_id, "values": answers})


def encode_entries(checkpoint_id: int, page: Page, reader: ValueReader, wanted: Format) -> bytes:
    """Returns the answer with entries of a map; arguments and errors as for `encode_values`."""
    if wanted is Format.MSGPACK:
        return msgspec.msgpack.encode(MsgpackPage(checkpoint_id, list(plain_key(page.keys)), page.values, page.next))
    values = _column(reader, page.values)
    if wanted is Format.ARROW:
        return _arrow({"map_key": _inferred(page.keys), "value": values}, checkpoint_id, page.next)
    pairs = zip(plain_key(page.keys), values.to_pylist(), strict=True)
    entries = [{"key": key, "value": value} for key, value in pairs]
    return _json({"checkpoint_id": checkpoint_id, "next": page.next, "entries": entries})


def encode_keys(checkpoint_id: int, page: Page, names: Sequence[str], wanted: Format) -> bytes:
    """Returns the answer with a list of keys.

    Args:
        checkpoint_id: the checkpoint that they are from.
        page: the keys, each a list.
        names: names of the key columns, for Arrow.
        wanted: the format.
    """
    keys = [key for key in page.keys if isinstance(key, list)]
    if wanted is Format.ARROW:
        columns = {name: _inferred([key[i] for key in keys]) for i, name in enumerate(names)}
        return _arrow(columns, checkpoint_id, page.next)
    plain = [plain_key(key) for key in keys]
    if wanted is Format.MSGPACK:
        return msgspec.msgpack.encode(MsgpackPage(checkpoint_id, list(plain), [], page.next))
    return _json({"checkpoint_id": checkpoint_id, "next": page.next, "keys": plain})


def encode_error(error: StateflowError) -> bytes:
    """Returns the answer for an error, always as JSON."""
    facts = {name: str(value) for name, value in error.facts.items()}
    return msgspec.json.encode(ErrorAnswer(code=error.code, message=error.message, hint=error.hint, facts=facts))


def _column(reader: ValueReader, stored: Sequence[bytes]) -> pa.Array:
    return reader.read(stored, lambda position: {"position": position})


def _inferred(values: Sequence[object]) -> pa.Array:
    """Returns a column of keys, which are of one type unless a map declares a union."""
    try:
        return pa.array(values)
    except (pa.ArrowException, OverflowError, ValueError, TypeError) as e:
        raise QueryError(
            "keys cannot be represented in an Arrow column", hint="ask for JSON instead", reason=str(e)[:200]
        ) from e


def _arrow(columns: Mapping[str, pa.Array], checkpoint_id: int, following: str) -> bytes:
    about = {"checkpoint_id": str(checkpoint_id), "next": following}
    batch = pa.RecordBatch.from_arrays(list(columns.values()), names=list(columns)).replace_schema_metadata(about)
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema) as writer:
        writer.write_batch(batch)
    return bytes(sink.getvalue())


def _json(answer: object) -> bytes:
    try:
        return msgspec.json.encode(answer)
    except (TypeError, ValueError, OverflowError, RecursionError, msgspec.MsgspecError) as e:
        raise QueryError(
            "a value cannot be represented in JSON",
            hint=f"ask for {Format.MSGPACK.value}, or use the client",
            reason=str(e)[:200],
        ) from e
