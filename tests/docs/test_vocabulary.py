"""``scripts/vocabulary.py``: which texts it reads, what it reports, and what it accepts."""

from __future__ import annotations

from pathlib import Path

import pytest

from scripts.vocabulary import Exemption, Finding, find_terms, read_exemptions

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


def _terms(path: str, text: str) -> list[tuple[int, str]]:
    return [(finding.line, finding.found) for finding in find_terms(path, text)]


def test_docstrings_comments_and_texts_of_a_module_are_read() -> None:
    assert _terms("a.py", MODULE) == [
        (1, "behind"),
        (3, "nobody"),
        (5, "goes on"),
        (10, "told"),
        (10, "besides"),
        (12, "is there"),
    ]


def test_prose_of_a_page_is_read_and_its_code_is_not() -> None:
    page = "Told.\n\n```\nbehind\n```\n\nThe flag `--behind` is not\nused any more.\n"
    assert _terms("a.md", page) == [(1, "Told"), (7, "not used any more")]


@pytest.mark.parametrize("text", ["outmoded", "foretells", "a/behind", "behind_it", "momentum", "recommend it"])
def test_words_that_contain_a_term_are_accepted(text: str) -> None:
    assert _terms("a.md", text) == []


def test_an_exception_covers_a_term_or_all_terms_of_a_path() -> None:
    finding = Finding("docs/a.md", 1, "Behind", "after")
    assert Exemption("docs/a.md", "behind").covers(finding) and Exemption("docs/", "").covers(finding)
    assert not Exemption("docs/a.md", "told").covers(finding) and not Exemption("stateflow/", "").covers(finding)


def test_an_exception_needs_a_reason(tmp_path: Path) -> None:
    pyproject = tmp_path / "pyproject.toml"
    pyproject.write_text(
        '[tool.vocabulary]\nallow = [{ path = "docs/a.md", term = "behind", reason = "a quotation" }]\n'
    )
    assert read_exemptions(pyproject) == [Exemption("docs/a.md", "behind")]
    pyproject.write_text('[tool.vocabulary]\nallow = [{ path = "docs/a.md" }]\n')
    with pytest.raises(ValueError):
        read_exemptions(pyproject)
