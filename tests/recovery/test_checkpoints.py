"""Checkpoints: triggered, stored, recorded, asynchronous, after several batches, and with output that does not wait."""

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
from tests.support.errors import ReportedError, raises
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

KEEP_ALL = {"checkpoints__retained": 100, "checkpoints__collect_every": 100}


def _records(job: AccountsJob) -> list[root_files.Document]:
    return [r for r in root_files.history(job.root) if "rows_in" in r]


def _bytes(job: AccountsJob, keys: set[str]) -> int:
    return sum((job.root / key).stat().st_size for key in keys)


def _state_files(job: AccountsJob, entry: root_files.Entry) -> set[str]:
    manifest = root_files.read_manifest(job.root, entry.doc["manifest"])
    return {f["handle"]["key"] for o in manifest["operators"] for s in o["subtasks"] for f in s["files"]}


# -- unscheduled ------------------------------------------------------------------------------------------------------


def test_a_triggered_checkpoint_has_all_processed_rows_and_is_published(job: AccountsJob) -> None:
    job.deliver(30 * SLICE)
    job.settings = {"checkpoints__interval_batches": 1000}
    made, _ = job.asked_at("batch.begin:4", "checkpoints", "trigger", "--json")
    triggered = made.check().document["checkpoint_id"]
    commits = {e.seq: e.position for e in job.commits}
    assert commits[triggered] >= 4 * SLICE
    # The run continued, and ended with a checkpoint of its own.
    assert max(commits) > triggered
    job.check_results()


@pytest.mark.parametrize("backend", ["rocksdb", "filesystem"])
@pytest.mark.slow(reason="runs a job in several processes")
def test_a_full_checkpoint_shares_no_file_with_earlier_checkpoints(job: AccountsJob, backend: str) -> None:
    job.settings = {"state__backend": backend, "state__inline_below_bytes": 1, "checkpoints__retained": 100}
    job.deliver(30 * SLICE)
    made, _ = job.asked_at("batch.begin:4", "checkpoints", "trigger", "--full", "--json")
    full = made.check().document["checkpoint_id"]
    files = {e.seq: _state_files(job, e) for e in job.commits}
    before = set[str]().union(*(keys for seq, keys in files.items() if seq < full))
    assert files[full] and not files[full] & before
    assert any(files[seq] & files[full] for seq in files if seq > full) or backend == "filesystem"
    (record,) = (r for r in _records(job) if r["checkpoint_id"] == full)
    assert record["full_bytes"] == record["increment_bytes"] == _bytes(job, files[full])
    job.check()


def test_a_checkpoint_cannot_be_triggered_without_a_run(job: AccountsJob) -> None:
    job.run_to(SLICE)
    answer = job.command("checkpoints", "trigger", "--acknowledge-timeout", "1")
    root = {"root": f"file://{job.root}", "checkpoint_id": job.head.checkpoint}
    assert (answer.code, answer.error) == (2, ReportedError("config", root)), str(answer)


# -- what is stored ---------------------------------------------------------------------------------------------------


def test_a_checkpoint_adds_one_object_per_subtask_and_two(job: AccountsJob) -> None:
    """The manifest and the COMMIT; sinks apart."""
    job.run_to(2 * SLICE, checkpoints__retained=100)
    job.deliver(12 * SLICE)
    before = root_files.files_below(job.root)
    job.reach("batch.end:10", **KEEP_ALL)
    added = [key for key in root_files.files_below(job.root) if key not in before]
    subtasks = sum(len(o["subtasks"]) for o in job.manifest["operators"])
    # The CLAIM and the record of the run's start are two more: the run before it had the same job file and graph.
    assert len(added) <= 10 * (subtasks + 2) + 2
    assert sum(1 for key in added if key.startswith("log/")) == 11


def test_the_recorded_sizes_of_a_checkpoint_are_those_of_its_new_files(job: AccountsJob) -> None:
    small = {"state__inline_below_bytes": 1, "rocksdb__compact_at_files": 2}
    job.run_to(8 * SLICE, **KEEP_ALL, **small)
    seen, records = set[str](), {r["checkpoint_id"]: r for r in _records(job)}
    for entry in job.commits:
        new = _state_files(job, entry) - seen
        record = records[entry.seq]
        assert record["increment_bytes"] + record["compaction_bytes"] == _bytes(job, new)
        seen |= new
    assert len(job.commits) == 8 and any(r["compaction_bytes"] for r in records.values())


# -- the history -------------------------------------------------------------------------------------------------------


def test_a_checkpoint_is_recorded_with_its_run(job: AccountsJob) -> None:
    job.deliver(20)
    job.command("run", job.job_file, "--run-id", "nightly/3", with_job=True).check()
    claim = root_files.entries(job.root)[0].doc
    records = _records(job)
    assert [(r["driver"], r["reason"]) for r in records] == [(claim["writer"], "nightly/3")] * 2
    assert "nightly/3" in job.command("history").out


def test_a_rewind_at_a_start_is_recorded_in_the_history(job: AccountsJob) -> None:
    """Output was deleted before it was published, as a VACUUM does it."""
    job.deliver(60)
    job.reach("commit.after:4")
    newest = job.lose_output()
    job.finish()
    (record,) = job.records("rewind")
    assert record["facts"]["previous_checkpoint_id"] == newest.seq and str(newest.seq) in record["reason"]


# -- asynchronous checkpoints, checkpoints after several batches, and output that does not wait for its checkpoint ----

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
    ("asynchronous", "commit.stored"), ("asynchronous", "upload.before"), ("at-least-once", "publish.after"),
    ("at-least-once-asynchronous", "batch.end"), ("each-third", "batch.reported"), ("each-third", "commit.after"),
]  # fmt: skip
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
    assert made.check().document["made_from"] == "run" and job.savepoints.keys() == {"early"}
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
