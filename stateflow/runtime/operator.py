"""One subtask of a keyed operator working off one batch; the same with and without Spark.

Rows come in Arrow batches, sorted: key group, key, the declared order, then order of arrival.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from itertools import accumulate, pairwise
from typing import Any

import numpy as np
import pyarrow as pa

from stateflow.api.co_functions import KeyedBroadcastProcessFunction, KeyedCoProcessFunction
from stateflow.api.functions import Context, KeyedFunction, KeyedProcessFunction, RuntimeContext, TaskInfo
from stateflow.errors import InternalError, StateError, StateflowError, UserCodeError
from stateflow.keygroups import range_of
from stateflow.runtime.rows import Maker, group_starts, row_maker, to_list, to_rows
from stateflow.runtime.specs import GROUP_MASK, GROUP_SHIFT, InputSpec, UnitSpec
from stateflow.serializers import encode_key
from stateflow.state.backend import KeyedStateBackend
from stateflow.state.current import BatchTime
from stateflow.state.handles import StateSchema
from stateflow.state.keyed import KeyedState

Key = tuple[Any, ...]
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
Caller = Callable[[Any, Context], Iterable[Any] | None]


@dataclass(frozen=True)
class _Input:
    """How rows of one input are read.

    Attributes:
        columns: which of all columns are its own.
        keys: which of those are the key.
    """

    names: tuple[str, ...]
    columns: slice
    keys: tuple[int, ...]
    maker: Maker


@dataclass(frozen=True)
class _Part:
    """The rows of one input; `places` says which of all rows they are, None that they are all."""

    input: _Input
    places: np.ndarray[Any, Any] | None
    columns: Sequence[pa.Array]

    @property
    def keys(self) -> list[pa.Array]:
        return [self.columns[i] for i in self.input.keys]


def _rows(parts: Sequence[_Part], count: int) -> list[Any]:
    """Row objects in the order in which they came."""
    if len(parts) == 1:
        return to_rows(parts[0].columns, parts[0].input.maker)
    rows: list[Any] = [None] * count
    for part in parts:
        assert part.places is not None
        for place, row in zip(part.places.tolist(), to_rows(part.columns, part.input.maker), strict=True):
            rows[place] = row
    return rows


def _inputs(specs: Sequence[InputSpec]) -> list[_Input]:
    starts = [0, *accumulate(len(spec.schema.names) for spec in specs)]
    return [
        _Input(spec.schema.names, slice(start, end), _key_indexes(spec), row_maker(spec.schema))
        for spec, (start, end) in zip(specs, pairwise(starts), strict=True)
    ]


def _key_indexes(spec: InputSpec) -> tuple[int, ...]:
    return tuple(spec.schema.names.index(c) for c in spec.keying.columns) if spec.keying else ()


def _callers(function: KeyedFunction[Any]) -> tuple[Caller, ...]:
    """What is called for the rows of each keyed input."""
    if isinstance(function, KeyedCoProcessFunction):
        return (function.process_element1, function.process_element2)
    assert isinstance(function, KeyedProcessFunction | KeyedBroadcastProcessFunction)
    return (function.process_element,)


class KeyedOperator:
    """Feeds a function with rows and collects what it emits.

    Args:
        spec: the unit.
        info: the subtask.
        backend: with the base state restored.
    """

    def __init__(self, spec: UnitSpec, info: TaskInfo, backend: KeyedStateBackend) -> None:
        assert spec.function is not None and spec.keying is not None
        self._spec = spec
        self._function: KeyedFunction[Any] = spec.function
        self._columns = spec.keying.columns
        self._inputs = _inputs(spec.inputs)
        self._callers = _callers(spec.function)
        self._has_batch_end = type(spec.function).on_batch_end is not KeyedFunction.on_batch_end
        self._groups = range_of(info.subtask, info.parallelism, info.max_parallelism)
        self._state = KeyedState(backend, spec.known_states, batch_time(info))
        self._context = Context(info)
        self._open: tuple[bytes, bytes, Key] | None = None
        """The last key of the batch before: whether it has more rows is not known yet."""
        self._call("open", lambda: self._function.open(RuntimeContext(self._state, info)))

    @property
    def schemas(self) -> list[StateSchema]:
        """The states that the function declared."""
        return self._state.schemas

    def process(
        self,
        order: np.ndarray[Any, Any],
        columns: Sequence[pa.Array],
        which: np.ndarray[Any, Any] | None = None,
    ) -> list[Any]:
        """Feeds sorted rows of one phase; returns what the function emitted to its main output.

        Args:
            order: the `_order` of each row.
            columns: the rows' columns, as the input schema has them; of several inputs, one behind the other.
            which: the input of each row; None where all are of the first.
        """
        parts = self._parts(columns, which)
        keys = self._keys(parts)
        starts = group_starts(order, keys)
        # Before the rows are made: a key that cannot be read is told as what it is.
        named = self._named_groups(order, keys, starts, columns)
        rows = _rows(parts, len(order))
        came_by = which.tolist() if which is not None and len(self._callers) > 1 else None
        emitted: list[Any] = []
        self._state.begin_stretch([(group, key) for group, key, _ in named])
        for (start, end), group in zip(pairwise([*starts, len(rows)]), named, strict=True):
            self._enter(group, emitted)
            if came_by is None:
                self._feed(self._callers[0], rows[start:end], emitted)
            else:
                self._feed_each(rows[start:end], came_by[start:end], emitted)
        self._state.end_stretch()
        return emitted

    def broadcast(self, columns: Sequence[pa.Array]) -> list[Any]:
        """Feeds rows of the broadcast stream, which have no key; returns what the function emitted."""
        assert isinstance(self._function, KeyedBroadcastProcessFunction)
        side = self._inputs[1]
        emitted: list[Any] = []
        self._context.set_key(())
        self._feed(
            self._function.process_broadcast_element, to_rows(columns[side.columns], side.maker), emitted
        )
        return emitted

    def take_side_outputs(self) -> dict[str, list[Any]]:
        """What the function emitted to side outputs since it was last asked, by the tag's name."""
        return self._context.take_side_outputs()

    def finish(self) -> list[Any]:
        """Ends the batch: the last key's end, then `close`."""
        emitted: list[Any] = []
        self._end_open_key(emitted)
        self._state.end_stretch()
        self._call("close", self._function.close)
        return emitted

    def clean_up(self, limit: int) -> None:
        """Removes some of what has expired; `limit` as in `KeyedState.clean_up`."""
        self._state.clean_up(self._groups, limit)

    def remove_expired(self) -> None:
        """Removes all that has expired, for a full snapshot."""
        self._state.remove_expired(self._groups)

    def abandon(self) -> None:
        """Closes the function after a failure."""
        self._call("close", self._function.close)

    def _enter(self, group: tuple[bytes, bytes, Key], emitted: list[Any]) -> None:
        # By their bytes, not their values: a NaN is not equal to itself, and still one key.
        if self._open is None or self._open[:2] != group[:2]:
            self._end_open_key(emitted)
            self._open = group
        self._make_current(group)

    def _end_open_key(self, emitted: list[Any]) -> None:
        if self._open is None:
            return
        if self._has_batch_end:
            self._make_current(self._open)
            self._call(
                "on_batch_end", lambda: emitted.extend(self._function.on_batch_end(self._context) or ())
            )
        self._open = None

    def _make_current(self, group: tuple[bytes, bytes, Key]) -> None:
        if self._state.current != group[:2]:
            self._state.switch(group[0], group[1])
            self._context.set_key(group[2])

    def _feed_each(self, rows: list[Any], came_by: list[int], emitted: list[Any]) -> None:
        """Rows of one key from several inputs, in stretches of the same."""
        cuts = [i for i in range(1, len(rows)) if came_by[i] != came_by[i - 1]]
        for start, end in pairwise([0, *cuts, len(rows)]):
            self._feed(self._callers[came_by[start]], rows[start:end], emitted)

    def _feed(self, function: Caller, rows: list[Any], emitted: list[Any]) -> None:
        context = self._context
        row = None
        try:
            for row in rows:
                out = function(row, context)
                if out is not None:
                    emitted.extend(out)
        except StateflowError:
            raise
        except Exception as e:
            raise self._user_error(function.__name__, row, e) from e

    def _call(self, name: str, call: Callable[[], object]) -> None:
        try:
            call()
        except StateflowError:
            raise
        except Exception as e:
            raise self._user_error(name, None, e) from e

    def _user_error(self, name: str, row: Any, error: Exception) -> UserCodeError:
        key = dict(zip(self._columns, self._open[2], strict=True)) if self._open else None
        return UserCodeError(
            f"{name} of an operator raised {type(error).__name__}: {error}", hint="mend the function; nothing of "
            "this batch was committed", operator=self._spec.uid, key=repr(key), row=repr(row)[:500],
            where=innermost(error),
        )  # fmt: skip

    def _named_groups(self, order: np.ndarray[Any, Any], keys: list[pa.Array], starts: list[int],
                      columns: Sequence[pa.Array]) -> list[tuple[bytes, bytes, Key]]:  # fmt: skip
        at = pa.array(starts, pa.int64())
        firsts = [k.take(at) for k in keys]
        groups = (order[starts] >> GROUP_SHIFT & GROUP_MASK).tolist() if starts else []
        try:
            values = zip(*[to_list(k) for k in firsts], strict=True)
            return [(struct.pack(">H", g), encode_key(v), v) for g, v in zip(groups, values, strict=True)]
        except Exception as e:
            self._refuse_failing_key(firsts, [c.take(at) for c in columns])
            raise InternalError("a batch's keys cannot be read, but each can", operator=self._spec.uid) from e

    def _parts(self, columns: Sequence[pa.Array], which: np.ndarray[Any, Any] | None) -> list[_Part]:
        """The rows, apart by input."""
        first, *others = self._inputs
        if which is None or not others or not which.any():
            return [_Part(first, None, columns[first.columns])]
        parts = []
        for number, each in enumerate(self._inputs):
            places = np.flatnonzero(which == number)
            taken = [column.take(pa.array(places)) for column in columns[each.columns]]
            parts.append(_Part(each, places, taken))
        return parts

    def _keys(self, parts: Sequence[_Part]) -> list[pa.Array]:
        """Each row's key, column by column."""
        for part in parts:
            refuse_null_keys(self._spec, part.input.names, part.input.keys, part.columns)
        if len(parts) == 1:
            return parts[0].keys
        back = pa.array(np.argsort(np.concatenate([part.places for part in parts])))
        return [
            pa.concat_arrays(same).take(back) for same in zip(*[part.keys for part in parts], strict=True)
        ]

    def _refuse_failing_key(self, keys: list[pa.Array], columns: Sequence[pa.Array]) -> None:
        """Finds the key that cannot be read or encoded, and raises StateError with its row."""
        for at in range(len(keys[0])):
            try:
                encode_key(tuple(k[at].as_py() for k in keys))
            except Exception as e:
                names = [name for each in self._inputs for name in each.names]
                row = {n: _shown(c[at]) for n, c in zip(names, columns, strict=True) if c[at].is_valid}
                raise StateError("a key cannot be read", hint="filter such rows in a transform, or cast the column",
                                 operator=self._spec.uid, columns=list(self._columns), row=repr(row)[:500],
                                 reason=str(e)) from e  # fmt: skip


