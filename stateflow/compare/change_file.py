"""The entries that differ between two snapshots, as they are stored, in a temporary file.

The file has no name, so that memory is bounded and a killed process leaves nothing.
"""

from __future__ import annotations

import mmap
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import IO

import pyarrow as pa

from stateflow.checkpoint.log.documents import OperatorState
from stateflow.compare.merge import Difference
from stateflow.compare.states import DecodedKey, StatePair

_SCHEMA = pa.schema(
    [
        pa.field("place", pa.int32(), nullable=False),
        pa.field("key", pa.binary(), nullable=False),
        pa.field("old", pa.binary()),
        pa.field("new", pa.binary()),
    ]
)
_BATCH_BYTES = 4 << 20

KeyDecoder = Callable[[bytes], DecodedKey]


@dataclass(frozen=True)
class ComparedState:
    """A state of an operator that was compared.

    Attributes:
        uid: uid of the operator.
        pair: the state.
        decode: decodes its keys.
        old, new: the operator in each snapshot; None in one that does not have it.
    """

    uid: str
    pair: StatePair
    decode: KeyDecoder
    old: OperatorState | None
    new: OperatorState | None


class ChangeFile:
    """Differences on disk, in the order in which they were added.

    Attributes:
        states: the compared states.
    """

    def __init__(self) -> None:
        self.states: list[ComparedState] = []
        self._numbers: dict[tuple[str, str, str], int] = {}
        self._file: IO[bytes] = tempfile.TemporaryFile(prefix="stateflow-diff-")
        self._writer = pa.ipc.new_stream(pa.PythonFile(self._file, "wb"), _SCHEMA)
        self._content: mmap.mmap | None = None
        self._rows: list[tuple[int, bytes, bytes | None, bytes | None]] = []
        self._size = 0

    def number_of(self, state: ComparedState) -> int:
        """Returns the number of a state, which is added unless it is known."""
        key = state.uid, state.pair.name, state.pair.kind
        if key not in self._numbers:
            self._numbers[key] = len(self.states)
            self.states.append(state)
        return self._numbers[key]

    def add(self, number: int, found: Difference) -> None:
        """Adds a difference of the state with this number."""
        self._rows.append((number, found.key, found.old, found.new))
        self._size += len(found.key) + len(found.old or b"") + len(found.new or b"")
        if self._size >= _BATCH_BYTES:
            self._write()

    def _write(self) -> None:
        if self._rows:
            columns = zip(*self._rows, strict=True)
            arrays = [pa.array(column, field.type) for column, field in zip(columns, _SCHEMA, strict=True)]
            self._writer.write_batch(pa.record_batch(arrays, schema=_SCHEMA))
        self._rows, self._size = [], 0

    def finish(self) -> None:
        """Ends the file, which can be read from now on."""
        self._write()
        self._writer.close()
        self._file.flush()
        # Keeps the content, also for several readers at a time, until the last of them is gone.
        self._content = mmap.mmap(self._file.fileno(), 0, access=mmap.ACCESS_READ)
        self._file.close()

    def close(self) -> None:
        """Removes the differences, if `finish` was not called."""
        self._file.close()

    def batches(self) -> Iterator[pa.RecordBatch]:
        """Yields all differences: ``place``, which is the number of the state, ``key``, ``old`` and ``new``."""
        assert self._content is not None
        yield from pa.ipc.open_stream(pa.py_buffer(self._content))
