"""What a client takes from the answers of state servers: results, or the error that an answer reports.

An answer may be of a proxy, of another version, or forged: one that is not of the documented form, or not of a
checkpoint that was asked for, is an error.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

import msgspec

from stateflow.errors import NotYetAvailable, QueryError, StateflowError
from stateflow.serving.answers import MsgpackPage, MsgpackValues
from stateflow.serving.lookups import listing_group, page_token
from stateflow.serving.requests import ErrorAnswer, KeysRequest, StateDescription, StatesAnswer
from stateflow.serving.steps import HttpReply, QueryEntry, QueryOptions, QueryResult
from stateflow.types.key_values import typed_key, typed_map_key
from stateflow.types.serializers import decode_untyped, value_serializer

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
    checked = _checked(answer.checkpoint_id, options)
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
    checked = _checked(answer.checkpoint_id, options)
    decode = _decoder(options)
    keys = [typed_map_key(key, state.map_key_type) for key in answer.keys]
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
    checked = _checked(answer.checkpoint_id, options)
    keys = [typed_key(key, types) for key in answer.keys if isinstance(key, list)]
    return [QueryEntry(checked, key) for key in keys], answer.next


def _page(body: bytes, after: str) -> MsgpackPage:
    answer = _decoded(lambda: msgspec.msgpack.decode(body, type=MsgpackPage))
    # Otherwise a query for all pages would never end.
    if answer.next and page_token(answer.next) <= page_token(after):
        raise QueryError("the next page of a state server is not after this one")
    return answer


def _checked(checkpoint_id: int, options: QueryOptions) -> int:
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
