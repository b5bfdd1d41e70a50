"""Random texts where users name a target or a setting: each is accepted, or an error with a code, soon."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from stateflow.checkpoint.restore.targets import resolve_target
from stateflow.config.sources import parse_assignments, read_toml, resolve
from stateflow.errors import StateflowError
from stateflow.operations.job_root import open_root
from stateflow.storage.locations import VARIABLE
from tests.support.cli_fixture import CliFixture

PIECES = [
    *("latest", "before:", "rows", "=", "1", "²", "٣", "9" * 5000, "-", "e999", "2026-01-31T03:00", "+14:00", "Z"),
    *("0001-01-01", "9999-12-31T23:59:59", "-23:59", "[" * 3000, "{", '"', "\\", "\0", "/", "..", "file://", "s3://"),
    *("webhdfs://h:1/x", "memory://", "a" * 300, "\ud800", "\x1b[2J", " ", "\n", "NaN", "true", "null", "é", "%2e"),
]


SETTINGS = [
    *("checkpoints", "retained", "run.max_batches", "max_parallelism", "local_dir", "spark.conf.x", "state.backend"),
    *("restart.exponential_delay.jitter", "checkpoints.min_pause", "storage.shared", ".", "=", "0", "1", "-1", "1e999"),
    *("1h", "9" * 400 + "d", "0.1", "inf", "true"),
]


def _random_text(rng: random.Random, pieces: Sequence[str]) -> str:
    return "".join(rng.choice(pieces) for _ in range(rng.randrange(7)))


def _try_all(inputs: int, call: Callable[[str], object], pieces: Sequence[str] = PIECES) -> int:
    """Calls with random texts; returns how many were accepted."""
    rng, accepted = random.Random(inputs), 0
    for _ in range(inputs):
        text = _random_text(rng, pieces)
        started = time.process_time()
        try:
            call(text)
            accepted += 1
        except StateflowError as e:
            assert e.code and str(e)
        assert time.process_time() - started < 2, text[:200]
    return accepted


@pytest.mark.parametrize("inputs", [2000, pytest.param(100_000, marks=pytest.mark.slow)])
def test_a_target(ran: CliFixture, monkeypatch: pytest.MonkeyPatch, inputs: int) -> None:
    monkeypatch.setenv(VARIABLE, str(ran.folder))  # as for a task of Airflow, and without a network
    root = open_root(ran.root)
    head = root.head()
    assert _try_all(inputs, lambda text: resolve_target(root, head, text)) > 0


@pytest.mark.parametrize("inputs", [2000, pytest.param(100_000, marks=pytest.mark.slow)])
def test_a_setting(inputs: int) -> None:
    accepted = _try_all(inputs, lambda text: resolve(parse_assignments((text,))), [*PIECES, *SETTINGS, *SETTINGS])
    assert accepted > 0


@pytest.mark.parametrize("inputs", [500, pytest.param(100_000, marks=pytest.mark.slow)])
def test_a_settings_file(tmp_path: Path, inputs: int) -> None:
    def read(text: str) -> None:
        path.write_bytes(text.encode(errors="surrogatepass"))
        resolve(read_toml(path))

    path = tmp_path / "settings.toml"
    _try_all(inputs, read, [*PIECES, *SETTINGS, "\n", "[", "]", "{", "}", ",", '"'])
