"""Every parser of input that others may have written: each input is accepted, or an error with a code.

Targets run in another process, because a parser in C may crash it. No input may take more than 2 s of CPU time,
or wait, and all together not more than the promised memory.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.fuzz.corpus import make_corpus
from tests.fuzz.targets import TARGETS
from tests.support.memory import LIMIT

ROOT = Path(__file__).resolve().parents[2]

_SKIPS = {"history"}
"""Targets that skip damaged input: nothing depends on the history."""


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("corpus")
    make_corpus(folder)
    return folder


def _check(corpus: Path, inputs: int, *names: str) -> None:
    command = [sys.executable, "-m", "tests.fuzz.program", str(corpus), str(inputs), *names]
    ended = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=3600, check=False)
    where = (corpus / "progress").read_text()
    assert ended.returncode == 0, f"{where}: ended with {ended.returncode}\n{ended.stderr[-2000:]}"
    answers = [json.loads(line) for line in ended.stdout.splitlines() if line.startswith('{"accepted"')]
    assert [found["name"] for found in answers] == [*names]
    for found in answers:
        assert found["failure"] == "", found["name"]
        assert found["longest"] < 2 and found["memory"] <= LIMIT, found
        assert (found["refused"] > 0) != (found["name"] in _SKIPS) and "internal" not in found["codes"], found


@pytest.mark.long(reason="reads a hundred inputs of each kind")
def test_no_input_does_harm(corpus: Path) -> None:
    """All targets in one process; `test_none_of_many_inputs_does_harm` has one for each."""
    _check(corpus, 100, *TARGETS)


@pytest.mark.slow(reason="20,000 inputs take minutes")
@pytest.mark.parametrize("inputs", [20_000])
@pytest.mark.parametrize("name", TARGETS)
def test_none_of_many_inputs_does_harm(corpus: Path, name: str, inputs: int) -> None:
    _check(corpus, inputs, name)
