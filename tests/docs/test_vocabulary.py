"""``scripts/vocabulary.py``: which texts it reads, and what it reports."""

from __future__ import annotations

import pytest
from vocabulary import find_terms

MODULE = '''"""Reads the job folder."""

water_mark = {"check points": 1}  # recovery point

# A row is taken
# back here, `job folder` is code.
def f(value):
    """Summary.

    Drops a late event.
    """
    raise ValueError(f"{value} of a sub-task")
'''
OF_MODULE = [
    (1, "job folder"),
    (3, "recovery point"),
    (3, "check points"),
    (5, "taken back"),
    (10, "late event"),
    (12, "sub-task"),
]
TESTS = """def test_a_recovery_point_is_listed():
    late_event = "sent"


class TestRows:
    async def test_rows_of_a_late_row_are_merged(self):
        pass
"""
MAKEFILE = "# Makes\n# a save point.\nall:  ## check points\n\t@echo job folder\n"
PAGE = "Job folder.\n\n```\njob folder\n```\n\nThe flag `--job-folder` is not a water\nmark.\n"


@pytest.mark.parametrize(
    ("path", "text", "terms"),
    [
        ("a.py", MODULE, OF_MODULE),
        ("a.py", TESTS, [(1, "recovery point")]),
        ("a.md", PAGE, [(1, "Job folder"), (7, "water mark")]),
        ("a.md", "subtask savepoint watermarks job/folder retract", []),
        ("Makefile", MAKEFILE, [(2, "save point"), (3, "check points")]),
    ],
)
def test_docstrings_comments_texts_names_of_tests_and_pages_are_read_and_code_is_not(
    path: str, text: str, terms: list[tuple[int, str]]
) -> None:
    assert [(finding.line, finding.found) for finding in find_terms(path, text)] == terms
