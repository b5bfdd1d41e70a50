"""The tree of errors: what its docstring draws, what callers and operators rely on."""

from __future__ import annotations

import copy
import pickle
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from stateflow import errors
from stateflow.checkpoint.barrier.task_report import Failure
from stateflow.errors import StateflowError
from tests.support.errors import ReportedError, reported_error

ROOT = Path(__file__).resolve().parents[2]

# Codes are what people search for and what Airflow's retry policy goes by: they never change. Each with its exit code
# and whether a new try may help.
STABLE = {
    "StateflowError": ("stateflow", 1, False),
    "ConfigError": ("config", 2, False),
    "JobDefinitionError": ("job-definition", 2, False),
    "SchemaMismatch": ("schema-mismatch", 2, False),
    "EnvironmentUnsupported": ("environment-unsupported", 2, False),
    "WrongJobRoot": ("wrong-job-root", 2, False),
    "IncompatibleState": ("incompatible-state", 2, False),
    "TooLarge": ("too-large", 2, False),
    "UserCodeError": ("user-code", 4, False),
    "StateError": ("state", 4, False),
    "DataError": ("data", 4, False),
    "CorruptFile": ("corrupt-file", 4, False),
    "DamagedCopy": ("damaged-copy", 5, True),
    "MissingFile": ("missing-file", 4, False),
    "CorruptInput": ("corrupt-input", 4, False),
    "SinkRefused": ("sink-refused", 2, False),
    "SinkDiverged": ("sink-diverged", 4, False),
    "ForeignRows": ("foreign-rows", 4, False),
    "Fenced": ("fenced", 3, False),
    "StorageError": ("storage", 5, True),
    "BatchFailed": ("batch-failed", 5, True),
    "SparkGone": ("spark-gone", 5, True),
    "PlanOutdated": ("plan-outdated", 4, False),
    "RequestTimeout": ("request-timeout", 5, True),
    "Interrupted": ("interrupted", 130, True),
    "InternalError": ("internal", 1, True),
}


def _tree(cls: type[StateflowError]) -> Iterator[type[StateflowError]]:
    yield cls
    for child in cls.__subclasses__():
        if child.__module__ == errors.__name__:
            yield from _tree(child)


CLASSES = list(_tree(StateflowError))
every_class = pytest.mark.parametrize("cls", CLASSES, ids=lambda cls: cls.__name__)


def _drawn() -> dict[str, str]:
    """Each class of the docstring's picture and the class above it."""
    parents: dict[str, str] = {}
    path: list[str] = []
    for line in (errors.__doc__ or "").splitlines():
        match = re.match(r"    ((?:│   |    )*)(├── |└── )?([A-Z]\w+)  ", line)
        if match:
            depth = len(match[1]) // 4 + bool(match[2])
            path[depth:] = [match[3]]
            parents[match[3]] = path[depth - 1] if depth else ""
    return parents


def test_the_docstring_draws_the_tree() -> None:
    real = {cls.__name__: cls.__base__.__name__ if cls is not StateflowError else "" for cls in CLASSES}  # type: ignore[union-attr]
    assert _drawn() == real


def test_codes_exit_codes_and_retries_are_stable() -> None:
    assert {cls.__name__: (cls.code, cls.exit_code, cls.retryable) for cls in CLASSES} == STABLE
    assert len({cls.code for cls in CLASSES}) == len(CLASSES)


def test_the_runbook_says_the_same() -> None:
    rows = re.findall(r"^\| `([a-z-]+)` \| (\d+) \| (yes|no) \|", (ROOT / "docs/runbook.md").read_text(), re.M)
    assert {(code, int(exit_code), retry == "yes") for code, exit_code, retry in rows} == set(STABLE.values())


def test_a_printed_error_is_read_back_with_its_facts() -> None:
    facts = {"path": "/a 'b'", "count": -3, "seconds": 0.3, "tiny": 1e-07, "on": True, "none": None}
    shown = f"error [storage]: {errors.StorageError('it failed', hint='retry', **facts)}"
    assert reported_error(shown) == ReportedError("storage", facts)


def test_no_error_exits_with_success() -> None:
    assert all(cls.exit_code for cls in CLASSES)


@every_class
def test_an_error_survives_pickling_and_copying(cls: type[StateflowError]) -> None:
    error = cls("a thing is wrong", hint="mend it", name="x", number=3, parts=("a", None))
    for again in (pickle.loads(pickle.dumps(error)), copy.copy(error)):
        assert type(again) is cls
        assert (again.message, again.hint, again.facts) == (error.message, error.hint, error.facts)
        assert str(again) == str(error)


@every_class
def test_an_error_reads_as_sentence_facts_and_hint(cls: type[StateflowError]) -> None:
    assert str(cls("a thing is wrong")) == "a thing is wrong"
    assert str(cls("a thing is wrong", name="x y", number=3)) == "a thing is wrong name='x y' number=3"
    assert str(cls("a thing is wrong", hint="mend it", n=1)) == "a thing is wrong n=1\n  hint: mend it"


@every_class
def test_an_error_comes_from_a_task_as_what_it_was(cls: type[StateflowError]) -> None:
    again = Failure.of(cls("a thing is wrong", hint="mend it", name="x", number=3)).to_error()
    assert type(again) is cls
    assert (again.message, again.hint, again.facts) == ("a thing is wrong", "mend it", {"name": "x", "number": "3"})


def test_the_builtin_families_hold() -> None:
    """Callers that know nothing of stateflow catch these."""
    assert issubclass(errors.ConfigError, ValueError)
    assert issubclass(errors.MissingFile, LookupError)


def test_messages_are_lower_case_sentences_without_an_end() -> None:
    """Read from the source: every first argument of an error that is a plain text."""
    names = "|".join(STABLE)
    found = []
    for path in sorted((ROOT / "stateflow").rglob("*.py")):
        found += re.findall(rf'\b(?:{names})\(\s*f?"([^"]+)"', path.read_text())
    assert len(found) > 50
    # Names keep their capitals.
    proper = ("RocksDB", "Spark", "PySpark", "Delta", "Python", "Java", "HDFS")
    assert [m for m in found if not (m[0].islower() or m.startswith(("{", *proper))) or m.rstrip().endswith(".")] == []
