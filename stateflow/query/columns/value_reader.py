"""Decoding of the stored values of one state into a column, without the job's classes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

import msgspec
import numpy as np
import pyarrow as pa

from stateflow.errors import CorruptFile, StateError, StateflowError
from stateflow.query.columns.value_types import Refused, from_plain, value_type
from stateflow.state.columnar.column_serializer import decode_column
from stateflow.state.handles import StateSchema
from stateflow.types.bounds.decoded_size import PLAIN
from stateflow.types.bounds.hashing_cost import PLAIN_KEYS
from stateflow.types.columns.conversion import to_column
from stateflow.types.decoders import value_decoder
from stateflow.types.serializers import payload_start, timestamp_of

_SERIALIZED = pa.struct([pa.field("version", pa.int64(), False), pa.field("data", pa.binary(), False)])
_FAILURES = (StateflowError, msgspec.MsgspecError, pa.ArrowException, ValueError, TypeError, OverflowError)
_UNCHECKED = min(PLAIN.unchecked, PLAIN_KEYS.unchecked)
WRITTEN_AT = pa.field("written_at", pa.int64())
"""Milliseconds since 1970, not a timestamp of Arrow: event time can be any number of 64 bits."""


class ValueReader:
    """Decoder of the values of one state.

    Args:
        schema: the recorded schema. Values of earlier types are read as values of the newest one.
        refused: values that are errors, although they could be read.

    Attributes:
        field: the column ``value``. Values of a job's own serializer are structs of its ``version`` and their
            ``data``; for other types see `value_types`.
    """

    def __init__(self, schema: StateSchema, refused: Refused = Refused.NOTHING) -> None:
        self._decode: Callable[[Sequence[bytes]], pa.Array]
        if schema.type is not None and schema.type.serializer:
            self.field = pa.field("value", _SERIALIZED, nullable=False)
            self._decode = self._decode_each = _serialized
            return
        found = value_type(schema.type, refused)
        self.field = pa.field("value", found.arrow, nullable=found.shape.nullable)
        decoder = value_decoder(found.python, from_plain)

        def decode_each(stored: Sequence[bytes]) -> pa.Array:
            return to_column(found.shape, [decoder.decode(_checked_payload(data)) for data in stored])

        self._decode_each = decode_each
        self._decode = lambda stored: decode_column(found.shape, list(stored), decode_each).view(found.arrow)

    def read(self, stored: Sequence[bytes], describe: Callable[[int], dict[str, object]]) -> pa.Array:
        """Returns the column of stored values.

        Args:
            stored: the values.
            describe: returns the facts of an error for the value at a position: operator, state and key.

        Raises:
            CorruptFile: a value does not decode as the recorded type.
            StateError: Arrow cannot represent a value, for example an integer beyond 64 bits.
        """
        try:
            return self._decode(stored)
        except (*_FAILURES, RecursionError):
            # Only now one by one, to name the key.
            for position, data in enumerate(stored):
                self._check(data, partial(describe, position))
            raise

    def _check(self, data: bytes, describe: Callable[[], dict[str, object]]) -> None:
        try:
            self._decode_each([data])
        except StateError as e:
            e.add_facts(**describe())
            raise
        except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError, CorruptFile) as e:
            raise CorruptFile(
                "a stored value does not decode as the recorded type",
                hint="read another checkpoint or savepoint; verify --deep finds damaged files",
                reason=str(e),
                **describe(),
            ) from e
        except (pa.ArrowException, ValueError, TypeError, OverflowError) as e:
            raise StateError(
                "a stored value has no representation in an Arrow column",
                hint="read the other columns only (columns=…), or the state's entries one by one",
                reason=str(e)[:200],
                **describe(),
            ) from e


def _checked_payload(data: bytes) -> bytes:
    """Returns the msgpack of a stored value; raises ValueError or CorruptFile for one that may take too much to decode.

    A value that a job could write is within these bounds of plain values.
    """
    payload = data[payload_start(data) :]
    if len(payload) > _UNCHECKED:
        PLAIN.check(payload)
        PLAIN_KEYS.check(payload)
    return payload


def _serialized(stored: Sequence[bytes]) -> pa.Array:
    pairs = [msgspec.msgpack.decode(_checked_payload(data), type=tuple[int, bytes]) for data in stored]
    versions = pa.array([version for version, _ in pairs], pa.int64())
    contents = pa.array([content for _, content in pairs], pa.binary())
    return pa.StructArray.from_arrays([versions, contents], fields=list(_SERIALIZED))


def written_at(stored: Sequence[bytes], time: str) -> pa.Array:
    """Returns the column of the timestamps that the TTL of values counts from, null for values without one.

    Args:
        stored: the values.
        time: the time domain of the TTL, ``processing`` or ``event``.

    Raises:
        CorruptFile: a value has a truncated timestamp.
    """
    heads = b"".join([data[:9] for data in stored])
    if len(heads) == 9 * len(stored):
        table = np.frombuffer(heads, np.uint8).reshape(-1, 9)
        has_time = table[:, 0] == _TIME_FORMATS[time]
        times = np.ascontiguousarray(table[:, 1:]).view(">u8").ravel().astype(np.uint64) ^ np.uint64(1 << 63)
        return pa.array(times.view(np.int64), pa.int64(), mask=~has_time)
    return pa.array([timestamp_of(data, time) for data in stored], pa.int64())


_TIME_FORMATS = {"processing": 2, "event": 3}
