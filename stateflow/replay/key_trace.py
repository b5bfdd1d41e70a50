"""Records the calls of keyed functions for one key, and stops in a debugger before the first of them."""

from __future__ import annotations

import inspect
import pdb
import sys
import sysconfig
from bdb import BdbQuit
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import wraps
from types import FrameType, TracebackType
from typing import TextIO

import pyarrow as pa

from stateflow.api.functions.connected import KeyedCoProcessFunction
from stateflow.api.functions.process import Context, KeyedFunction, OnTimerContext
from stateflow.api.functions.vectorized import VectorizedKeyedFunction, VectorState
from stateflow.api.schema import RowSchema
from stateflow.errors import ConfigError, JobDefinitionError, WrongKeyType
from stateflow.runtime.executor import ChainSpec
from stateflow.state.handles import SubtaskState
from stateflow.types.columns.conversion import to_stored_scalar
from stateflow.types.key_values import encode_typed_key, group_of, parse_key


@dataclass(frozen=True)
class WantedKey:
    """One key of an operator.

    Attributes:
        values: the values of its key columns, as they are stored.
        group: its key group.
        encoded: the values as part of a stored key.
    """

    values: tuple[object, ...]
    group: int
    encoded: bytes

    def is_in(self, subtask: SubtaskState) -> bool:
        """Returns whether a subtask has the key's state."""
        return subtask.first_group <= self.group <= subtask.last_group

    def is_key(self, values: Sequence[object]) -> bool:
        """Returns whether the values of key columns, as a function receives them, are this key."""
        # Not the values: NaN is one key, and equal to no value.
        return encode_typed_key(list(map(to_stored_scalar, values))) == self.encoded


def _wanted(texts: Sequence[str], columns: Mapping[str, str], max_parallelism: int) -> WantedKey:
    values = parse_key(texts, columns)
    return WantedKey(values, group_of(values, list(columns.values()), max_parallelism), encode_typed_key(values))


@dataclass(frozen=True)
class KeyRequest:
    """The key that a user asks for.

    Attributes:
        texts: the value of each key column in its order, or a JSON array or object of them; see `parse_key`.
        operator: uid of the operator; empty for every operator whose key columns have such values.
    """

    texts: tuple[str, ...]
    operator: str = ""

    def keys(self, operators: Mapping[str, Mapping[str, str]], max_parallelism: int) -> dict[str, WantedKey]:
        """Returns the key of each operator that it is of, by uid.

        Args:
            operators: Spark's type name of each key column by its name, for each operator by uid.
            max_parallelism: number of key groups.

        Raises:
            ConfigError: the operator does not exist.
            WrongKeyType: the operator, or every operator, has keys of other types.
        """
        if self.operator and self.operator not in operators:
            raise ConfigError(
                "the job has no such keyed operator",
                hint="use one of the uids found",
                operator=self.operator,
                found=sorted(operators),
            )
        wanted = {self.operator: operators[self.operator]} if self.operator else operators
        found, errors = {}, []
        for uid, columns in wanted.items():
            try:
                found[uid] = _wanted(self.texts, columns, max_parallelism)
            except WrongKeyType as e:
                errors.append(e)
        if len(errors) == 1 and not found:
            raise errors[0]
        if not found:
            raise WrongKeyType(
                "no operator has keys of these values",
                hint="pass --key once for each key column of an operator",
                key=list(self.texts),
                types={uid: list(columns.values()) for uid, columns in operators.items()},
            )
        return found


_LIBRARIES = tuple({sysconfig.get_path(name) for name in ("stdlib", "purelib", "platlib")})


class DebuggerQuit(BaseException):
    """The user ended the debugger. Not an Exception: the operator must not count it as an error of the row."""


