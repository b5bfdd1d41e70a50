"""A debugger that stops at the first line of a job's own code in the calls for one key."""

from __future__ import annotations

import inspect
import pdb
import sys
import sysconfig
from bdb import BdbQuit
from collections.abc import Callable, Iterable
from types import FrameType, TracebackType
from typing import TextIO

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
