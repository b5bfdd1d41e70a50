"""Answers of a state server in the formats that clients can ask for."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import Enum

import msgspec
import pyarrow as pa

from stateflow.errors import QueryError, StateflowError
from stateflow.query.columns.value_reader import ValueReader
from stateflow.serving.lookups import Page
from stateflow.serving.requests import ErrorAnswer
from stateflow.types.key_values import plain_key


class Format(Enum):
    """The format of an answer, by its media type."""

    JSON = "application/json"
    """Values with the recorded names of their fields; dates and Decimals as text, bytes in base64."""
    ARROW = "application/vnd.apache.arrow.stream"
    """An Arrow stream with a column of values; its metadata has ``checkpoint_id`` and ``next``."""
    MSGPACK = "application/vnd.msgpack"
    """Values as they are stored, for clients that decode them with their type."""

    @classmethod
    def accepted(cls, accept: str) -> Format:
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
