"""A run that a person or the system ends: what was committed stays, and the same command goes on from it."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support import root_files
from tests.support.errors import reported_errors
from tests.support.job_fixture import SLICE, AccountsJob
from tests.support.processes import spawn


@pytest.fixture
def box(tmp_path: Path) -> Iterator[AccountsJob]:
    made = AccountsJob(tmp_path / "job", launcher=spawn)
    yield made
    made.end_all()


@pytest.fixture
def _interruptible() -> Iterator[None]:
    """A shell without job control has what it starts in the background ignore SIGINT, and children inherit that."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("_interruptible")
@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, -signal.SIGTERM)])
def test_a_cancelled_run_keeps_what_it_committed(box: AccountsJob, number: signal.Signals, code: int) -> None:
    box.deliver(10 * SLICE)
    box.settings = {"checkpoints__asynchronous": "no"}
    run = box.start("batch.begin:5:stop", restart__strategy="exponential-delay")
    run.wait_stopped()
    os.kill(run.pid, number)
    run.resume()
    ended = run.wait()
    assert ended.code == code, str(ended)
    codes = [error.code for error in reported_errors(ended.err)]
    assert codes == (["interrupted"] if number == signal.SIGINT else []), str(ended)
    assert root_files.head(box.root).position == 4 * SLICE
    box.finish()
    box.check_results()
    box.check_clean()
