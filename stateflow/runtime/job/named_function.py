"""Loads a function that a user names as text: ``FILE.py:FUNCTION``, or ``MODULE:FUNCTION``."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

from stateflow.errors import ConfigError, StateflowError
from stateflow.runtime.job.loader import is_file, load_file
from stateflow.similar_names import did_you_mean
from stateflow.user_lines import line_of_user


def load_function(text: str) -> Callable[..., object]:
    """Returns the function that a text names.

    A file is loaded as a job file is, and one that is loaded already, such as the job file itself, is not loaded again.
    A module is imported.

    Args:
        text: ``FILE.py:FUNCTION`` with the path of a file, or ``MODULE:FUNCTION`` with a module that can be imported.

    Raises:
        JobDefinitionError: the file does not exist, or cannot be imported.
        ConfigError: the text is not of this form, the module cannot be imported, or has no such function.
    """
    where, _, name = text.rpartition(":")
    if not where or not name.isidentifier():
        raise ConfigError(
            "a function is not of the form FILE.py:FUNCTION or MODULE:FUNCTION",
            hint="for example changes.py:in_hours",
            function=text,
        )
    module = _from_file(Path(where)) if where.endswith(".py") else _imported(where)
    found = getattr(module, name, None)
    if not callable(found):
        functions = [known for known, value in vars(module).items() if callable(value) and not known.startswith("_")]
        raise ConfigError(
            "the module has no function of this name", hint=did_you_mean(name, functions), module=where, function=name
        )
    function: Callable[..., object] = found
    return function


def _from_file(path: Path) -> ModuleType:
    loaded = sys.modules.get(path.stem)
    file = getattr(loaded, "__file__", None)
    if loaded is not None and file is not None and is_file(path) and Path(file).resolve() == path.resolve():
        return loaded
    return load_file(path, "file of the function")


def _imported(module: str) -> ModuleType:
    try:
        return importlib.import_module(module)
    except StateflowError:
        raise
    except Exception as e:
        raise ConfigError(
            f"the module of a function cannot be imported: {type(e).__name__}: {e}",
            hint="pass the path of its file, as in changes.py:in_hours; or install the module",
            module=module,
            where=line_of_user(e),
        ) from e