class KeyDebugger(pdb.Pdb):
    """Python's debugger for calls that the runtime makes one after another.

    It stops in the first call. After ``continue``, it stops at breakpoints only; after the last line of a call that was
    left with ``next``, ``step`` or ``return``, in the next call.

    Args:
        stdin, stdout: instead of those of the process.
    """

    def __init__(self, stdin: TextIO | None = None, stdout: TextIO | None = None) -> None:
        super().__init__(stdin=stdin, stdout=stdout, skip=["stateflow", "stateflow.*"])
        self._waits = True
        self._continues = False

    def call(self, method: Callable[..., Iterable[object] | None], *arguments: object) -> list[object]:
        """Calls a function and returns the rows that it returns or yields.

        Raises:
            DebuggerQuit: the user ended the debugger.
        """
        self.reset()
        if self._continues:
            # A frame in which the debugger never stops: then only breakpoints count.
            self.botframe = inspect.currentframe()
            self.set_continue()
            if not self.breaks:
                return rows_of(method, *arguments)
        self._waits = not self._continues
        before = sys.gettrace()
        sys.settrace(self.trace_dispatch)
        try:
            return rows_of(method, *arguments)
        except BdbQuit as e:
            raise DebuggerQuit from e
        finally:
            sys.settrace(before)

    def set_continue(self) -> None:
        """See `bdb.Bdb.set_continue`."""
        self._continues = True
        super().set_continue()

    def user_call(self, frame: FrameType, argument_list: None) -> None:
        """See `bdb.Bdb.user_call`; the first stop is at a line, not at the call before it."""
        if not self._waits:
            super().user_call(frame, argument_list)

    def user_line(self, frame: FrameType) -> None:
        """See `bdb.Bdb.user_line`."""
        if self._waits and not _is_own_code(frame):
            return
        self._waits = False
        super().user_line(frame)

    def user_return(self, frame: FrameType, return_value: object) -> None:
        """See `bdb.Bdb.user_return`."""
        if not self._waits:
            super().user_return(frame, return_value)

    def user_exception(
        self, frame: FrameType, exc_info: tuple[type[BaseException], BaseException, TracebackType]
    ) -> None:
        """See `bdb.Bdb.user_exception`."""
        if not self._waits:
            super().user_exception(frame, exc_info)


def rows_of(method: Callable[..., Iterable[object] | None], *arguments: object) -> list[object]:
    """Returns the rows that a call returns or yields."""
    return list(method(*arguments) or ())


def _is_own_code(frame: FrameType) -> bool:
    """Returns whether a frame is neither of the standard library nor of an installed package."""
    return not frame.f_code.co_filename.startswith(("<", *_LIBRARIES))


Fields = dict[str, object]
"""The columns of a row."""
Method = Callable[..., Iterable[object] | None]


@dataclass(frozen=True)
class TracedCall:
    """A call of an operator's function for the key.

    Attributes:
        operator: uid of the operator.
        method: name of the method that was called.
        given: the row; for a timer, its domain and its time in milliseconds since 1970; empty at the end of the batch.
            A call with the rows of several keys has those of the key in ``rows``.
        emitted: the first rows that it emitted to the main output.
        side_outputs: the first rows that it emitted to each side output, by tag.
        error: the exception that it raised; empty without one.
        count: number of rows that it emitted to all outputs.
    """

    operator: str
    method: str
    given: Fields
    emitted: tuple[Fields, ...] = ()
    side_outputs: Mapping[str, tuple[Fields, ...]] | None = None
    error: str = ""
    count: int = 0

    @property
    def rows_left(self) -> int:
        """The number of rows that it emitted in addition to those that are kept."""
        return self.count - len(self.emitted) - sum(map(len, (self.side_outputs or {}).values()))


