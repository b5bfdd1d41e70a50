"""Sorts the input of a task in bounded memory, because a shuffle delivers rows in any order.

Rows are sorted by `_order`, then by the key, which matters only when two keys have the same `_order`, then by the
declared order and the order of arrival. NumPy sorts numbers ten times faster than Spark sorts rows, and the JVM does
not have to process each row twice: see design 0016. The algorithm is an external merge sort.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import IO

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from stateflow.errors import BatchFailed
from stateflow.private_files import make_folders
from stateflow.runtime.executor import BARRIER_ORDER, INPUT, ORDER, ORIGIN, POSITION, ChainSpec
from stateflow.state.key_columns import are_distinct, to_comparable

Array = np.ndarray[tuple[int], np.dtype[np.int64]]
_Names = Mapping[int, str]
"""The name of a column in each input, by number of the input."""

_COPIES = 2
"""Copies of a row while it is sorted: as received, and concatenated."""
_INDEX_BYTES = 24
"""Bytes per row while it is sorted: two numbers and its index."""
_BLOCKS = 64
"""Blocks per sorted run: one block of each of this many runs fits into the memory of one run."""


@dataclass(frozen=True)
class SortSettings:
    """Limits of sorting.

    Attributes:
        memory_bytes: memory for rows; when it is exceeded, sorted runs are written to files.
        folder: local folder for these files.
    """

    memory_bytes: int
    folder: Path


def sort_input(chain: ChainSpec, settings: SortSettings, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Yields the rows of `batches` in the order of the chain's input, and after them the barriers.

    Output batches are as large as the largest input batch.

    Raises:
        BatchFailed: a sorted run cannot be written.
    """
    own = {ORDER, POSITION, INPUT, ORIGIN, *(column for each in chain.inputs for column in each.columns)}
    barriers: list[pa.RecordBatch] = []
    with ExitStack() as files:
        sorter = _ExternalSorter(_SortOrder(chain), settings, files)
        for batch in batches:
            is_barrier = pa.array(batch.column(ORDER).to_numpy() == BARRIER_ORDER)
            rows = batch.select([name for name in batch.schema.names if name in own])
            if pc.any(is_barrier).as_py():
                barriers.append(batch.filter(is_barrier))
                rows = rows.filter(pc.invert(is_barrier))
            if len(rows):
                sorter.add(rows)
        yield from sorter.drain()
    yield from barriers


