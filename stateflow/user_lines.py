"""What an exception says about the user's code: the line that it comes from, and the module that it lacks."""

from __future__ import annotations

import os
import sysconfig
from pathlib import Path
from traceback import extract_tb

_PACKAGE = str(Path(__file__).parent) + os.sep
_INSTALLED = tuple({sysconfig.get_paths()[name] + os.sep for name in ("stdlib", "platstdlib", "purelib", "platlib")})


def line_of_user(error: BaseException) -> str:
    """Returns file and line of the innermost frame outside of stateflow and the interpreter; empty without one.

    Frames of installed packages count only if there is no other.
    """
    frames = [f for f in reversed(extract_tb(error.__traceback__)) if not f.filename.startswith((_PACKAGE, "<"))]
    own = [frame for frame in frames if not frame.filename.startswith(_INSTALLED)]
    for frame in [*own, *frames]:
        return f"{frame.filename}:{frame.lineno}"
    return ""


def import_hint(error: ModuleNotFoundError) -> str:
    """Returns what to do about a module that a job imports and that does not exist."""
    name = (error.name or "").partition(".")[0] or "the module"
    return f"put {name}.py next to the job file and name it in an import statement; or install {name}, on workers too"
