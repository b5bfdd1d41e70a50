"""Look-ups in one open checkpoint: values of keys, entries of a map, and keys that have values."""

from __future__ import annotations

import base64
import binascii
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from stateflow.errors import ConfigError, QueryError, QueryTooLarge, WrongKeyType
from stateflow.serving.requests import GetRequest, KeysRequest, Request, ScanRequest
from stateflow.serving.served_checkpoint import QueryableState, ServedCheckpoint
from stateflow.state.backends.base import KeyedStateBackend, after_prefix
from stateflow.state.kinds.key_context import KEY_OFFSET, state_id
from stateflow.types.key_encoding import decode_key, decode_key_parts, ends_at
from stateflow.types.key_values import encoded, group_of, typed_key, typed_map_key
from stateflow.types.serializers import VALUE_FORMAT, payload_start

LARGEST_ANSWER = 8 << 20
"""Bytes of the values and keys in an answer."""
_KEYS_AT_ONCE = 16
"""Keys whose values are read before their size is checked."""
_GROUP_BYTES = 2
_MOST_GROUPS = 1024
"""Key groups that one page of keys visits: most of them may have no key."""
_TEXT_TAG = b"\x02"


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

    def __init__(self, checkpoint: ServedCheckpoint, request: Request) -> None:
        self._checkpoint = checkpoint
        self.state: QueryableState = checkpoint.state(request.state)
        self._id = state_id(self.state.schema.name)
        self._namespace = encoded((request.namespace,))
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

    def _by_store(self, stored: Sequence[bytes]) -> list[tuple[KeyedStateBackend, list[bytes]]]:
        """Returns the keys that each store has, without keys of key groups that have no store."""
        by_store: dict[int, tuple[KeyedStateBackend, list[bytes]]] = {}
        for key in stored:
            store = self._store(int.from_bytes(key[:_GROUP_BYTES]))
            if store is not None:
                by_store.setdefault(id(store), (store, []))[1].append(key)
        return list(by_store.values())

    def scan(self, request: ScanRequest) -> Page:
        """Returns the entries of one key's map.

        Raises as `get` does, and:
            WrongKeyType: the state is no map, or has no str keys that a prefix could select.
            ConfigError: `after` is not from a previous page.
        """
        self._check_map(request.prefix)
        base = self._stored_key(request.key)
        prefix = base if request.prefix is None else base + encoded((request.prefix,))[:-1]
        start = max(prefix, base + page_token(request.after) + b"\0") if request.after else prefix
        page, size = Page(), 0
        store = self._store(int.from_bytes(base[:_GROUP_BYTES]))
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
        return _text_of(encoded((page.keys[-1],)))

    def _entries(
        self, store: KeyedStateBackend | None, start: bytes, prefix: bytes, base: bytes
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
        groups = self._groups(request, int.from_bytes(token[:_GROUP_BYTES]))
        page, size = Page(), 0
        for visited, group in enumerate(groups):
            prefix, store = group.to_bytes(_GROUP_BYTES) + self._id, self._store(group)
            if visited == _MOST_GROUPS:
                return Page(page.keys, [], _text_of(prefix))
            if store is None:
                continue
            start = token if token.startswith(prefix) else prefix
            for stored, key in self._keys_of(store, start, prefix):
                page.keys.append(list(key))
                size += len(stored)
                if len(page.keys) == request.limit or size > LARGEST_ANSWER:
                    return Page(page.keys, [], _text_of(_after_key(stored)))
        return page

    def _groups(self, request: KeysRequest, first: int) -> range:
        """Returns the key groups to list, from that of the previous page on."""
        opened = self._checkpoint.groups
        lowest = min((r.first for r in opened), default=0) if request.first_group is None else request.first_group
        highest = max((r.last for r in opened), default=-1) if request.last_group is None else request.last_group
        return range(max(first, lowest), min(highest, self._checkpoint.max_parallelism - 1) + 1)

    def _keys_of(
        self, store: KeyedStateBackend, start: bytes, prefix: bytes
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
            at = _after_key(stored)

    def _next_key(
        self, store: KeyedStateBackend, start: bytes, prefix: bytes
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
            key + encoded((typed_map_key(each, declared),)) for key, each in zip(keys, request.map_keys, strict=True)
        ]

    def _stored_key(self, given: Sequence[object]) -> bytes:
        types = self.state.key_types
        key = typed_key(given, types, self.state.key_names)
        group = group_of(key, types, self._checkpoint.max_parallelism)
        return group.to_bytes(_GROUP_BYTES) + self._id + encoded(key) + self._namespace

    def _store(self, group: int) -> KeyedStateBackend | None:
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
    return int.from_bytes(page_token(after)[:_GROUP_BYTES])


def _text_of(token: bytes) -> str:
    return base64.urlsafe_b64encode(token).decode()


def _after_key(stored: bytes) -> bytes:
    """Returns a bound after all entries of a key, and before those of longer keys that begin with its bytes."""
    return stored + b"\xff"


def page_token(text: str) -> bytes:
    """Returns the bytes of a position between pages, which sort as the pages do; raises ConfigError."""
    try:
        return base64.b64decode(text.encode(), altchars=b"-_", validate=True)
    except (binascii.Error, ValueError, UnicodeEncodeError) as e:
        raise ConfigError(
            "the position of a page is not one that a server has returned", hint="pass `next` of the page before"
        ) from e


def _too_large() -> QueryError:
    return QueryTooLarge(
        "the answer would exceed the largest size", hint="ask for fewer keys at once", limit=LARGEST_ANSWER
    )