class _SortOrder:
    """The order of a chain's rows."""

    def __init__(self, chain: ChainSpec) -> None:
        keyed = [(number, spec.prefix, spec.keying) for number, spec in enumerate(chain.inputs) if spec.keying]
        self._keys = _by_input([(n, prefix, keying.row_columns) for n, prefix, keying in keyed])
        self._declared = _by_input([(n, prefix, keying.order_by) for n, prefix, keying in keyed])
        self._has_connected_inputs = len(chain.inputs) > 1

    def sort(self, rows: pa.RecordBatch) -> pa.Array:
        """Returns the indices that sort the rows, shape ``(rows,)``."""
        order, declared = rows.column(ORDER).to_numpy(), self._declared_numbers(rows)
        if declared is None:
            return self._sort_by_all_columns(rows)
        indices = _sorted_indices(order, self._arrival(rows, declared))
        if self._has_collision(rows, order, indices):
            return self._sort_by_all_columns(rows)
        return pa.array(indices)

    def _declared_numbers(self, rows: pa.RecordBatch) -> list[Array] | None:
        """Returns the columns of the declared order as integers, the last one first.

        Returns None when a column has nulls, or is neither an integer nor a timestamp.
        """
        columns = [self._of_input(rows, names) for names in self._declared]
        if any(column.null_count or not _is_whole(column.type) for column in columns):
            return None
        return [column.cast(pa.int64()).to_numpy() for column in reversed(columns)]

    def _arrival(self, rows: pa.RecordBatch, declared: Sequence[Array]) -> Array | None:
        """Returns the indices that sort by declared order, input and position; None when rows are sorted already."""
        position = rows.column(POSITION).to_numpy()
        if self._has_connected_inputs:
            return np.lexsort((position, rows.column(INPUT).to_numpy(), *declared))
        arrival = np.argsort(position, kind="stable") if (position[1:] < position[:-1]).any() else None
        for numbers in declared:
            arrival = _sorted_indices(numbers, arrival)
        return arrival

    def _has_collision(self, rows: pa.RecordBatch, order: Array, indices: Array) -> bool:
        """Returns whether rows with equal `_order` have different keys, whose hashes collide."""
        same = np.flatnonzero(order[indices[1:]] == order[indices[:-1]])
        if not len(same) or not self._keys:
            return False
        first, second = pa.array(indices[same]), pa.array(indices[same + 1])
        for key in self._keys:
            column = self._column(rows, key)
            if are_distinct(column.take(second), column.take(first)).any():
                return True
        return False

    def _sort_by_all_columns(self, rows: pa.RecordBatch) -> pa.Array:
        columns = [rows.column(ORDER), *(self._column(rows, key) for key in self._keys)]
        for declared in self._declared:
            column = self._of_input(rows, declared)
            if pa.types.is_floating(column.type):
                # As in Spark: NaN sorts last, and nulls first.
                columns.append(pc.is_nan(column))
            columns.append(column)
        columns += [rows.column(INPUT)] if self._has_connected_inputs else []
        columns.append(rows.column(POSITION))
        table = pa.table(columns, names=list(map(str, range(len(columns)))))
        return pc.sort_indices(table, sort_keys=[(name, "ascending", "at_start") for name in table.column_names])

    def _column(self, rows: pa.RecordBatch, names: _Names) -> pa.Array:
        return to_comparable(self._of_input(rows, names))

    def _of_input(self, rows: pa.RecordBatch, names: _Names) -> pa.Array:
        """Returns a column whose name depends on the input that each row belongs to."""
        (_, first), *others = names.items()
        column = rows.column(first)
        for number, name in others:
            column = pc.if_else(pc.equal(rows.column(INPUT), number), rows.column(name), column)
        return column


def _is_whole(kind: pa.DataType) -> bool:
    return bool(pa.types.is_int64(kind) or pa.types.is_timestamp(kind))


def _by_input(inputs: Sequence[tuple[int, str, tuple[str, ...]]]) -> list[_Names]:
    """Returns, for each column of a key or order, its name in each input."""
    return [
        {number: prefix + name for (number, prefix, _), name in zip(inputs, names, strict=True)}
        for names in zip(*(columns for _, _, columns in inputs), strict=True)
    ]


def _sorted_indices(order: Array, arrival: Array | None) -> Array:
    """Returns the indices that sort by `order`, then by `arrival`, which are indices themselves."""
    if arrival is None:
        return _stable_argsort(order)
    return arrival[_stable_argsort(order[arrival])]


def _stable_argsort(order: Array) -> Array:
    """Returns the indices that sort `order`, like ``np.argsort(order, kind="stable")``.

    Packs order and index into one number, because NumPy sorts numbers with vector instructions, several times faster
    than its stable argsort. When both need more than 64 bits, the lowest bits of the order are dropped; if that changes
    the result, the slower argsort is used.
    """
    shift = len(order).bit_length()
    lowest = order.min()
    lost = max(0, (int(order.max()) - int(lowest)).bit_length() + shift - 64)
    packed = (order - lowest).view(np.uint64) >> np.uint64(lost) << np.uint64(shift)
    packed |= np.arange(len(order), dtype=np.uint64)
    packed.sort()
    packed &= np.uint64((1 << shift) - 1)
    indices: Array = packed.view(np.int64)
    result = order[indices]
    if lost and (result[1:] < result[:-1]).any():
        return np.argsort(order, kind="stable")
    return indices


