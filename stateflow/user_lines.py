"""Facts of an exception about the user's code: the line that it comes from, and the module that it lacks."""

from __future__ import annotations

import inspect
import os
import re
import sysconfig
from pathlib import Path
from traceback import extract_tb

_PACKAGE = str(Path(__file__).parent) + os.sep
_FRAME = re.compile(r'^ *File "([^"\n]+)", line ([0-9]+)', re.MULTILINE)
_INSTALLED = tuple({sysconfig.get_paths()[name] + os.sep for name in ("stdlib", "platstdlib", "purelib", "platlib")})


def line_of_user(error: BaseException) -> str:
    """Returns file and line of the innermost frame outside of stateflow and the interpreter; empty without one.

    Frames of installed packages count only if there is no other.
    """
    return _innermost([(frame.filename, str(frame.lineno)) for frame in extract_tb(error.__traceback__)])


def line_in_traceback(text: str) -> str:
    """Returns what `line_of_user` would, for an exception of another process of which only the text is known.

    Frames of installed packages do not count.
    """
    found = _innermost(_FRAME.findall(text))
    return "" if found.startswith(_INSTALLED) else found


def line_of_class(made: object) -> str:
    """Returns file and line of an object's class; empty if it has no text."""
    try:
        return f"{inspect.getsourcefile(type(made))}:{inspect.getsourcelines(type(made))[1]}"
    except (OSError, TypeError):
        return ""


def _innermost(frames: list[tuple[str, str]]) -> str:
    others = [each for each in reversed(frames) if not each[0].startswith((_PACKAGE, "<"))]
    own = [each for each in others if not each[0].startswith(_INSTALLED)]
    return ":".join(next(iter([*own, *others]), ()))


def import_hint(error: ModuleNotFoundError) -> str:
    """Returns what to do about a module that a job imports and that does not exist."""
    name = (error.name or "").partition(".")[0] or "the module"
    return f"put {name}.py next to the job file and name it in an import statement; or install {name}, on workers too"
