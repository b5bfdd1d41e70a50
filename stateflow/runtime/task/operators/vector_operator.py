"""One subtask of a vectorized operator, which passes the rows of whole keys to its function as Arrow batches."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
import pyarrow as pa

from stateflow.api.functions.process import RuntimeContext, TaskInfo
from stateflow.api.functions.returned import InvalidReturnValue
from stateflow.api.functions.vectorized import Array, VectorizedKeyedFunction, VectorState
from stateflow.api.schema import RowSchema
from stateflow.config.state_settings import EntryLimits
from stateflow.errors import SchemaMismatch, StateError, StateflowError, UserCodeError
from stateflow.runtime.task.column_conversion import conform
from stateflow.runtime.task.operators.input_reader import KeyedInputs
from stateflow.runtime.task.operators.operator_runtime import batch_time
from stateflow.runtime.task.row_conversion import check_declared, event_times, group_starts
from stateflow.runtime.task_spec import GROUP_MASK, GROUP_SHIFT, PHASE_SHIFT, ChainSpec, Numbers
from stateflow.runtime.user_code import described, innermost
from stateflow.state.backends.base import KeyedStateBackend
from stateflow.state.columnar.key_encoding import comparable, encode_keys
from stateflow.state.entry_limits import key_too_large, largest
from stateflow.state.handles import StateSchema
from stateflow.state.kinds.key_context import RowTimes
from stateflow.state.kinds.keyed_state import KeyedState
from stateflow.state.kinds.keyed_state_batch import KeyedStateBatch, optional_times
from stateflow.state.kinds.ttl.cleanup import TtlCleanup
from stateflow.types.key_groups import range_of
from stateflow.types.ttl_config import StateTtlConfig

T = TypeVar("T")
_LARGEST_COLUMN = (1 << 31) - 1
"""Bytes of texts in one Arrow array, of which offsets have 32 bits."""


@dataclass(frozen=True)
class SortedRows:
    """Sorted rows of one phase.

    Attributes:
        origins: the number of each row's source; None if it is not known.
    """

    order: Numbers
    columns: tuple[pa.Array, ...]
    origins: Numbers | None = None

    def __len__(self) -> int:
        return len(self.order)

    @property
    def phase(self) -> int:
        """The phase of the rows."""
        return int(self.order[0]) >> PHASE_SHIFT

    @property
    def nbytes(self) -> int:
        """The size of the columns."""
        return sum(column.nbytes for column in self.columns)

    def slice(self, start: int, end: int) -> SortedRows:
        """Returns some of the rows."""
        origins = None if self.origins is None else self.origins[start:end]
        return SortedRows(self.order[start:end], tuple(c.slice(start, end - start) for c in self.columns), origins)


def _concatenate(parts: Sequence[SortedRows]) -> SortedRows:
    if len(parts) == 1:
        return parts[0]
    columns = zip(*(part.columns for part in parts), strict=True)
    origins = [part.origins for part in parts if part.origins is not None]
    return SortedRows(
        np.concatenate([p.order for p in parts]),
        tuple(_one_column(c) for c in columns),
        np.concatenate(origins) if origins else None,
    )


def _one_column(parts: Sequence[pa.Array]) -> pa.Array:
    """Returns parts of a column as one array.

    Raises:
        StateError: texts, bytes or lists are larger than one array may be. Only the rows of one key are, since the
            parts that are held back for a call of many keys are limited.
    """
    size = sum(part.nbytes for part in parts)
    if size > _LARGEST_COLUMN and not pa.types.is_primitive(parts[0].type):
        raise StateError(
            "the rows of a key in one batch are too large to be processed at once",
            hint="limit the rows or files of a batch at the source, or use a function that gets one row at a time",
            bytes=size,
            limit=_LARGEST_COLUMN,
        )
    return pa.concat_arrays(parts)


class VectorOperator:
    """Calls a function with batches of whole keys; methods yield the phase and the rows that it emits.

    The last key of an Arrow batch may have more rows in the next one. It is held back until another key comes or the
    phase ends, so all rows of a key are in memory at once. Arrow batches are held back until there are `rows_at_once`
    rows or `bytes_at_once` bytes, or the phase ends.

    Args:
        spec: the operator chain; `emits` is set.
        info: the subtask.
        backend: the backend with the base restored.
        limits: the largest keys and entries; by default those of the settings.

    Attributes:
        emits: the columns of the main output.
    """

    rows_at_once = 0
    bytes_at_once = 64 << 20
    """Arrow columns of text have at most 2 GiB."""

    def __init__(
        self, spec: ChainSpec, info: TaskInfo, backend: KeyedStateBackend, limits: EntryLimits = EntryLimits()
    ) -> None:
        assert isinstance(spec.function, VectorizedKeyedFunction)
        assert spec.keying is not None and spec.emits is not None
        self._spec = spec
        self._function = spec.function
        self.emits: RowSchema = spec.emits
        self._schema = spec.inputs[0].schema
        self._names = spec.keying.columns
        self._input = KeyedInputs(spec)[0]
        self._groups = range_of(info.subtask, info.parallelism, info.max_parallelism)
        self._limits = limits
        self._state = KeyedState(backend, spec.known_states, batch_time(info), limits=self._limits)
        self._held: list[SortedRows] = []
        self._call("open", lambda: self._function.open(RuntimeContext(self._state, info)))
        self._expires_by_rows = any(
            config.ttl_time_characteristic is StateTtlConfig.TtlTimeCharacteristic.EventTime
            for config in self._state.registry.ttl_configs.values()
        )

    @property
    def late_rows_dropped(self) -> int:
        """The number of rows that the function has dropped because they were too late."""
        return self._function.late_rows_dropped

    @property
    def hot_keys(self) -> dict[str, int]:
        """The pairs of rows that a join has compared for keys with many, by key."""
        return dict(self._function.hot_keys)

    @property
    def schemas(self) -> list[StateSchema]:
        """The states that the function declared."""
        return self._state.registry.schemas

    def process(
        self, order: Numbers, columns: Sequence[pa.Array], origins: Numbers | None = None
    ) -> Iterator[tuple[int, pa.RecordBatch]]:
        """Processes sorted rows of one phase; yields what the function emits for the keys that are complete.

        Args:
            order: the `ORDER` of each row.
            columns: the columns of the rows.
            origins: the number of each row's source; None if it is not known.
        """
        rows = SortedRows(order, tuple(columns), origins)
        check_declared(rows.columns, self._schema, operator=self._spec.uid)
        if self._held and self._held[0].phase != rows.phase:
            yield from self.flush()
        if self._is_few(rows):
            self._held.append(rows)
            return
        last = group_starts(rows.order, self._key_columns(rows))[-1]
        if last == 0 and self._continues_held_key(rows):
            self._held.append(rows)
            return
        whole = self._joined([*self._held, rows.slice(0, last)])
        self._held = [rows.slice(last, len(rows))]
        yield from self._feed(whole)

    def flush(self) -> Iterator[tuple[int, pa.RecordBatch]]:
        """Processes the key whose rows are held back, after the last row of its phase."""
        if self._held:
            whole = self._joined(self._held)
            self._held = []
            yield from self._feed(whole)

    def fire(self) -> Iterator[tuple[int, pa.RecordBatch]]:
        """Advances time, between the rows of the two phases."""
        yield from self.flush()

    def take_side_outputs(self) -> Iterator[tuple[str, RowSchema, list[tuple[int, pa.RecordBatch]]]]:
        """Yields the rows emitted to side outputs since the last call: tag, columns, and rows with their phase."""
        yield from ()

    def finish(self) -> Iterator[tuple[int, pa.RecordBatch]]:
        """Ends the batch: processes the last key and closes the function."""
        yield from self.flush()
        self._call("close", self._function.close)

    def ttl_cleanup(self) -> TtlCleanup:
        """Returns the cleanup of expired entries; to be run after `finish`."""
        return self._state.ttl_cleanup(self._groups)

    def abort(self) -> None:
        """Closes the function after a failure."""
        self._call("close", self._function.close)

    def _joined(self, parts: Sequence[SortedRows]) -> SortedRows:
        try:
            return _concatenate(parts)
        except StateError as e:
            held = self._input.key_columns(self._held[-1].columns)
            key = {name: column[-1].as_py() for name, column in zip(self._names, held, strict=True)}
            e.add_facts(operator=self._spec.uid, key=described(key))
            raise

    def _is_few(self, rows: SortedRows) -> bool:
        """Returns whether rows and those that are held back are less than a call should have."""
        every = [*self._held, rows]
        return sum(map(len, every)) < self.rows_at_once and sum(each.nbytes for each in every) < self.bytes_at_once

    def _continues_held_key(self, rows: SortedRows) -> bool:
        """Returns whether the first row may belong to the key that is held back."""
        if not self._held:
            return True
        before = self._held[-1]
        border = _concatenate([before.slice(len(before) - 1, len(before)), rows.slice(0, 1)])
        return len(group_starts(border.order, self._key_columns(border))) == 1

    def _key_columns(self, rows: SortedRows) -> list[pa.Array]:
        return [comparable(column) for column in self._input.key_columns(rows.columns)]

    def _feed(self, rows: SortedRows) -> Iterator[tuple[int, pa.RecordBatch]]:
        starts = np.array(group_starts(rows.order, self._key_columns(rows)))
        at = pa.array(starts)
        columns = [column.take(at) for column in self._input.key_columns(rows.columns)]
        keys = pa.RecordBatch.from_arrays(columns, names=self._names)
        groups = (rows.order[starts] >> GROUP_SHIFT & GROUP_MASK).astype(">u2").view("V2").tolist()
        state = self._new_state(rows, keys, starts, (groups, self._encode(keys)))
        batch = pa.RecordBatch.from_arrays(list(rows.columns), schema=self._schema.arrow)
        emitted = self._call("process_batch", lambda: self._function.process_batch(batch, state))
        yield from self._end_call(emitted, rows.phase)

    def _new_state(
        self, rows: SortedRows, keys: pa.RecordBatch, starts: Array, encoded: tuple[list[bytes], list[bytes]]
    ) -> VectorState:
        """Returns the argument for a call of the function; `encoded` are the key groups and encoded keys."""
        return VectorState(keys, starts, len(rows), self._states(rows, starts, encoded))

    def _states(self, rows: SortedRows, starts: Array, encoded: tuple[list[bytes], list[bytes]]) -> KeyedStateBatch:
        """Returns the states of the keys of a call; a TTL in event time counts from the latest row of each key."""
        times: RowTimes = None
        if self._expires_by_rows and self._input.time is not None:
            times = optional_times(np.maximum.reduceat(event_times(rows.columns[self._input.time]), starts))
        return self._state.batch_of(*encoded, times)

    def _end_call(self, emitted: object, phase: int) -> Iterator[tuple[int, pa.RecordBatch]]:
        """Writes the changes of a call, and yields what it emitted."""
        self._state.end_key_batch()
        if emitted is not None:
            self._check_rows(emitted)
            for made in conform(emitted, self.emits, "process_batch", operator=self._spec.uid):
                yield phase, made

    def _check_rows(self, emitted: object) -> None:
        if not isinstance(emitted, pa.RecordBatch | pa.Table):
            wrong = InvalidReturnValue(
                self._function.process_batch,
                emitted,
                "return rows as Arrow columns, or None",
                "return one pyarrow.RecordBatch or pyarrow.Table, and do not yield",
            )
            raise SchemaMismatch(
                str(wrong), hint=wrong.hint, operator=self._spec.uid, given=type(emitted).__name__, where=wrong.where
            )

    def _encode(self, keys: pa.RecordBatch) -> list[bytes]:
        try:
            encoded = encode_keys(keys.columns)
        except (StateflowError, ValueError, OverflowError, pa.ArrowException) as e:
            raise StateError(
                "a key cannot be read",
                hint="filter such rows in a transform, or cast the column",
                operator=self._spec.uid,
                columns=list(self._names),
                reason=str(e)[:300],
            ) from e
        if (size := largest(encoded)) > self._limits.key_bytes:
            error = key_too_large(size, self._limits)
            (row,) = keys.slice([len(key) for key in encoded].index(size), 1).to_pylist()
            error.add_facts(operator=self._spec.uid, key=described(row))
            raise error
        return encoded

    def _call(self, name: str, call: Callable[[], T]) -> T:
        try:
            return call()
        except StateflowError as e:
            e.add_facts(operator=self._spec.uid)
            raise
        except Exception as e:
            raise UserCodeError(
                f"{name} of an operator raised {type(e).__name__}: {e}",
                hint="fix the function; nothing of this batch was committed",
                operator=self._spec.uid,
                where=innermost(e),
            ) from e
