"""The order of a task's input. A shuffle brings rows in any order; here they are sorted, in bounded memory.

Rows are sorted by `_order`, then, where two keys share one, by the key, then by the declared order and the order of
arrival. Numbers sort ten times faster here than rows do in Spark, and the JVM has no row to touch twice: design 0016.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import IO, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from stateflow.errors import BatchFailed
from stateflow.runtime.specs import BARRIER_ORDER, INPUT, ORDER, ORIGIN, POSITION, UnitSpec
from stateflow.state.key_columns import comparable

Array = np.ndarray[Any, Any]
_Names = Mapping[int, str]
"""The column of each input, by its number."""

_COPIES = 2
"""Rows as they came, and together in one piece."""
_INDEX_BYTES = 24
"""For each row, while it is sorted: two numbers and its place."""
_BLOCKS = 64
"""Of one run's memory a block takes so little that this many runs are read at once in the memory of one."""


@dataclass(frozen=True)
class SortSpace:
    """Where rows are sorted.

    Attributes:
        memory_bytes: what this takes at most; more rows go to files, in sorted runs.
        folder: for these files, on this host.
    """

    memory_bytes: int
    folder: Path


def sorted_input(
    unit: UnitSpec, space: SortSpace, batches: Iterable[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    """The rows of `batches` in the order of the unit's input, in batches as large as the largest of them; behind them
    the barriers. Raises BatchFailed when a run cannot be written."""
    own = {ORDER, POSITION, INPUT, ORIGIN, *(column for each in unit.inputs for column in each.columns)}
    barriers: list[pa.RecordBatch] = []
    with ExitStack() as files:
        sorter = _Sorter(_Ranking(unit), space, files)
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


class _Ranking:
    """The order of a unit's rows."""

    def __init__(self, unit: UnitSpec) -> None:
        keyed = [(number, spec.prefix, spec.keying) for number, spec in enumerate(unit.inputs) if spec.keying]
        self._keys = _by_input([(n, prefix, keying.columns) for n, prefix, keying in keyed])
        self._declared = _by_input([(n, prefix, keying.order_by) for n, prefix, keying in keyed])
        self._connects = len(unit.inputs) > 1

    def sort(self, rows: pa.RecordBatch) -> pa.Array:
        """Where each row of the sorted ones is."""
        order, declared = rows.column(ORDER).to_numpy(), self._declared_numbers(rows)
        if declared is None:
            return self._sort_by_all(rows)
        places = _places(order, self._arrival(rows, declared))
        if self._collide(rows, order, places):
            return self._sort_by_all(rows)
        return pa.array(places)

    def _declared_numbers(self, rows: pa.RecordBatch) -> list[Array] | None:
        """The columns of the declared order, the last one first; None where one of them has a null, or something else
        than whole numbers or times."""
        columns = [self._of_input(rows, names) for names in self._declared]
        if any(column.null_count or not _is_whole(column.type) for column in columns):
            return None
        return [column.cast(pa.int64()).to_numpy() for column in reversed(columns)]

    def _arrival(self, rows: pa.RecordBatch, declared: Sequence[Array]) -> Array | None:
        """The places of the rows by declared order, input and position; None where they are in this order."""
        position = rows.column(POSITION).to_numpy()
        if self._connects:
            return np.lexsort((position, rows.column(INPUT).to_numpy(), *declared))
        arrival = np.argsort(position, kind="stable") if (position[1:] < position[:-1]).any() else None
        for numbers in declared:
            arrival = _places(numbers, arrival)
        return arrival

    def _collide(self, rows: pa.RecordBatch, order: Array, places: Array) -> bool:
        """Whether rows of one `_order` are of different keys: once in a while, hashes are equal."""
        same = np.flatnonzero(order[places[1:]] == order[places[:-1]])
        if not len(same) or not self._keys:
            return False
        ahead, behind = pa.array(places[same + 1]), pa.array(places[same])
        for key in self._keys:
            column = self._column(rows, key)
            differ = pc.not_equal(column.take(ahead), column.take(behind))
            if pc.any(differ).as_py():
                return True
        return False

    def _sort_by_all(self, rows: pa.RecordBatch) -> pa.Array:
        columns = [rows.column(ORDER), *(self._column(rows, key) for key in self._keys)]
        for declared in self._declared:
            column = self._of_input(rows, declared)
            if pa.types.is_floating(column.type):
                # As in Spark: what is not a number comes last, nulls first.
                columns.append(pc.is_nan(column))
            columns.append(column)
        columns += [rows.column(INPUT)] if self._connects else []
        columns.append(rows.column(POSITION))
        table = pa.table(columns, names=list(map(str, range(len(columns)))))
        return pc.sort_indices(
            table, sort_keys=[(name, "ascending", "at_start") for name in table.column_names]
        )

    def _column(self, rows: pa.RecordBatch, names: _Names) -> pa.Array:
        return comparable(self._of_input(rows, names))

    def _of_input(self, rows: pa.RecordBatch, names: _Names) -> pa.Array:
        """The column of the input that a row came by."""
        (_, first), *others = names.items()
        column = rows.column(first)
        for number, name in others:
            column = pc.if_else(pc.equal(rows.column(INPUT), number), rows.column(name), column)
        return column


def _is_whole(kind: pa.DataType) -> bool:
    return bool(pa.types.is_int64(kind) or pa.types.is_timestamp(kind))


def _by_input(inputs: Sequence[tuple[int, str, tuple[str, ...]]]) -> list[_Names]:
    """Of several inputs, the columns that have the same part."""
    return [
        {number: prefix + name for (number, prefix, _), name in zip(inputs, names, strict=True)}
        for names in zip(*(columns for _, _, columns in inputs), strict=True)
    ]


def _places(order: Array, arrival: Array | None) -> Array:
    """The places of the rows by order, then arrival."""
    if arrival is None:
        return _sort_stable(order)
    places: Array = arrival[_sort_stable(order[arrival])]
    return places


def _sort_stable(order: Array) -> Array:
    """The places that sort `order`; equal ones stay as they are.

    Order and place in one number: numpy sorts plain numbers by vector instructions, several times faster than it finds
    a stable order of places. The lowest bits of the order give way when both have too many; where that shows, it is
    sorted the slower way.
    """
    shift = len(order).bit_length()
    lowest = order.min()
    lost = max(0, (int(order.max()) - int(lowest)).bit_length() + shift - 64)
    packed = (order - lowest).view(np.uint64) >> np.uint64(lost) << np.uint64(shift)
    packed |= np.arange(len(order), dtype=np.uint64)
    packed.sort()
    packed &= np.uint64((1 << shift) - 1)
    places: Array = packed.view(np.int64)
    ranked = order[places]
    if lost and (ranked[1:] < ranked[:-1]).any():
        return np.argsort(order, kind="stable")
    return places


class _Run:
    """Sorted rows in a file, read block by block."""

    def __init__(self, file: IO[bytes]) -> None:
        self._reader = pa.ipc.open_file(file)
        self._next = 0
        self.rows: pa.RecordBatch = self._read()

    @property
    def has_more(self) -> bool:
        """Whether there are rows behind those that have been read."""
        return self._next < int(self._reader.num_record_batches)

    def drop(self, count: int) -> None:
        """Lets go of the first rows, and reads on when few are left."""
        self.rows = self.rows.slice(count)
        if self.has_more and len(self.rows) < max(1, self._block // 2):
            self.rows = pa.concat_batches([self.rows, self._read()])

    def _read(self) -> pa.RecordBatch:
        block = self._reader.get_batch(self._next)
        self._next += 1
        self._block = len(block)
        return block


def _written(folder: Path, files: ExitStack, blocks: Iterator[pa.RecordBatch]) -> IO[bytes]:
    """A file without a name: it ends with the process, however that ends."""
    first = next(blocks)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        file = files.enter_context(tempfile.TemporaryFile(dir=folder))
        with pa.ipc.new_file(file, first.schema) as writer:
            for block in chain([first], blocks):
                writer.write_batch(block)
    except OSError as e:
        raise BatchFailed("rows that do not fit into memory cannot be written to be sorted", hint="make room, name "
                          "another local_dir, take smaller batches, or allow more shuffle.sort_memory_bytes",
                          folder=str(folder), reason=str(e)) from e  # fmt: skip
    return file


class _Sorter:
    """Takes rows in any order, and gives them sorted."""

    def __init__(self, ranking: _Ranking, space: SortSpace, files: ExitStack) -> None:
        self._ranking = ranking
        self._space = space
        self._files = files
        self._held: list[pa.RecordBatch] = []
        self._bytes = 0
        self._largest = 0
        self._runs: list[_Run] = []

    def add(self, batch: pa.RecordBatch) -> None:
        """Takes rows; writes a run first when they do not fit."""
        size = _COPIES * batch.nbytes + _INDEX_BYTES * len(batch)
        if self._held and self._bytes + size > self._space.memory_bytes:
            self._runs.append(self._run())
        self._held.append(batch)
        self._bytes += size
        self._largest = max(self._largest, len(batch))

    def drain(self) -> Iterator[pa.RecordBatch]:
        """All rows, sorted."""
        if not self._runs:
            yield from self._sorted(self._largest)
            return
        if self._held:
            self._runs.append(self._run())
        yield from self._merged()

    def _sorted(self, size: int) -> Iterator[pa.RecordBatch]:
        """The rows that are held, and no longer are."""
        if self._held:
            rows, self._held, self._bytes = pa.concat_batches(self._held), [], 0
            yield from _taken(rows, self._ranking.sort(rows), size)

    def _run(self) -> _Run:
        block = max(1, sum(map(len, self._held)) // _BLOCKS)
        return _Run(_written(self._space.folder, self._files, self._sorted(block)))

    def _merged(self) -> Iterator[pa.RecordBatch]:
        """The rows of all runs.

        Behind the last row that was read of a run there may be some that come before others': so rows go out up to the
        first such row, and then more are read.
        """
        while any(len(run.rows) for run in self._runs):
            rows = pa.concat_batches([run.rows for run in self._runs])
            places = self._ranking.sort(rows)
            starts = np.cumsum([0, *(len(run.rows) for run in self._runs)])
            rank = np.empty(len(rows), np.int64)
            rank[places.to_numpy()] = np.arange(len(rows))
            known = [rank[end - 1] for run, end in zip(self._runs, starts[1:], strict=True) if run.has_more]
            count = int(min(known)) + 1 if known else len(rows)
            yield from _taken(rows, places.slice(0, count), self._largest)
            for run, start, end in zip(self._runs, starts, starts[1:], strict=False):
                run.drop(int(np.searchsorted(rank[start:end], count)))


def _taken(rows: pa.RecordBatch, places: pa.Array, size: int) -> Iterator[pa.RecordBatch]:
    """The rows at some places, in batches of a size."""
    for start in range(0, len(places), size):
        yield rows.take(places.slice(start, size))
