"""Requests and answers of state servers, as JSON has them."""

from __future__ import annotations

from typing import Annotated

import msgspec

from stateflow.types.key_groups import MAX_PARALLELISM_LIMIT
from stateflow.types.key_values import Scalar

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


class Request(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
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


class GetRequest(Request, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A request for the values of keys.

    Attributes:
        keys: the keys, each a value for each key column.
        map_keys: for a map state, the key of the map for each of `keys`.
    """

    keys: Annotated[list[Key], msgspec.Meta(max_length=MOST_KEYS)]
    map_keys: Annotated[list[Scalar], msgspec.Meta(max_length=MOST_KEYS)] | None = None


class ScanRequest(Request, frozen=True, kw_only=True, forbid_unknown_fields=True):
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


class KeysRequest(Request, frozen=True, kw_only=True, forbid_unknown_fields=True):
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
        key_names: names of the key columns; ``key``, or ``key_1`` and so on, in checkpoints that did not record them.
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
