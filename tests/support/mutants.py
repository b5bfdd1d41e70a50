"""Planted bugs: plausible mistakes in the product's code, by name. A search for faults must find the bug
planted for it; otherwise finding nothing in the real code is not evidence.

``python -m tests.support.mutants`` is the command line with the planted bug that the environment names.
"""

from __future__ import annotations

import ast
import importlib
import inspect
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import CodeType, ModuleType
from typing import Any

import pytest

VARIABLE = "STATEFLOW_TEST_MUTANT"
"""Of the environment: the bug in the processes that the tests start."""
_ROOT = Path(__file__).parents[2]
_HEAD = re.compile(r"(\S+?)((?: [A-Z]\d)*)(?: ([\w-]+))?: (.*)")
_HUNK = re.compile(r"^  (\w\S+)\n((?:  [-+=].*\n)+)", re.MULTILINE)
_OPTIMIZED = inspect.CO_OPTIMIZED
"""Flag of the code of functions, which that of classes and modules does not have."""


@dataclass(frozen=True)
class Mutant:
    """A planted bug of `mutants.txt`.

    Attributes:
        what: the bug in words.
        rules: of the simulator (`tests.model`); a history with this bug breaks one of them.
        plan: the simulator's directed search for this bug; by default each history draws its own plan.
        subject: the part of the code.
        hunks: files and lines of a diff; ``=`` for a line that stays.
    """

    name: str
    what: str
    rules: tuple[str, ...]
    plan: str
    subject: str
    hunks: tuple[tuple[str, str], ...]

    @property
    def changes(self) -> dict[str, tuple[str, str]]:
        """The texts of the changed files, as they are and with the bug."""
        found: dict[str, tuple[str, str]] = {}
        for file, hunk in self.hunks:
            original, text = found.get(file) or ((_ROOT / file).read_text(),) * 2
            old, new = ("\n".join(line[4:] for line in hunk.splitlines() if line[2] in signs) for signs in ("-=", "+="))
            assert text.count(old) == 1, f"{self.name}: {file} has this text {text.count(old)} times:\n{old}"
            found[file] = original, text.replace(old, new)
        return found


def _read(text: str) -> Iterator[Mutant]:
    subject = ""
    for block in text.split("\n\n"):
        head, _, hunks = block.rstrip("\n").partition("\n")
        if head.startswith("# "):
            subject = head[2:]
            continue
        parts, found = _HEAD.fullmatch(head), _HUNK.findall(f"{hunks}\n")
        assert parts and found and not _HUNK.sub("", f"{hunks}\n"), block
        name, rules, plan, what = parts.groups()
        yield Mutant(name, what, tuple(rules.split()), plan or "", subject, tuple(found))


MUTANTS = {mutant.name: mutant for mutant in _read(Path(__file__).with_suffix(".txt").read_text())}
STATE = [name for name, mutant in MUTANTS.items() if mutant.subject == "State, timers and time to live"]
SIMULATED = {name: mutant for name, mutant in MUTANTS.items() if mutant.rules}
"""Bugs that the simulator of the protocol finds."""


@contextmanager
def planted(name: str) -> Iterator[None]:
    """Plants a bug in this process and in those that it starts; none for an empty name."""
    with pytest.MonkeyPatch.context() as patched:
        if name:
            patched.setenv(VARIABLE, name)
            _plant(name, patched)
        yield


def plant_from_environment() -> None:
    """Plants the bug that the environment names, if any, in this process for good."""
    if name := os.environ.get(VARIABLE):
        _plant(name, pytest.MonkeyPatch())


def _plant(name: str, patched: pytest.MonkeyPatch) -> None:
    for patch in patches(name):
        patched.setattr(*patch)


@cache
def patches(name: str) -> tuple[tuple[Any, str, Any], ...]:
    """The places that a bug changes: an object, the name of an attribute, and its value with the bug."""
    found: list[tuple[Any, str, Any]] = []
    for file, (original, text) in MUTANTS[name].changes.items():
        module = importlib.import_module(file.removesuffix(".py").replace("/", "."))
        before, after = (dict(_functions(compile(each, file, "exec"))) for each in (original, text))
        for function, code in after.items():
            if function in before and _meaning(code) != _meaning(before[function]):
                # All that have imported the function run the new code.
                found.append((_function(module, function), "__code__", code))
        known = set(map(ast.dump, ast.parse(original).body))
        for statement in ast.parse(text).body:
            if isinstance(statement, (ast.Assign, ast.AnnAssign)) and ast.dump(statement) not in known:
                names = dict(vars(module))
                exec(compile(ast.Module([statement], []), file, "exec"), names)
                target = statement.targets[0] if isinstance(statement, ast.Assign) else statement.target
                found.append((module, ast.unparse(target), names[ast.unparse(target)]))
    assert found, name
    return tuple(found)


def _functions(code: CodeType) -> Iterator[tuple[str, CodeType]]:
    for inner in code.co_consts:
        if isinstance(inner, CodeType):
            yield from [(inner.co_qualname, inner)] if inner.co_flags & _OPTIMIZED else _functions(inner)


def _meaning(code: CodeType) -> tuple[object, ...]:
    """What of a function's code does not depend on its place in the file."""
    constants = [_meaning(each) if isinstance(each, CodeType) else (type(each), each) for each in code.co_consts]
    return code.co_code, code.co_names, code.co_varnames, code.co_freevars, code.co_cellvars, constants


def _function(module: ModuleType, qualified: str) -> Any:
    found: Any = module
    for part in qualified.split("."):
        found = inspect.getattr_static(found, part)
    return inspect.unwrap(getattr(found, "__func__", getattr(found, "fget", found)))


if __name__ == "__main__":
    from stateflow.cli.main import main

    plant_from_environment()
    main()
