"""Output that does not wait for its checkpoint: state is exact, no row is missing, some may be there again."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from stateflow.config.settings import AT_LEAST_ONCE, EXACTLY_ONCE
from stateflow.config.sources import resolve
from stateflow.errors import ConfigError
from stateflow.failpoints import NAMES
from tests.support import root_files
from tests.support.errors import raises
from tests.support.job_fixture import ASKED, SLICE, AccountsJob, expected, mostly_slow, multiset, second_time

SELDOM = {"checkpoints__mode": "at-least-once", "checkpoints__interval_batches": 3}
_POINTS = sorted(NAMES.keys() - ASKED - {"start.seeded"})
_QUICK = {"batch.reported", "batch.end", "commit.manifest", "commit.after", "publish.before", "publish.after"}
KILLED = -9


@pytest.fixture
def box(tmp_path: Path) -> Iterator[AccountsJob]:
    made = AccountsJob(tmp_path / "job", SELDOM)
    yield made
    made.end_all()


def _repeated(box: AccountsJob) -> int:
    """How many rows are there again; fails when one is missing, or is not what the oracle says."""
    wanted = expected(box.delivered)
    more = 0
    for table, rows in (("movements", wanted.movements), ("totals", wanted.totals)):
        found, due = Counter(multiset(root_files.folder_rows(box.table(table)))), Counter(multiset(rows))
        assert due - found == Counter() and found.keys() == due.keys()
        more += (found - due).total()
    return more


def _check_state(box: AccountsJob) -> None:
    wanted = expected(box.delivered)
    assert root_files.read_state(box.root, "balances") == wanted.balances
    assert root_files.read_state(box.root, "turnovers") == wanted.turnovers
    assert root_files.head(box.root).position == len(box.delivered)


def test_output_is_visible_at_each_barrier(box: AccountsJob) -> None:
    box.deliver(8 * SLICE)
    run = box.start("batch.end:5:stop")
    run.wait_stopped()
    assert len(root_files.folder_rows(box.table("movements"))) == 5 * SLICE
    assert root_files.head(box.root).position == 3 * SLICE
    run.resume()
    assert run.wait().code == 0
    assert _repeated(box) == 0
    _check_state(box)


def test_what_no_checkpoint_had_when_a_run_died_comes_again_and_nothing_else(box: AccountsJob) -> None:
    box.deliver(8 * SLICE)
    assert box.run("batch.end:5").code == KILLED
    before = len(root_files.folder_rows(box.table("totals")))
    box.finish()
    assert _repeated(box) >= 2 * SLICE
    assert len(root_files.folder_rows(box.table("movements"))) == 10 * SLICE
    assert len(root_files.folder_rows(box.table("totals"))) > before
    _check_state(box)
    box.check_clean()


@pytest.mark.parametrize("asynchronous", ["yes", "no"])
@pytest.mark.parametrize("point", mostly_slow(_POINTS, _QUICK))
def test_a_kill_loses_no_row_and_state_is_exact(box: AccountsJob, point: str, asynchronous: str) -> None:
    if point.startswith("upload.") and asynchronous == "no":
        pytest.skip("nothing is stored beside the batches")
    box.settings = {**SELDOM, "checkpoints__asynchronous": asynchronous}
    box.deliver(10 * SLICE)
    box.kill_at(f"{second_time(point)}:kill", checkpoints__collect_every=1)
    box.deliver_more(3 * SLICE)
    box.finish()
    _repeated(box)
    _check_state(box)
    box.check_clean()


@pytest.mark.parametrize("modes", [("exactly-once", "at-least-once"), ("at-least-once", "exactly-once")])
def test_a_run_may_have_another_mode_than_the_one_before(box: AccountsJob, modes: tuple[str, str]) -> None:
    box.deliver(8 * SLICE)
    assert box.run("commit.after:2", checkpoints__mode=modes[0]).code == KILLED
    box.deliver(16 * SLICE)
    assert box.run("batch.end:3", checkpoints__mode=modes[1]).code in (0, KILLED)
    box.marker.unlink(missing_ok=True)
    box.finish(checkpoints__mode=modes[0])
    _repeated(box)
    _check_state(box)
    box.check_clean()


def test_an_unknown_mode_is_refused() -> None:
    with raises(ConfigError, name="checkpoints.mode", value="at-most-once") as refused:
        resolve({"checkpoints.mode": "at-most-once"})
    assert EXACTLY_ONCE in refused.value.hint and AT_LEAST_ONCE in refused.value.hint
