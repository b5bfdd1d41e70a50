"""Names the user's function that returned something other than what its caller takes."""

from __future__ import annotations

from typing import Any


class WrongReturn(TypeError):
    """A user's function returned something other than what its caller takes.

    Attributes:
        hint: what to return instead.
        where: file and line of the function.
    """

    def __init__(self, function: Any, returned: object, wanted: str, hint: str) -> None:
        name = str(getattr(function, "__qualname__", type(function).__qualname__))
        super().__init__(f"{name} must {wanted}, but it returned an object of type {type(returned).__name__}")
        self.hint = hint
        self.where = _where(function)


def named_if_no_rows(error: Exception, returned: object, function: Any) -> Exception:
    """A `WrongReturn` when `error` was raised because `returned` cannot be iterated; else `error`.

    Args:
        returned: what `function` returned last.
        function: the user's, which may return rows or None.
    """
    if not isinstance(error, TypeError) or returned is None or _is_iterable(returned):
        return error
    return WrongReturn(function, returned, "yield rows or return an iterable of rows",
                       "yield the row, or return a list with it")  # fmt: skip


def _is_iterable(value: Any) -> bool:
    try:
        iter(value)
    except TypeError:
        return False
    return True


def message_and_hint(error: Exception, called: str) -> tuple[str, str]:
    """What a `UserCodeError` for an error of `called` says."""
    if isinstance(error, WrongReturn):
        return str(error), error.hint
    return f"{called} raised {type(error).__name__}: {error}", "fix the function"


def _where(function: Any) -> str:
    """File and line; of its class's `__call__` for an object. Empty for what is not written in Python."""
    code = getattr(function, "__code__", None)
    if code is None:
        code = getattr(getattr(type(function), "__call__", None), "__code__", None)  # noqa: B004 - of the class
    return f"{code.co_filename}:{code.co_firstlineno}" if code is not None else ""
