"""Every parser of input that others may have written: each input is accepted, or an error with a code.

A target runs in a process of its own, because a parser in C may crash it. No input may take more than 2 s of CPU time,
or wait, and all together not more than the promised memory.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

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


def _run(corpus: Path, name: str, inputs: int) -> dict[str, Any]:
    command = [sys.executable, "-m", "tests.fuzz.program", str(corpus), name, str(inputs), str(inputs)]
    ended = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=3600, check=False)
    number = (corpus / f"progress-{name}").read_text().strip()
    assert ended.returncode == 0, f"input {number}: ended with {ended.returncode}\n{ended.stderr[-2000:]}"
    found: dict[str, Any] = json.loads(ended.stdout.splitlines()[-1])
    return found


@pytest.mark.parametrize("inputs", [150, pytest.param(100_000, marks=pytest.mark.slow)])
@pytest.mark.parametrize("name", TARGETS)
def test_no_input_does_harm(corpus: Path, name: str, inputs: int) -> None:
    found = _run(corpus, name, inputs)
    assert found["failure"] == ""
    assert found["longest"] < 2 and found["memory"] <= LIMIT, found
    assert (found["refused"] > 0) != (name in _SKIPS) and "internal" not in found["codes"], found
