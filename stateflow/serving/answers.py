"""Answers of a state server in the formats that clients can ask for."""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum

import msgspec

from stateflow.errors import QueryError, StateflowError
from stateflow.serving.lookups import Page
from stateflow.serving.requests import ErrorAnswer
from stateflow.types.serializers import decode_untyped


class Format(Enum):
    """The format of an answer, by its media type."""

    JSON = "application/json"
    """Values as plain JSON: dates and Decimals as text, bytes in base64."""
    MSGPACK = "application/vnd.msgpack"
    """Values as they are stored, for clients that decode them with their type."""

    @classmethod
    def accepted(cls, accept: str) -> Format:
        """Returns the format for an ``Accept`` header; JSON unless it names another one."""
        return cls.MSGPACK if cls.MSGPACK.value in accept else cls.JSON


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


def encode_values(checkpoint_id: int, values: Sequence[bytes | None], wanted: Format) -> bytes:
    """Returns the answer with the values of keys.

    Raises:
        CorruptFile: a value does not decode.
        QueryError: JSON cannot represent a value.
    """
    if wanted is Format.MSGPACK:
        return msgspec.msgpack.encode(MsgpackValues(checkpoint_id, list(values)))
    found = [{"found": False} if data is None else {"found": True, "value": decode_untyped(data)} for data in values]
    return _json({"checkpoint_id": checkpoint_id, "values": found})


def encode_page(checkpoint_id: int, page: Page, plain_keys: Sequence[object], wanted: Format) -> bytes:
    """Returns the answer with a page of a scan; `plain_keys` are its keys as JSON has them. Raises as above."""
    if wanted is Format.MSGPACK:
        return msgspec.msgpack.encode(MsgpackPage(checkpoint_id, list(plain_keys), page.values, page.next))
    answer: dict[str, object] = {"checkpoint_id": checkpoint_id, "next": page.next}
    if page.values:
        pairs = zip(plain_keys, page.values, strict=True)
        return _json(answer | {"entries": [{"key": key, "value": decode_untyped(data)} for key, data in pairs]})
    return _json(answer | {"keys": plain_keys})


def encode_error(error: StateflowError) -> bytes:
    """Returns the answer for an error, always as JSON."""
    facts = {name: str(value) for name, value in error.facts.items()}
    return msgspec.json.encode(ErrorAnswer(code=error.code, message=error.message, hint=error.hint, facts=facts))


def _json(answer: object) -> bytes:
    try:
        return msgspec.json.encode(answer)
    except (TypeError, ValueError, OverflowError, RecursionError, msgspec.MsgspecError) as e:
        raise QueryError(
            "a value cannot be represented in JSON",
            hint=f"ask for {Format.MSGPACK.value}, or use the client",
            reason=str(e)[:200],
        ) from e
