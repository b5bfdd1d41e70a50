"""Applies functions without keyed state, such as `map` and `transform_columns`, to the rows of a partition."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from typing import NoReturn, cast

import pyarrow as pa

from stateflow.api.functions.process import RuntimeContext, TaskInfo
from stateflow.api.functions.returned import InvalidReturnValue, invalid_if_not_iterable, message_and_hint
from stateflow.api.functions.rich import RichFunction, RowStep, StepKind
from stateflow.api.functions.vectorized import ColumnsFunction
from stateflow.api.schema import RowSchema
from stateflow.checkpoint.barriers import message_with
from stateflow.errors import StateError, StateflowError, UserCodeError
from stateflow.runtime.task.dead_letters import DeadLetterCollector
from stateflow.runtime.task.row_conversion import conform_rows, to_batch, to_rows
from stateflow.runtime.user_code import find_user_line, is_user_error
from stateflow.state.kinds.keyed_state import KeyedState
from stateflow.types.columns.conversion import with_type


class _NoKeyedState:
    """Rejects access to keyed state in a function on an unkeyed stream."""

    def __getattr__(self, name: str) -> NoReturn:
        raise StateError(
            "a function on an unkeyed stream cannot use keyed state", hint="call key_by before the rich function"
        )


class RowFunctions:
    """A sequence of row functions, applied to the rows of one batch.

    Args:
        steps: the function objects are opened and closed, so they cannot be used again.
        info: the subtask.

    Attributes:
        filtered: number of rows that functions of `filter` have dropped.
    """

    def __init__(self, steps: Sequence[RowStep], info: TaskInfo) -> None:
        self._info = info
        self._steps = steps
        self.filtered = 0
        self._collectors = {
            at: DeadLetterCollector(step.on_error, step.name, info.epoch)
            for at, step in enumerate(steps)
            if step.on_error is not None
        }
        # No stream without a key has keyed state: any access to it raises.
        context = RuntimeContext(cast(KeyedState, _NoKeyedState()), info)
        for step in steps:
            if isinstance(step.function, RichFunction):
                self._call(step, "open", partial(step.function.open, context))

    def apply(self, rows: Iterable[object]) -> list[object]:
        """Returns the rows that the last function returns."""
        given = rows if isinstance(rows, list) else list(rows)
        for at, step in enumerate(self._steps):
            collector = self._collectors.get(at)
            failed = 0 if collector is None else collector.count
            made = self._step(step, given) if collector is None else _apply_with_dead_letters(step, given, collector)
            if step.kind is StepKind.FILTER and not step.emits_dead_letters:
                self.filtered += len(given) - len(made) - (0 if collector is None else collector.count - failed)
            given = made
        return given

    def close(self) -> None:
        """Closes the rich functions."""
        for step in self._steps:
            if isinstance(step.function, RichFunction):
                self._call(step, "close", step.function.close)

    @contextmanager
    def close_on_error(self) -> Iterator[None]:
        """Closes the rich functions if the body raises; errors of closing do not replace its error."""
        try:
            yield
        except BaseException:
            with suppress(StateflowError):
                self.close()
            raise

    def _step(self, step: RowStep, rows: Iterable[object]) -> list[object]:
        call, row, made = step.call, None, None
        result: list[object] = []
        try:
            for row in rows:
                if step.kind is StepKind.MAP:
                    result.append(call(row))
                elif step.kind is StepKind.FLAT_MAP:
                    made = call(row)
                    result += made or ()
                elif call(row):
                    result.append(row)
        except StateflowError:
            raise
        except Exception as e:
            raise self._user_error(step, step.kind.value, invalid_if_not_iterable(e, made, call), row) from e
        return result

    def _call(self, step: RowStep, name: str, call: Callable[[], object]) -> None:
        try:
            call()
        except StateflowError:
            raise
        except Exception as e:
            raise self._user_error(step, name, e) from e

    def _user_error(self, step: RowStep, name: str, error: Exception, row: object = None) -> UserCodeError:
        operator = {"operator": self._info.uid} if self._info.uid else {}
        what, hint = message_and_hint(error, name)
        return UserCodeError(
            what,
            hint=f"{hint}; nothing of this batch was committed",
            function=step.name,
            row=repr(row)[:500],
            where=find_user_line(error),
            **operator,
        )


def _rows_made(step: RowStep, row: object) -> Iterable[object]:
    """Returns the rows that a function makes of one row."""
    made = step.call(row)
    if step.kind is StepKind.MAP:
        return (made,)
    if step.kind is StepKind.FLAT_MAP:
        try:
            return iter(made or ())
        except TypeError as e:
            raise invalid_if_not_iterable(e, made, step.call) from e
    return (row,) if made else ()


def _apply_with_dead_letters(step: RowStep, rows: Iterable[object], collector: DeadLetterCollector) -> list[object]:
    """Returns what the function makes of the rows that do not fail, or the dead letters of the rows that fail."""
    result: list[object] = []
    for row in rows:
        letters: list[object] = []
        made: list[object] = []
        try:
            made = list(_rows_made(step, row))
        except Exception as e:
            if not is_user_error(e):
                raise
            letters.append(collector.collect(None, row, e))
        result += letters if step.emits_dead_letters else made
    return result


def apply_to_partition(
    steps: Sequence[RowStep], source: RowSchema, info: TaskInfo, batches: Iterable[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    """Applies row functions to the Arrow batches of a Spark partition.

    Args:
        source: schema of the rows in `batches`.

    Raises:
        RuntimeError: a function failed. Its message contains the encoded error, since Spark forwards only messages.
    """
    schema = steps[-1].schema
    try:
        functions = RowFunctions(steps, info)
        for batch in batches:
            with functions.close_on_error():
                rows = functions.apply(to_rows([batch.column(name) for name in source.names], source))
                made = to_batch(rows, schema)
            yield made
        functions.close()
    except StateflowError as e:
        raise RuntimeError(message_with(e)) from e


_CALLED = "the function of transform_columns"


@dataclass(frozen=True)
class ColumnStep:
    """A function over Arrow batches, with the columns that it takes and returns."""

    function: ColumnsFunction
    given: RowSchema
    output: RowSchema

    def apply(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yields the rows that the function returns.

        Raises:
            UserCodeError: the function raised an exception, or returned something else than rows.
            SchemaMismatch: the rows do not have the declared columns.
        """
        for batch in batches:
            if len(batch):
                returned = self._call(self._given(batch))
                if returned is not None:
                    yield from conform_rows(returned, self.output, _CALLED, function=_name(self.function))

    def apply_to_partition(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """As `apply`, for a function that Spark calls.

        Raises:
            RuntimeError: the function failed. Its message contains the encoded error: Spark forwards only messages.
        """
        try:
            yield from self.apply(batches)
        except StateflowError as e:
            raise RuntimeError(message_with(e)) from e

    def _given(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        columns = [with_type(batch.column(c.name), c.arrow_type) for c in self.given.columns]
        return pa.RecordBatch.from_arrays(columns, schema=self.given.arrow)

    def _call(self, batch: pa.RecordBatch) -> pa.RecordBatch | pa.Table | None:
        try:
            returned = self.function(batch)
            if returned is not None and not isinstance(returned, pa.RecordBatch | pa.Table):
                raise InvalidReturnValue(
                    self.function,
                    returned,
                    "return rows as Arrow columns, or None",
                    "return one pyarrow.RecordBatch or pyarrow.Table, and do not yield",
                )
        except StateflowError:
            raise
        except Exception as e:
            what, hint = message_and_hint(e, _CALLED)
            raise UserCodeError(
                what,
                hint=f"{hint}; nothing of this batch was committed",
                function=_name(self.function),
                where=find_user_line(e),
            ) from e
        return returned


def _name(function: ColumnsFunction) -> str:
    return str(getattr(function, "__qualname__", type(function).__qualname__))