class _SortedRun:
    """Sorted rows in a file, which are read block by block."""

    def __init__(self, file: IO[bytes]) -> None:
        self._reader = pa.ipc.open_file(file)
        self._next = 0
        self.rows: pa.RecordBatch = self._read()

    @property
    def has_more(self) -> bool:
        """Whether the file has rows that have not been read."""
        return self._next < int(self._reader.num_record_batches)

    def drop(self, count: int) -> None:
        """Drops the first rows, and reads the next block when few are left."""
        self.rows = self.rows.slice(count)
        if self.has_more and len(self.rows) < max(1, self._block // 2):
            self.rows = pa.concat_batches([self.rows, self._read()])

    def _read(self) -> pa.RecordBatch:
        block = self._reader.get_batch(self._next)
        self._next += 1
        self._block = len(block)
        return block


def _write(folder: Path, files: ExitStack, blocks: Iterator[pa.RecordBatch]) -> IO[bytes]:
    """Writes blocks to a file without a name, which the kernel removes when the process ends."""
    first = next(blocks)
    try:
        make_folders(folder)
        file = files.enter_context(tempfile.TemporaryFile(dir=folder))
        with pa.ipc.new_file(file, first.schema) as writer:
            for block in chain([first], blocks):
                writer.write_batch(block)
    except OSError as e:
        raise BatchFailed(
            "a sorted run of a task's rows cannot be written",
            hint="free disk space, set another local_dir, use smaller batches, or raise shuffle.sort_memory_bytes",
            folder=str(folder),
            reason=str(e),
        ) from e
    return file


class _ExternalSorter:
    """Sorts rows, in files when they exceed the memory limit."""

    def __init__(self, order: _SortOrder, settings: SortSettings, files: ExitStack) -> None:
        self._order = order
        self._settings = settings
        self._files = files
        self._held: list[pa.RecordBatch] = []
        self._bytes = 0
        self._largest = 0
        self._runs: list[_SortedRun] = []

    def add(self, batch: pa.RecordBatch) -> None:
        """Adds rows; first writes a sorted run when they would exceed the memory limit."""
        size = _COPIES * batch.nbytes + _INDEX_BYTES * len(batch)
        if self._held and self._bytes + size > self._settings.memory_bytes:
            self._runs.append(self._run())
        self._held.append(batch)
        self._bytes += size
        self._largest = max(self._largest, len(batch))

    def drain(self) -> Iterator[pa.RecordBatch]:
        """Yields all rows, sorted."""
        if not self._runs:
            yield from self._sorted(self._largest)
            return
        if self._held:
            self._runs.append(self._run())
        yield from self._merged()

    def _sorted(self, size: int) -> Iterator[pa.RecordBatch]:
        """Yields the rows in memory, sorted, and removes them."""
        if self._held:
            rows, self._held, self._bytes = pa.concat_batches(self._held), [], 0
            yield from _taken(rows, self._order.sort(rows), size)

    def _run(self) -> _SortedRun:
        block = max(1, sum(map(len, self._held)) // _BLOCKS)
        return _SortedRun(_write(self._settings.folder, self._files, self._sorted(block)))

    def _merged(self) -> Iterator[pa.RecordBatch]:
        """Yields the rows of all runs, merged.

        The unread rows of a run may sort directly after its last row that was read. So rows are yielded up to the first
        such last row of any run, and then more are read.
        """
        while any(len(run.rows) for run in self._runs):
            rows = pa.concat_batches([run.rows for run in self._runs])
            indices = self._order.sort(rows)
            starts = np.cumsum([0, *(len(run.rows) for run in self._runs)])
            rank = np.empty(len(rows), np.int64)
            rank[indices.to_numpy()] = np.arange(len(rows))
            last = [rank[end - 1] for run, end in zip(self._runs, starts[1:], strict=True) if run.has_more]
            count = int(min(last)) + 1 if last else len(rows)
            yield from _taken(rows, indices.slice(0, count), self._largest)
            for run, start, end in zip(self._runs, starts, starts[1:], strict=False):
                run.drop(int(np.searchsorted(rank[start:end], count)))


def _taken(rows: pa.RecordBatch, indices: pa.Array, size: int) -> Iterator[pa.RecordBatch]:
    """Yields the rows at `indices`, in batches of `size` rows."""
    for start in range(0, len(indices), size):
        yield rows.take(indices.slice(start, size))
