"""The table of planted bugs is current: each can be made, and names tests that exist and run with `make test`."""

from __future__ import annotations

import ast
import re
from collections import Counter

import pytest

from tests.bugs.bug import BUGS, ROOT, Bug

_NAMED = ast.FunctionDef | ast.ClassDef
_IS_LEFT_OUT = re.compile(r"mark\.(slow|setup)")


def test_each_bug_has_a_name_of_its_own() -> None:
    assert [name for name, number in Counter(bug.name for bug in BUGS).items() if number > 1] == []


@pytest.mark.parametrize("bug", BUGS, ids=lambda bug: bug.name)
def test_the_mistake_can_be_made_and_its_tests_exist(bug: Bug) -> None:
    text = (ROOT / bug.file).read_text()
    assert text.count(bug.old) == 1
    ast.parse(text.replace(bug.old, bug.new))
    assert bug.tests
    for test in bug.tests:
        file, *parts = test.partition("[")[0].split("::")
        tree = ast.parse((ROOT / file).read_text())
        found = [node for node in ast.walk(tree) if isinstance(node, _NAMED) and node.name in parts]
        assert {node.name for node in found} == set(parts)
        marks = {ast.unparse(mark) for node in found for mark in node.decorator_list} | {"pytestmark"}
        assert not any(_IS_LEFT_OUT.search(mark) for mark in marks)
        assert marks.isdisjoint(_names_of_left_out(tree))


def _names_of_left_out(tree: ast.Module) -> set[str]:
    """The module's names for marks of tests that `make test` leaves out."""
    assigned = [
        node for node in tree.body if isinstance(node, ast.Assign) and _IS_LEFT_OUT.search(ast.unparse(node.value))
    ]
    return {ast.unparse(target) for node in assigned for target in node.targets}
