"""Steps of a query, their results, and what a query returns."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TypedDict

from stateflow.serving.lookups import StateDescription
from stateflow.serving.registry import ServerLease
from stateflow.types.custom_serializer import Serializer
from stateflow.types.key_values import Scalar


class QueryOptions(TypedDict, total=False):
    """Options of a query.

    Attributes:
        at_least: the answer must be of this checkpoint or a later one; the client waits for it.
        exactly: the answer must be of this checkpoint. Servers keep the newest few open.
        namespace: the namespace of the keys; None for the void namespace.
        value_type: the declared type of the values; by default they are plain dicts, lists, numbers and texts.
        serializer: the custom serializer of the state.
    """

    at_least: int
    exactly: int
    namespace: Scalar
    value_type: object
    serializer: Serializer[object]


@dataclass(frozen=True)
class QueryResult:
    """The value of a key.

    Attributes:
        checkpoint_id: the committed checkpoint that the value is from.
        value: the value; None without one.
        found: whether the key has a value.
    """

    checkpoint_id: int
    value: object
    found: bool = True


@dataclass(frozen=True)
class QueryEntry:
    """An entry of a map, or a key of a state.

    Attributes:
        checkpoint_id: the committed checkpoint that the entry is from.
        key: the key in the map; for a listing of keys, a tuple with a value for each key column.
        value: the value in the map; None in a listing of keys.
    """

    checkpoint_id: int
    key: object
    value: object = None


@dataclass(frozen=True)
class ListingPosition:
    """Where a page of keys begins: the key group, and the `next` of the page before; empty at its first key."""

    group: int = 0
    after: str = ""


@dataclass(frozen=True)
class ReadLeases:
    """A step: read the leases of the job root; the result is a list of `ServerLease`."""


@dataclass(frozen=True)
class WaitStep:
    """A step: wait; the result is None."""

    seconds: float


@dataclass(frozen=True)
class HttpCall:
    """A request to a server: POST with a body, GET without; it may take so many seconds."""

    url: str
    seconds: float
    body: bytes | None = None


@dataclass(frozen=True)
class HttpReply:
    """The answer to an `HttpCall`; `failure` is the reason if there is none."""

    status: int = 0
    body: bytes = b""
    failure: str = ""


Step = ReadLeases | WaitStep | list[HttpCall]
"""A step of a query; the result of a list of calls is the list of their replies."""
Result = list[ServerLease] | list[HttpReply] | None


@dataclass
class Knowledge:
    """Facts that a client remembers between queries.

    Attributes:
        leases: the servers, as they were read last; None before.
        states: the states by queryable name.
        max_parallelism: number of key groups of the job; 0 while that is not known.
    """

    leases: list[ServerLease] | None = None
    states: dict[str, StateDescription] = field(default_factory=dict)
    max_parallelism: int = 0