class KeyTracer:
    """Replaces the methods of functions by ones that record their calls for a key.

    Args:
        keys: the key of each operator, by uid.
        debugger: runs the calls, if given.
        max_kept: calls of each operator, and rows of each output of a call, that are kept; None for all.

    Attributes:
        calls: the first calls of each operator, in order.
        counts: number of calls of each operator, by uid.
    """

    def __init__(
        self, keys: Mapping[str, WantedKey], debugger: KeyDebugger | None = None, max_kept: int | None = None
    ) -> None:
        self._keys = keys
        self._debugger = debugger
        self._max_kept = max_kept
        self.calls: list[TracedCall] = []
        self.counts: Counter[str] = Counter()

    def _add(self, call: TracedCall) -> None:
        self.counts[call.operator] += 1
        if self._max_kept is None or self.counts[call.operator] <= self._max_kept:
            self.calls.append(call)

    def trace_chain(self, chain: ChainSpec) -> ChainSpec:
        """Returns the chain of a task after replacing methods of its function, which is the task's own."""
        if chain.function is not None and chain.uid in self._keys:
            self._trace(chain, chain.function)
        return chain

    def _trace(self, chain: ChainSpec, function: KeyedFunction[object]) -> None:
        uid = chain.uid
        if isinstance(function, VectorizedKeyedFunction):
            columns = chain.keying.row_columns if chain.keying else ()
            _replace(function, "process_batch", self._of_batch(uid, columns, function.process_batch))
            return
        rows = ("process_element1", "process_element2") if isinstance(function, KeyedCoProcessFunction) else None
        for name in rows or ("process_element",):
            _replace(function, name, self._of_row(uid, getattr(function, name)))
        _replace(function, "on_timer", self._of_timer(uid, function.on_timer))
        _replace(function, "on_batch_end", self._of_batch_end(uid, function.on_batch_end))

    def _of_row(self, uid: str, method: Method) -> Method:
        @wraps(method)
        def process(row: object, ctx: Context) -> Iterable[object] | None:
            if not self._keys[uid].is_key(ctx.key_values):
                return method(row, ctx)
            return self._called(TracedCall(uid, method.__name__, fields_of(row)), ctx, method, row)

        return process

    def _of_timer(self, uid: str, method: Method) -> Method:
        @wraps(method)
        def on_timer(timestamp: int, ctx: OnTimerContext) -> Iterable[object] | None:
            if not self._keys[uid].is_key(ctx.key_values):
                return method(timestamp, ctx)
            given: Fields = {"domain": ctx.time_domain().value, "time": timestamp}
            return self._called(TracedCall(uid, method.__name__, given), ctx, method, timestamp)

        return on_timer

    def _of_batch_end(self, uid: str, method: Method) -> Method:
        @wraps(method)
        def on_batch_end(ctx: Context) -> Iterable[object] | None:
            if not self._keys[uid].is_key(ctx.key_values):
                return method(ctx)
            return self._called(TracedCall(uid, method.__name__, {}), ctx, method)

        return on_batch_end

    def _of_batch(
        self, uid: str, columns: Sequence[str], method: Callable[..., pa.RecordBatch | pa.Table | None]
    ) -> Callable[..., pa.RecordBatch | pa.Table | None]:
        @wraps(method)
        def process_batch(batch: pa.RecordBatch, state: VectorState) -> pa.RecordBatch | pa.Table | None:
            keys = [tuple(row.values()) for row in state.keys.to_pylist()]
            if self._keys[uid].values not in keys:
                return method(batch, state)
            number = keys.index(self._keys[uid].values)
            own = batch.slice(int(state.starts[number]), int(state.counts[number])).to_pylist()[: self._max_kept]
            call = TracedCall(uid, method.__name__, {"rows": own})
            try:
                found = self._run(lambda: [method(batch, state)])[0]
            except Exception as e:
                self._add(replace(call, error=_text(e)))
                raise
            assert found is None or isinstance(found, pa.RecordBatch | pa.Table)
            emitted = tuple(self._own(uid, columns, [] if found is None else found.to_pylist()))
            self._add(replace(call, emitted=emitted[: self._max_kept], count=len(emitted)))
            return found

        return process_batch

    def _own(self, uid: str, columns: Sequence[str], rows: Sequence[Fields]) -> Iterable[Fields]:
        """Yields the rows of the key: those with the key's columns, or all rows if the key is constant."""
        if not columns:
            return rows
        wanted = self._keys[uid].values
        return (row for row in rows if tuple(row.get(column) for column in columns) == wanted)

    def _called(self, call: TracedCall, ctx: Context, method: Method, *arguments: object) -> list[object]:
        mark = ctx.mark_side_outputs()
        try:
            emitted = self._run(method, *arguments, ctx)
        except Exception as e:
            self._add(replace(call, error=_text(e)))
            raise
        outputs = {tag: rows for tag, rows in ctx.side_outputs_since(mark).items() if rows}
        side = {tag: self._fields(rows) for tag, rows in outputs.items()}
        count = len(emitted) + sum(map(len, outputs.values()))
        self._add(replace(call, emitted=self._fields(emitted), side_outputs=side, count=count))
        return emitted

    def _fields(self, rows: Sequence[object]) -> tuple[Fields, ...]:
        return tuple(map(fields_of, rows[: self._max_kept]))

    def _run(self, method: Method, *arguments: object) -> list[object]:
        call = rows_of if self._debugger is None else self._debugger.call
        return call(method, *arguments)


def _replace(function: KeyedFunction[object], name: str, method: Callable[..., object]) -> None:
    # A frozen dataclass refuses assignments.
    object.__setattr__(function, name, method)


def _text(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"[:1000]


def fields_of(row: object) -> Fields:
    """Returns the columns of a row; its text for an object that is not a row."""
    try:
        return {name: getattr(row, name) for name in RowSchema.of(type(row)).names}
    except (JobDefinitionError, AttributeError):
        return {"value": repr(row)[:1000]}
