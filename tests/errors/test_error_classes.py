"""The tree of errors: what its docstring draws, and what callers and operators rely on."""

from __future__ import annotations

import copy
import pickle
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from stateflow import errors
from stateflow.checkpoint.barriers import Failure
from stateflow.errors import StateflowError

ROOT = Path(__file__).resolve().parents[2]


def _tree(cls: type[StateflowError]) -> Iterator[type[StateflowError]]:
    yield cls
    for child in cls.__subclasses__():
        if child.__module__ == errors.__name__:
            yield from _tree(child)


CLASSES = list(_tree(StateflowError))


def _drawn() -> dict[str, str]:
    """Returns each class of the docstring's picture and the class above it."""
    parents: dict[str, str] = {}
    path: list[str] = []
    for line in (errors.__doc__ or "").splitlines():
        match = re.match(r"    ((?:│   |    )*)(├── |└── )?([A-Z]\w+)  ", line)
        if match:
            depth = len(match[1]) // 4 + bool(match[2])
            path[depth:] = [match[3]]
            parents[match[3]] = path[depth - 1] if depth else "Exception"
    return parents


def test_the_docstring_draws_the_tree() -> None:
    assert _drawn() == {cls.__name__: cls.mro()[1].__name__ for cls in CLASSES}


def test_codes_exit_codes_and_retries_are_those_of_the_runbook() -> None:
    """Codes are what people search for and what Airflow's retry policy uses: they never change."""
    rows = re.findall(r"^\| `([a-z-]+)` \| (\d+) \| (yes|no) \|", (ROOT / "docs/runbook.md").read_text(), re.M)
    found = [(cls.code, str(cls.exit_code), "yes" if cls.retryable else "no") for cls in CLASSES]
    assert sorted(found) == sorted(rows) and len(rows) == 40
    words = [re.findall("[A-Z][a-z]+", cls.__name__.removesuffix("Error")) for cls in CLASSES]
    assert ["-".join(each).lower() for each in words] == [cls.code for cls in CLASSES]


@pytest.mark.parametrize("cls", CLASSES, ids=lambda cls: cls.__name__)
def test_an_error_keeps_sentence_facts_and_hint_when_copied_or_sent_by_a_task(cls: type[StateflowError]) -> None:
    assert str(cls("a thing is wrong")) == "a thing is wrong"
    error = cls("a thing is wrong", hint="fix it", name="x y", number=3)
    assert str(error) == "a thing is wrong name='x y' number=3\n  hint: fix it"
    for again in (pickle.loads(pickle.dumps(error)), copy.copy(error), Failure.of(error).to_error()):
        assert type(again) is cls
        assert (again.message, again.hint) == (error.message, error.hint)
        assert {name: str(fact) for name, fact in again.facts.items()} == {"name": "x y", "number": "3"}
    assert copy.copy(error).facts == pickle.loads(pickle.dumps(error)).facts == error.facts


@pytest.mark.parametrize("huge", ["k" * 30_000_000, ["k" * 30_000_000]], ids=["text", "list"])
def test_the_text_of_an_error_is_shorter_than_huge_data(huge: object) -> None:
    error = errors.StateError("x" * 30_000_000, key=huge)
    error.add_facts(row=huge)
    texts = [error.message, error.sentence, str(error), *Failure.of(error).facts.values(), Failure.of(error).message]
    assert max(map(len, texts)) < 6 * errors.LONGEST_TEXT
    assert all("30000000 characters" in text or "30000004 characters" in text for text in texts)


def test_errors_can_be_caught_as_builtin_ones() -> None:
    assert issubclass(errors.ConfigError, ValueError)
    assert issubclass(errors.MissingFile, LookupError)
