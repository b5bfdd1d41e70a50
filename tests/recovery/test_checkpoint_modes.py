"""Asynchronous checkpoints, checkpoints after several batches, and output that does not wait for its checkpoint: a kill
costs a replay and no row, and what is asked of a run is whole."""

from __future__ import annotations

from dataclasses import replace
from itertools import product
from pathlib import Path

import pytest

from stateflow.config.settings import AT_LEAST_ONCE, EXACTLY_ONCE
from stateflow.config.sources import resolve
from stateflow.errors import ConfigError
from stateflow.failpoints import NAMES
from tests.support import root_files, stored_state
from tests.support.errors import raises
from tests.support.job_fixture import (
    ASYNCHRONOUS,
    KILLED,
    ON_REQUEST,
    SLICE,
    AccountsJob,
    expected,
    mostly_slow,
    multiset,
    second_time,
)

_THIRD: dict[str, object] = {"checkpoints__interval_batches": 3}
_EARLY_OUTPUT = {**_THIRD, "checkpoints__mode": "at-least-once"}
MODES: dict[str, dict[str, object]] = {
    "asynchronous": {"checkpoints__asynchronous": "yes"},
    "each-third": _THIRD,
    "at-least-once": _EARLY_OUTPUT,
    "at-least-once-asynchronous": {**_EARLY_OUTPUT, "checkpoints__asynchronous": "yes"},
}
_POINTS = sorted(NAMES.keys() - ON_REQUEST - {"start.seeded"})
_QUICK = [
    ("asynchronous", "commit.stored"),
    ("asynchronous", "upload.before"),
    ("at-least-once", "publish.after"),
    ("at-least-once-asynchronous", "batch.end"),
    ("each-third", "batch.reported"),
    ("each-third", "commit.after"),
]
_CASES = [(m, p) for m, p in product(MODES, _POINTS) if "asynchronous" in m or p not in ASYNCHRONOUS]


def _repeated(job: AccountsJob) -> int:
    """How many rows are stored again; fails when one is missing, or is not what the oracle says."""
    wanted = expected(job.delivered)
    more = 0
    for table, rows in (("movements", wanted.movements), ("totals", wanted.totals)):
        found, due = multiset(job.rows(table)), multiset(rows)
        assert found >= due and found.keys() == due.keys()
        more += (found - due).total()
    return more


def _check_state(job: AccountsJob) -> None:
    wanted = expected(job.delivered)
    assert stored_state.read_state(job.root, "balances") == wanted.balances
    assert stored_state.read_state(job.root, "turnovers") == wanted.turnovers
    assert job.head.position == len(job.delivered)
    job.check_clean()


@pytest.mark.parametrize(("mode", "point"), mostly_slow(_CASES, _QUICK))
def test_a_kill_in_any_checkpoint_mode_loses_no_row(job: AccountsJob, mode: str, point: str) -> None:
    job.settings = MODES[mode]
    job.deliver(10 * SLICE)
    job.kill_at(f"{second_time(point)}:kill", checkpoints__collect_every=1)
    job.deliver_more(3 * SLICE)
    job.finish()
    assert _repeated(job) == 0 or mode.startswith("at-least-once")
    _check_state(job)


def test_each_third_barrier_is_a_checkpoint_and_so_is_the_last(job: AccountsJob) -> None:
    job.run_to(8 * SLICE, checkpoints__retained=10, **_THIRD)
    assert [entry.position for entry in job.commits] == [3 * SLICE, 6 * SLICE, 8 * SLICE]
    job.check()
    records = [r for r in root_files.history(job.root) if "rows_in" in r]
    assert [r["rows_in"] for r in records] == [3 * SLICE, 3 * SLICE, 2 * SLICE]


@pytest.mark.parametrize(("mode", "batches"), [("each-third", 3), ("at-least-once", 5)])
def test_output_is_visible_at_its_checkpoint_or_at_each_barrier(job: AccountsJob, mode: str, batches: int) -> None:
    job.settings = MODES[mode]
    job.deliver(8 * SLICE)
    run = job.start("batch.end:5:stop").wait_stopped()
    assert len(job.rows("movements")) == batches * SLICE
    assert job.head.position == 3 * SLICE
    run.resume().wait().check()
    job.check_results()


@pytest.mark.parametrize(
    "settings", [MODES["asynchronous"], {"checkpoints__interval_batches": 1000}], ids=["asynchronous", "seldom"]
)
@pytest.mark.slow(reason="runs a continuous job in a process of its own")
def test_a_savepoint_and_a_stop_have_what_was_processed(job: AccountsJob, settings: dict[str, object]) -> None:
    """The next barrier is a checkpoint for the one; the other commits and publishes."""
    job.settings = settings
    job.deliver(8 * SLICE)
    made, _ = job.asked_at("batch.begin:2", "savepoint", "create", "--name", "early", "--json")
    assert made.check().document["taken_by"] == "run" and job.savepoints.keys() == {"early"}
    job.check_results()
    job.deliver(38 * SLICE)
    stopped, _ = job.asked_at("batch.begin:4", "stop")
    stopped.check()
    assert 12 * SLICE <= job.head.position < 38 * SLICE
    assert len(job.rows("movements")) == job.head.position
    job.finish()
    job.check_results()


# -- at least once ----------------------------------------------------------------------------------------------------


def test_at_least_once_output_repeats_only_rows_since_the_last_checkpoint_after_a_kill(job: AccountsJob) -> None:
    job.settings = _EARLY_OUTPUT
    job.deliver(8 * SLICE)
    job.reach("batch.end:5")
    before = len(job.rows("totals"))
    job.finish()
    assert _repeated(job) >= 2 * SLICE
    assert len(job.rows("movements")) == 10 * SLICE
    assert len(job.rows("totals")) > before
    _check_state(job)


@pytest.mark.slow(reason="runs jobs many times")
def test_a_new_root_is_refused_where_another_one_has_published_before_its_first_checkpoint(
    job: AccountsJob, tmp_path: Path
) -> None:
    job.settings = _EARLY_OUTPUT
    job.deliver(8 * SLICE)
    job.reach("batch.end:2")
    assert (len(job.rows("movements")), job.commits) == (2 * SLICE, [])
    fresh = replace(job, root_folder=tmp_path / "fresh")
    refused = fresh.run()
    refused.check_error(2, "config", sink="movements")
    assert job.job_uuid in refused.err
    job.finish(checkpoints__mode=EXACTLY_ONCE)
    assert len(job.rows("movements")) == 10 * SLICE
    _check_state(job)


@pytest.mark.slow(reason="runs jobs many times")
@pytest.mark.parametrize(("mode", "other"), [(EXACTLY_ONCE, AT_LEAST_ONCE), (AT_LEAST_ONCE, EXACTLY_ONCE)])
def test_a_run_may_have_another_mode_than_the_one_before(job: AccountsJob, mode: str, other: str) -> None:
    job.settings = _THIRD
    job.deliver(8 * SLICE)
    job.reach("commit.after:2", checkpoints__mode=mode)
    job.deliver(16 * SLICE)
    assert job.run("batch.end:3", checkpoints__mode=other).code in (0, KILLED)
    job.finish(checkpoints__mode=mode)
    _repeated(job)
    _check_state(job)


def test_an_unknown_mode_is_refused() -> None:
    with raises(ConfigError, name="checkpoints.mode", value="at-most-once") as refused:
        resolve({"checkpoints.mode": "at-most-once"})
    assert EXACTLY_ONCE in refused.value.hint and AT_LEAST_ONCE in refused.value.hint
