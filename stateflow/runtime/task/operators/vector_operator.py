"""One subtask of a vectorized operator: gives a function the rows of whole keys, as Arrow batches."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from stateflow.api.functions import RuntimeContext, TaskInfo
from stateflow.api.returned import WrongReturn
from stateflow.api.schema import RowSchema
from stateflow.api.vectorized import VectorizedKeyedFunction, VectorState
from stateflow.errors import SchemaMismatch, StateError, StateflowError, UserCodeError
from stateflow.keygroups import range_of
from stateflow.runtime.dead_letters import innermost
from stateflow.runtime.inputs import KeyedInputs, refuse_nulls
from stateflow.runtime.operator import batch_time
from stateflow.runtime.rows import event_times, group_starts
from stateflow.runtime.specs import GROUP_MASK, GROUP_SHIFT, PHASE_SHIFT, UnitSpec
from stateflow.state.backend import KeyedStateBackend
from stateflow.state.handles import StateSchema
from stateflow.state.key_columns import comparable, encode_keys
from stateflow.state.keyed import KeyedState
from stateflow.state.timers import NO_WATERMARK
from stateflow.time_to_live import StateTtlConfig

Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class _Rows:
    """Sorted rows of one phase."""

    order: Array
    columns: tuple[pa.Array, ...]

    def __len__(self) -> int:
        return len(self.order)

    @property
    def phase(self) -> int:
        return int(self.order[0]) >> PHASE_SHIFT

    def slice(self, start: int, end: int) -> _Rows:
        return _Rows(self.order[start:end], tuple(c.slice(start, end - start) for c in self.columns))


def _together(parts: Sequence[_Rows]) -> _Rows:
    if len(parts) == 1:
        return parts[0]
    columns = zip(*(part.columns for part in parts), strict=True)
    return _Rows(np.concatenate([p.order for p in parts]), tuple(pa.concat_arrays(c) for c in columns))


class VectorOperator:
    """Feeds a function with batches of whole keys and collects what it emits, as (phase, rows).

    The last key of an Arrow batch may have more rows in the next: it is held back until another key comes, or the
    phase ends. A key's rows are together in memory.

    Args:
        spec: the unit; `emits` is set.
        info: the subtask.
        backend: with the base state restored.
    """

    def __init__(self, spec: UnitSpec, info: TaskInfo, backend: KeyedStateBackend) -> None:
        assert isinstance(spec.function, VectorizedKeyedFunction)
        assert spec.keying is not None and spec.emits is not None
        self._spec = spec
        self._function = spec.function
        self._emits: RowSchema = spec.emits
        self._schema = spec.inputs[0].schema
        self._names = spec.keying.columns
        self._input = KeyedInputs(spec)[0]
        self._keys = self._input.keys
        self._groups = range_of(info.subtask, info.parallelism, info.max_parallelism)
        self._state = KeyedState(backend, spec.known_states, batch_time(info))
        self._held: list[_Rows] = []
        self._latest: int | None = None
        """The latest event time of the rows that the function is given."""
        self._state.clock.row_time = lambda: self._latest
        self._guarded("open", lambda: self._function.open(RuntimeContext(self._state, info)))
        self._expires_by_rows = any(
            config.ttl_time_characteristic is StateTtlConfig.TtlTimeCharacteristic.EventTime
            for config in self._state.times_to_live.values()
        )

    @property
    def schemas(self) -> list[StateSchema]:
        """The states that the function declared."""
        return self._state.schemas

    def process(self, order: Array, columns: Sequence[pa.Array]) -> Iterator[tuple[int, pa.RecordBatch]]:
        """Feeds sorted rows of one phase; gives what the function emitted for the keys that are whole."""
        rows = _Rows(order, tuple(columns))
        refuse_nulls(self._spec, self._input, rows.columns)
        if self._held and self._held[0].phase != rows.phase:
            yield from self.flush()
        last = group_starts(rows.order, self._key_columns(rows))[-1]
        if last == 0 and self._goes_on(rows):
            self._held.append(rows)
            return
        whole = _together([*self._held, rows.slice(0, last)])
        self._held = [rows.slice(last, len(rows))]
        yield from self._feed(whole)

    def finish(self) -> Iterator[tuple[int, pa.RecordBatch]]:
        """Ends the batch: the last key, then `close`."""
        yield from self.flush()
        self._guarded("close", self._function.close)

    def clean_up(self, limit: int) -> None:
        """Removes some of what has expired; `limit` as in `KeyedState.clean_up`."""
        self._state.clean_up(self._groups, limit)

    def remove_expired(self) -> None:
        """Removes all that has expired, for a full snapshot."""
        self._state.remove_expired(self._groups)

    def abandon(self) -> None:
        """Closes the function after a failure."""
        self._guarded("close", self._function.close)

    def _goes_on(self, rows: _Rows) -> bool:
        """Whether the first of `rows` may be of the key that is held back."""
        if not self._held:
            return True
        before = self._held[-1]
        border = _together([before.slice(len(before) - 1, len(before)), rows.slice(0, 1)])
        return len(group_starts(border.order, self._key_columns(border))) == 1

    def _key_columns(self, rows: _Rows) -> list[pa.Array]:
        return [comparable(rows.columns[at]) for at in self._keys]

    def flush(self) -> Iterator[tuple[int, pa.RecordBatch]]:
        """Feeds the key that is held back: no more rows of this phase come."""
        if self._held:
            whole, self._held = _together(self._held), []
            yield from self._feed(whole)

    def _feed(self, rows: _Rows) -> Iterator[tuple[int, pa.RecordBatch]]:
        starts = np.array(group_starts(rows.order, self._key_columns(rows)))
        at = pa.array(starts)
        keys = pa.RecordBatch.from_arrays([rows.columns[k].take(at) for k in self._keys], names=self._names)
        groups = (rows.order[starts] >> GROUP_SHIFT & GROUP_MASK).astype(">u2").view("V2").tolist()
        many = self._state.many_keys(groups, self._encoded(keys))
        state = VectorState(keys, starts, len(rows), many)
        batch = pa.RecordBatch.from_arrays(list(rows.columns), schema=self._schema.arrow)
        if self._expires_by_rows and self._input.time is not None:
            latest = int(event_times(rows.columns[self._input.time]).max())
            self._latest = None if latest == NO_WATERMARK else latest
        emitted = self._guarded("process_batch", lambda: self._function.process_batch(batch, state))
        self._state.end_stretch()
        if emitted is not None:
            self._check_rows(emitted)
            for made in _conforming(emitted, self._emits, self._spec.uid):
                yield rows.phase, made

    def _check_rows(self, emitted: object) -> None:
        if not isinstance(emitted, pa.RecordBatch | pa.Table):
            wrong = WrongReturn(self._function.process_batch, emitted, "return rows as Arrow columns, or None",
                                "return one pyarrow.RecordBatch or pyarrow.Table, and do not yield")  # fmt: skip
            raise SchemaMismatch(str(wrong), hint=wrong.hint, operator=self._spec.uid, given=type(emitted).__name__,
                                 where=wrong.where)  # fmt: skip

    def _encoded(self, keys: pa.RecordBatch) -> list[bytes]:
        try:
            return encode_keys(keys.columns)
        except (StateflowError, ValueError, OverflowError, pa.ArrowException) as e:
            raise StateError("a key cannot be read", hint="filter such rows in a transform, or cast the column",
                             operator=self._spec.uid, columns=list(self._names),
                             reason=str(e)[:300]) from e  # fmt: skip

    def _guarded(self, name: str, call: Callable[[], Any]) -> Any:
        try:
            return call()
        except StateflowError as e:
            e.add_facts(operator=self._spec.uid)
            raise
        except Exception as e:
            raise UserCodeError(
                f"{name} of an operator raised {type(e).__name__}: {e}", hint="mend the function; nothing of "
                "this batch was committed", operator=self._spec.uid, where=innermost(e),
            ) from e  # fmt: skip


def _conforming(emitted: pa.RecordBatch | pa.Table, schema: RowSchema, uid: str) -> Iterator[pa.RecordBatch]:
    """What a function emitted, with the declared columns in their order. Raises SchemaMismatch."""
    if sorted(emitted.schema.names) != sorted(schema.names):
        raise SchemaMismatch("process_batch returned other columns than those of its output class", hint="each once",
                             operator=uid, declared=list(schema.names), given=emitted.schema.names)  # fmt: skip
    batches = [emitted] if isinstance(emitted, pa.RecordBatch) else emitted.to_batches()
    for batch in batches:
        if len(batch):
            columns = [
                _column(batch.column(c.name), c.arrow_type, c.nullable, (uid, c.name)) for c in schema.columns
            ]
            yield pa.RecordBatch.from_arrays(columns, schema=schema.arrow)


def _column(values: pa.Array, wanted: pa.DataType, nullable: bool, where: tuple[str, str]) -> pa.Array:
    uid, name = where
    if values.null_count and not nullable:
        raise SchemaMismatch("a null in a column that is declared without it", hint="fill it, or declare it as "
                             "… | None", operator=uid, column=name)  # fmt: skip
    if values.type.equals(wanted):
        return values
    # A cast from float to int, or from a number to a text, would hide a mistake.
    if not _widens(values.type, wanted):
        raise SchemaMismatch("a column has another type than declared", hint="cast it before it is returned",
                             operator=uid, column=name, declared=str(wanted), given=str(values.type))  # fmt: skip
    return pc.cast(values, wanted)


def _widens(given: pa.DataType, wanted: pa.DataType) -> bool:
    """Whether every value of one type is one of the other."""
    kinds = pa.types
    if kinds.is_null(given):
        return True
    if kinds.is_int64(wanted):
        return bool(kinds.is_integer(given) and not kinds.is_uint64(given))
    if kinds.is_float64(wanted):
        return bool(kinds.is_float32(given) or kinds.is_float16(given))
    same = ((kinds.is_string, kinds.is_large_string), (kinds.is_binary, kinds.is_large_binary))
    return any(plain(wanted) and large(given) for plain, large in same)
