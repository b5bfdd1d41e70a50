"""Facts of errors and log lines have the names that docs/reference/json.md promises, wherever the code gives them."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest

from stateflow import errors

_ROOT = Path(__file__).parents[2]
_TAKERS = {
    "log_event",
    "add_facts",
    "failure",
    "PermanentFailure",
    "TransientFailure",
    *(name for name, kind in vars(errors).items() if isinstance(kind, type)),
}
"""What takes facts, as keywords or a dictionary, apart from functions with ``**facts``."""
_NO_FACTS = {"hint", "text"}
_ARGUMENTS = {"given", "split_size"}
"""Facts that are arguments as the user has given them; a split has a number of rows."""
_WRONG = re.compile(r"(.*_)?(size|seconds|minutes|millis|milliseconds)|bytes|ms|at|since|timeout|checkpoint")
_ENDS = {
    "_bytes": re.compile(r"(.*_)?(bytes|size|nbytes|BYTES)"),
    "_ms": re.compile(r".*_ms|to_milliseconds"),
    "_at": re.compile(r"(.*_)?at"),
    "checkpoint_id": re.compile(r"(.*_)?checkpoint_id"),
}
"""The end of a fact's name, by the name of its value."""


def _names_in(tree: ast.Module, takers: set[str]) -> Iterator[tuple[int, str, str, set[str]]]:
    """Yields the line, the name and the name of the value of each fact, and all names of its call."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and _last(node.func) in takers:
            given = [(each.arg, each.value) for each in node.keywords if each.arg and each.arg not in _NO_FACTS]
            dictionaries = [*node.args, *(each.value for each in node.keywords if each.arg in (None, "facts"))]
            given += [item for each in dictionaries if isinstance(each, ast.Dict) for item in _items(each)]
        elif isinstance(node, ast.Assign) and isinstance(node.value, ast.Dict) and _last(node.targets[0]) == "facts":
            given = _items(node.value)
        else:
            continue
        for name, value in given:
            yield value.lineno, name, _last(value.func if isinstance(value, ast.Call) else value), {n for n, _ in given}


def _items(literal: ast.Dict) -> list[tuple[str, ast.expr]]:
    pairs = zip(literal.keys, literal.values, strict=True)
    return [(key.value, value) for key, value in pairs if isinstance(key, ast.Constant) and isinstance(key.value, str)]


def _last(node: ast.expr) -> str:
    """Returns the last name of an expression such as ``head.checkpoint_id``; empty for others."""
    return node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""


def _wrong_in(tree: ast.Module, takers: set[str] = _TAKERS) -> list[str]:
    found = []
    for line, name, value, others in _names_in(tree, takers):
        ends = [end for end, values in _ENDS.items() if values.fullmatch(value)]
        is_without_unit = name in ("limit", "expected", "found") and any(each.endswith("_bytes") for each in others)
        is_wrong = _WRONG.fullmatch(name) or is_without_unit or not all(name.endswith(end) for end in ends)
        if is_wrong and name not in _ARGUMENTS:
            found.append(f"{line}: {name}={value}")
    return found


def _with_facts(trees: Iterable[ast.Module]) -> set[str]:
    functions = (node for tree in trees for node in ast.walk(tree) if isinstance(node, ast.FunctionDef))
    named = {each.name for each in functions if each.args.kwarg and each.args.kwarg.arg == "facts"}
    # Attributes of spans have names of their own.
    return named - {"__init__", "span"}


@pytest.mark.long(reason="parses all modules")
def test_durations_sizes_times_and_checkpoints_have_the_ends_of_names_that_json_has() -> None:
    files = [path for folder in ("stateflow", "plugins") for path in sorted((_ROOT / folder).rglob("*.py"))]
    trees = {str(path.relative_to(_ROOT)): ast.parse(path.read_text()) for path in files}
    takers = _TAKERS | _with_facts(trees.values())
    wrong = {name: found for name, tree in trees.items() if (found := _wrong_in(tree, takers))}
    assert wrong == {}, wrong


@pytest.mark.parametrize(
    "call",
    [
        "ConfigError('x', bytes=len(data))",
        "TooLarge('x', size_bytes=size, limit=_LIMIT)",
        "DataError('x', checkpoint=ref.id)",
        "DataError('x', newest=head.checkpoint_id)",
        "log_event(log, 20, 'committed', seconds=round(result.seconds, 3))",
        "log_event(log, 20, 'committed', took=record.duration_ms)",
        "e.add_facts(since=claim.at)",
        "Fenced('x', **{'at': claim.at})",
        "PermanentFailure('x', 'y', 'z', {'size': 3})",
        "facts = {'timeout': timeout_ms}",
    ],
)
def test_a_name_without_its_end_is_found(call: str) -> None:
    assert len(_wrong_in(ast.parse(call))) == 1
    right = "DataError('x', hint='at', checkpoint_id=ref.id, size_bytes=size, limit_bytes=3)"
    assert _wrong_in(ast.parse(right)) == []
