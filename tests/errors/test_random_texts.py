"""Random texts where users name a target or a setting: each is accepted, or an error with a code, soon."""

from __future__ import annotations

import random
import time
from collections.abc import Callable

import pytest

from stateflow.checkpoint.restore.targets import resolve_target
from stateflow.errors import StateflowError
from stateflow.operations.job_root import open_root
from tests.support.cli_fixture import CliFixture

PIECES = [
    *("latest", "before:", "rows", "=", "1", "²", "٣", "9" * 5000, "-", "e999", "2026-01-31T03:00", "+14:00", "Z"),
    *("0001-01-01", "9999-12-31T23:59:59", "-23:59", "[" * 3000, "{", '"', "\\", "\0", "/", "..", "file://", "s3://"),
    *("webhdfs://h:1/x", "memory://", "a" * 300, "\ud800", "\x1b[2J", " ", "\n", "NaN", "true", "null", "é", "%2e"),
]


def _random_text(rng: random.Random) -> str:
    return "".join(rng.choice(PIECES) for _ in range(rng.randrange(7)))


def _try_all(inputs: int, call: Callable[[str], object]) -> int:
    """Calls with random texts; returns how many were accepted."""
    rng, accepted = random.Random(inputs), 0
    for _ in range(inputs):
        text = _random_text(rng)
        started = time.process_time()
        try:
            call(text)
            accepted += 1
        except StateflowError as e:
            assert e.code and str(e)
        assert time.process_time() - started < 2, text[:200]
    return accepted


@pytest.mark.parametrize("inputs", [2000, pytest.param(100_000, marks=pytest.mark.slow)])
def test_a_target(ran: CliFixture, inputs: int) -> None:
    root = open_root(ran.root)
    head = root.head()
    assert _try_all(inputs, lambda text: resolve_target(root, head, text)) > 0
