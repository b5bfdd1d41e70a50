"""Calls a function for rows: failing rows fail the run or become dead letters."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from stateflow.api.dead_letters import DEAD_LETTERS
from stateflow.api.functions.process import Context
from stateflow.checkpoint.barrier.task_report import Failure
from stateflow.errors import EntryTooLarge, StateflowError
from stateflow.runtime.task.dead_letters import DeadLetterCollector
from stateflow.runtime.task.operators.key_types import Key
from stateflow.runtime.task.operators.operator_runtime import OperatorRuntime
from stateflow.runtime.user_code import is_user_error

RowMethod = Callable[[object, Context], Iterable[object] | None]
"""A method of a function that processes one row."""


class RowCaller:
    """Calls a row method for rows of the current key, or for broadcast rows."""

    def __init__(self, runtime: OperatorRuntime) -> None:
        self._context = runtime.context
        self._errors = runtime.errors

    def call(self, method: RowMethod, rows: Sequence[object], emitted: list[object]) -> None:
        """Calls `method` for each row and appends what it emits.

        Raises:
            UserCodeError: a call raised.
        """
        context = self._context
        row = returned = None
        try:
            for row in rows:
                context.row = row
                returned = method(row, context)
                if returned is not None:
                    emitted.extend(returned)
        except StateflowError:
            raise
        except Exception as e:
            cause = self._errors.cause(method.__name__, e, returned)
            raise self._errors.user_error(method.__name__, cause, context.key_values, row) from e

    def refuse(self, key: Key, rows: Sequence[object], error: EntryTooLarge) -> None:
        """Reports rows that the function cannot be called with.

        Args:
            key: the key of the rows; it does not become the current key.

        Raises:
            EntryTooLarge: `error`, with operator, key and row; only without dead letters.
        """
        raise self._errors.add_position(error, key, rows[0])

    @property
    def dead_letters(self) -> tuple[int, Failure | None]:
        """The number of rows that became dead letters, and the error of the last one."""
        return 0, None


class DeadLetterRowCaller(RowCaller):
    """Emits a dead letter for each row whose call raises, and rolls back what that call changed and emitted."""

    def __init__(self, runtime: OperatorRuntime, collector: DeadLetterCollector) -> None:
        super().__init__(runtime)
        self._state = runtime.state
        self._operator_state = runtime.operator_state
        self._timers = runtime.timers
        self._collector = collector

    def call(self, method: RowMethod, rows: Sequence[object], emitted: list[object]) -> None:
        context, state, operator_state = self._context, self._state, self._operator_state
        for row in rows:
            count, side_outputs = len(emitted), context.mark_side_outputs()
            state.savepoint()
            operator_state.savepoint()
            context.row = row
            returned = None
            try:
                returned = method(row, context)
                emitted.extend(returned or ())
                state.commit()
            except Exception as e:
                if not is_user_error(e):
                    raise
                state.rollback()
                self._timers.resync_key()
                operator_state.rollback()
                del emitted[count:]
                context.rollback_side_outputs(side_outputs)
                cause = self._errors.cause(method.__name__, e, returned)
                letter = self._collector.collect(self._errors.describe_key(context.key_values), row, cause)
                context.output(DEAD_LETTERS, letter)

    def refuse(self, key: Key, rows: Sequence[object], error: EntryTooLarge) -> None:
        for row in rows:
            letter = self._collector.collect(self._errors.describe_key(key), row, error)
            self._context.output(DEAD_LETTERS, letter)

    @property
    def dead_letters(self) -> tuple[int, Failure | None]:
        return self._collector.count, self._collector.last


def row_caller(runtime: OperatorRuntime) -> RowCaller:
    """Returns the caller for the operator's `on_error`."""
    spec = runtime.spec
    if spec.on_error is None:
        return RowCaller(runtime)
    return DeadLetterRowCaller(runtime, DeadLetterCollector(spec.on_error, spec.uid, runtime.info.epoch))
