"""Errors for return values of user functions that their caller cannot use."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, TypeVar

from stateflow.helpers import import_hint

Row = TypeVar("Row")


class InvalidReturnValue(TypeError):
    """A user function returned a value of the wrong type.

    Attributes:
        hint: what to return instead.
        where: file and line of the function.
    """

    def __init__(self, function: object, returned: object, wanted: str, hint: str) -> None:
        name = str(getattr(function, "__qualname__", type(function).__qualname__))
        super().__init__(f"{name} must {wanted}, but it returned an object of type {type(returned).__name__}")
        self.hint = hint
        self.where = _where(function)


def invalid_if_not_iterable(error: Exception, returned: object, function: object) -> Exception:
    """Returns an `InvalidReturnValue` if `error` was raised because `returned` is not iterable; else `error`.

    Args:
        returned: the last return value of `function`.
        function: a user function that may return rows or None.
    """
    is_invalid = isinstance(error, TypeError) and returned is not None and not _is_iterable(returned)
    return _not_rows(function, returned) if is_invalid else error


def check_returned_rows(returned: Iterable[Row] | None, function: object) -> Iterable[Row]:
    """Returns the rows that a user function returned; none for None. Raises InvalidReturnValue."""
    if returned is not None and not _is_iterable(returned):
        raise _not_rows(function, returned)
    return returned or ()


def _not_rows(function: object, returned: object) -> InvalidReturnValue:
    return InvalidReturnValue(
        function, returned, "yield rows or return an iterable of rows", "yield the row, or return a list with it"
    )


def _is_iterable(value: Any) -> bool:
    try:
        iter(value)
    except TypeError:
        return False
    return True


def message_and_hint(error: Exception, called: str) -> tuple[str, str]:
    """Returns message and hint of the `UserCodeError` for an error that `called` raised."""
    if isinstance(error, InvalidReturnValue):
        return str(error), error.hint
    hint = import_hint(error) if isinstance(error, ModuleNotFoundError) else "fix the function"
    return f"{called} raised {type(error).__name__}: {error}", hint


def _where(function: object) -> str:
    """Returns file and line; for an object those of its class's `__call__`. Empty if it is not written in Python."""
    code = getattr(function, "__code__", None)
    if code is None:
        code = getattr(getattr(type(function), "__call__", None), "__code__", None)  # noqa: B004 - of the class
    return f"{code.co_filename}:{code.co_firstlineno}" if code is not None else ""
