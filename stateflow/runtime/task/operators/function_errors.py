"""Translates exceptions of an operator's function into errors with operator, key, row and line."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager

from stateflow.api.functions.adapters import row_callable
from stateflow.api.functions.process import Context, KeyedFunction
from stateflow.api.functions.returned import invalid_if_not_iterable, message_and_hint
from stateflow.errors import EntryTooLarge, StateflowError, UserCodeError
from stateflow.runtime.task.operators.key_types import Key
from stateflow.runtime.user_code import described, innermost, naming_position


class FunctionErrors:
    """Translates the exceptions of one function.

    Args:
        operator: uid of the operator.
        key_columns: names of the key columns.
    """

    def __init__(self, operator: str, key_columns: Sequence[str], function: KeyedFunction[object]) -> None:
        self._operator = operator
        self._key_columns = key_columns
        self._function = function

    @property
    def columns(self) -> int:
        """The number of key columns."""
        return len(self._key_columns)

    def describe_key(self, key: Key) -> Mapping[str, object] | None:
        """Returns the key by column; None for the empty key of broadcast rows."""
        return dict(zip(self._key_columns, key, strict=True)) if key else None

    def adding_position(self, context: Context) -> AbstractContextManager[None]:
        """Returns a context manager that adds operator, key and row to errors of declarations and state."""
        return naming_position(self._operator, self._key_columns, context)

    def add_position(self, error: EntryTooLarge, key: Key, row: object) -> EntryTooLarge:
        """Returns an error with the facts of a row that the function was not called with."""
        error.add_facts(operator=self._operator, key=described(self.describe_key(key)), row=described(row))
        return error

    def call(self, name: str, call: Callable[[], object]) -> None:
        """Calls a method of the function that is not about a key.

        Raises:
            UserCodeError: the method raised.
        """
        try:
            call()
        except StateflowError:
            raise
        except Exception as e:
            raise self.user_error(name, e) from e

    def cause(self, method: str, error: Exception, returned: object) -> Exception:
        """Returns the error to report for a call: `InvalidReturnValue` if `method` did not return rows."""
        return invalid_if_not_iterable(error, returned, row_callable(self._function, method))

    def user_error(self, method: str, error: Exception, key: Key = (), row: object = None) -> UserCodeError:
        """Returns the error that fails the run.

        Args:
            key: empty if there is none.
            row: None if there is none.
        """
        message, hint = message_and_hint(error, f"{method} of an operator")
        return UserCodeError(
            message,
            hint=f"{hint}; nothing of this batch was committed",
            operator=self._operator,
            key=described(self.describe_key(key)),
            row=described(row),
            where=innermost(error, self._function),
        )