def batch_time(info: TaskInfo) -> BatchTime:
    """When the batch of a subtask is."""
    since = info.processing_time - _EPOCH
    return BatchTime(info.epoch, since // timedelta(milliseconds=1), info.watermark)


def refuse_null_keys(
    spec: UnitSpec, names: Sequence[str], keys: Sequence[int], columns: Sequence[pa.Array]
) -> None:
    """Raises StateError with the first row whose key has a null.

    Args:
        names: of the columns.
        keys: which of them are the key.
    """
    for index in keys:
        column = columns[index]
        if column.null_count:
            at = column.is_null().to_numpy(zero_copy_only=False).argmax()
            row = {n: c[int(at)].as_py() for n, c in zip(names, columns, strict=True)}
            raise StateError("a key is null", hint="filter such rows in a transform, or replace null by a value",
                             operator=spec.uid, column=names[index], row=repr(row)[:500])  # fmt: skip


def _shown(cell: pa.Scalar) -> object:
    try:
        return cell.as_py()
    except Exception:  # it is shown because something in its row cannot be read
        return f"<unreadable {cell.type}>"


def innermost(error: BaseException) -> str:
    """File and line where an error was raised."""
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    return f"{trace.tb_frame.f_code.co_filename}:{trace.tb_lineno}" if trace is not None else ""
