"""``scripts/vocabulary.py``: which texts it reads, what it reports, and what it accepts."""

from __future__ import annotations

from pathlib import Path

import pytest
from vocabulary import Exemption, Finding, find_terms, read_exemptions

MODULE = '''"""Runs behind the claim."""

behind = {"behind": 1}  # nobody

# The run goes
# on here, `behind` is code.
def f(value):
    """Summary.

    It is told twice, besides.
    """
    raise ValueError(f"{value} is there")
'''
OF_MODULE = [(1, "behind"), (3, "nobody"), (5, "goes on"), (10, "told"), (10, "besides"), (12, "is there")]
TESTS = '''def test_it_goes_on_behind_a_run():
    it = "sent"


def it_is_no_test():
    """It is prose."""


class TestRows:
    async def test_rows_of_a_job_that_has_a_limit_are_merged(self):
        pass
'''
OF_TESTS = [(1, "it"), (1, "goes on"), (1, "behind")]
MAKEFILE = "# Made\n# anew.\nit:  ## beside tests\n\t@echo nobody\n"
OF_MAKEFILE = [(2, "anew"), (3, "beside")]
PAGE = "Told.\n\n```\nbehind\n```\n\nThe flag `--behind` is not\nused any more.\n"
ACCEPTED = "outmoded foretells a/behind behind_it momentum recommend it"


@pytest.mark.parametrize(
    ("path", "text", "terms"),
    [("a.py", MODULE, OF_MODULE), ("a.md", PAGE, [(1, "Told"), (7, "not used any more")]), ("a.md", ACCEPTED, [])],
    ids=["module", "page", "accepted"],
)
def test_docstrings_comments_texts_and_pages_are_read_and_code_is_not(
    path: str, text: str, terms: list[tuple[int, str]]
) -> None:
    assert [(finding.line, finding.found) for finding in find_terms(path, text)] == terms


@pytest.mark.parametrize(("path", "text", "terms"), [("a.py", TESTS, OF_TESTS), ("Makefile", MAKEFILE, OF_MAKEFILE)])
def test_names_of_tests_and_comments_of_the_makefile_are_read(
    path: str, text: str, terms: list[tuple[int, str]]
) -> None:
    assert [(finding.line, finding.found) for finding in find_terms(path, text)] == terms


def test_an_exception_covers_a_term_or_all_terms_of_a_path_and_needs_a_reason(tmp_path: Path) -> None:
    finding = Finding("docs/a.md", 1, "Behind", "after")
    assert Exemption("docs/a.md", "behind").covers(finding) and Exemption("docs/", "").covers(finding)
    assert not Exemption("docs/a.md", "told").covers(finding) and not Exemption("stateflow/", "").covers(finding)
    pyproject = tmp_path / "pyproject.toml"
    entry = 'path = "docs/a.md", term = "behind"'
    pyproject.write_text(f'[tool.vocabulary]\nallow = [{{ {entry}, reason = "a quotation" }}]\n')
    assert read_exemptions(pyproject) == [Exemption("docs/a.md", "behind")]
    pyproject.write_text(f"[tool.vocabulary]\nallow = [{{ {entry} }}]\n")
    with pytest.raises(ValueError):
        read_exemptions(pyproject)
