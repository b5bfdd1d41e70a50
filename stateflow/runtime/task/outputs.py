"""The outputs of an operator: row functions, then sink writers and the rows for the next level."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import numpy as np
import pyarrow as pa

from stateflow.api.functions import TaskInfo
from stateflow.api.sink import SinkWriter, Writing
from stateflow.errors import SchemaMismatch, StateflowError
from stateflow.runtime.row_steps import RowChain
from stateflow.runtime.rows import first_misfit, row_maker, to_batch, to_rows
from stateflow.runtime.specs import (
    PHASE,
    POSITION,
    POSITION_SHIFT,
    UNIT,
    LevelSpec,
    OutletSpec,
    UnitSpec,
    output_prefix,
)
from stateflow.state.handles import Committable

Emitted = Mapping[str, list[Any]]
"""Rows by the output's name."""
Emitter = Callable[[int], Mapping[str, Any] | None]
"""Returns the key that emitted the row at a position, by column; None where it is not known."""


class Outlets:
    """All outputs of one subtask of an operator, for one batch. Rows for the next level are returned as Arrow batches.

    Attributes:
        rows_out: how many rows the operator emitted, each counted once.
    """

    def __init__(
        self, level: LevelSpec, unit: UnitSpec, info: TaskInfo, partition: int, attempt: str
    ) -> None:
        self.rows_out = 0
        self._level = level
        self._unit = unit
        self._info = info
        self._attempt = attempt
        self._first_position = partition << POSITION_SHIFT
        self._sent = 0
        self._chains: dict[int, RowChain] = {}
        self._writers: dict[str, SinkWriter] = {}

    def relay(self, rows: pa.RecordBatch, phase: int) -> Iterator[pa.RecordBatch]:
        """Forwards the rows of a unit without a function, which has one output."""
        (outlet,) = self._unit.outlets
        self.rows_out += len(rows)
        yield from self._send(outlet, rows, phase)

    def emit(self, emitted: Emitted, phase: int, emitter: Emitter) -> Iterator[pa.RecordBatch]:
        """Sends row objects.

        Args:
            emitter: for the rows of the main output.
        """
        self.rows_out += sum(map(len, emitted.values()))
        for index, outlet in enumerate(self._unit.outlets):
            rows = emitted.get(outlet.tag)
            if rows and outlet.steps:
                rows = self._chain(index, outlet).apply(rows)
            if rows:
                known = None if outlet.tag or outlet.steps else emitter
                yield from self._send(outlet, self._columns(outlet, rows, known), phase)

    def emit_columns(self, emitted: Iterable[tuple[int, pa.RecordBatch]]) -> Iterator[pa.RecordBatch]:
        """Sends, by phase, what a vectorized operator emits, which has no side outputs."""
        assert self._unit.emits is not None
        for phase, batch in emitted:
            self.rows_out += len(batch)
            for index, outlet in enumerate(self._unit.outlets):
                if not outlet.steps:
                    yield from self._send(outlet, batch, phase)
                    continue
                rows = to_rows(batch.columns, row_maker(self._unit.emits))
                made = self._chain(index, outlet).apply(rows)
                if made:
                    yield from self._send(outlet, self._columns(outlet, made), phase)

    def end_rows(self) -> None:
        """Closes the row functions: no more rows come."""
        for chain in self._chains.values():
            chain.close()

    def close_writers(self) -> dict[str, list[Committable]]:
        """Closes the sink writers; returns what they wrote, by the sink's uid."""
        return {uid: writer.close() for uid, writer in self._writers.items()}

    def abandon(self) -> None:
        """Closes the row functions after a failure; errors in closing them do not replace it."""
        for chain in self._chains.values():
            with contextlib.suppress(StateflowError):
                chain.close()

    def _columns(self, outlet: OutletSpec, rows: list[Any], emitter: Emitter | None = None) -> pa.RecordBatch:
        """Columns of row objects. Raises SchemaMismatch that names the operator, and the key where it is known."""
        try:
            return to_batch(rows, outlet.schema)
        except SchemaMismatch as e:
            if self._unit.function is not None:
                e.add_facts(operator=self._unit.uid)
            position = first_misfit(rows, outlet.schema)
            key = emitter(position) if emitter and position is not None else None
            if key is not None:
                e.add_facts(key=repr(key))
            raise

    def _chain(self, index: int, outlet: OutletSpec) -> RowChain:
        if index not in self._chains:
            self._chains[index] = RowChain(outlet.steps, self._info)
        return self._chains[index]

    def _send(self, outlet: OutletSpec, rows: pa.RecordBatch, phase: int) -> Iterator[pa.RecordBatch]:
        for sink, context in outlet.sinks:
            writer = self._writers.get(context.uid)
            if writer is None:
                writer = self._writers[context.uid] = sink.writer(context, self._writing())
            writer.write(rows)
        if outlet.number is not None:
            yield self._data_batch(outlet.number, rows, phase)

    def _writing(self) -> Writing:
        batch = self._level.batch
        return Writing(batch.generation, batch.ordinal, self._info.subtask, self._attempt)

    def _data_batch(self, number: int, rows: pa.RecordBatch, phase: int) -> pa.RecordBatch:
        first = self._first_position + self._sent
        self._sent += len(rows)
        columns: dict[str, Any] = {
            UNIT: np.full(len(rows), number, np.int32),
            POSITION: np.arange(first, first + len(rows), dtype=np.int64),
            PHASE: np.full(len(rows), phase, np.int64),
        }
        prefix = output_prefix(number)
        columns |= {prefix + name: rows.column(name) for name in rows.schema.names}
        return filled(self._level.output, len(rows), columns)


def filled(schema: pa.Schema, length: int, columns: dict[str, Any]) -> pa.RecordBatch:
    """A batch with the given columns, all others null."""
    arrays = []
    for field in schema:
        values = columns.get(field.name)
        if values is None:
            arrays.append(pa.nulls(length, field.type))
        else:
            arrays.append(values if isinstance(values, pa.Array) else pa.array(values, field.type))
    return pa.RecordBatch.from_arrays(arrays, schema=schema)
