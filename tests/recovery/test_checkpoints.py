"""Checkpoints and the history: what is listed, what is recorded, how much is kept, how branches are drawn."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.support import root_files
from tests.support.errors import ReportedError
from tests.support.job_fixture import SLICE, AccountsJob
from tests.support.restores import continue_past_savepoint, execute, plan

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
def test_a_full_checkpoint_shares_no_file_with_earlier_checkpoints(job: AccountsJob, backend: str) -> None:
    job.settings = {"state__backend": backend, "state__inline_below_bytes": 1, "checkpoints__retained": 100}
    job.deliver(30 * SLICE)
    made, _ = job.asked_at("batch.begin:4", "checkpoints", "trigger", "--full", "--json")
    full = made.check().document["checkpoint_id"]
    files = {e.seq: _state_files(job, e) for e in job.commits}
    before = set[str]().union(*(keys for seq, keys in files.items() if seq < full))
    assert files[full] and not files[full] & before
    assert any(files[seq] & files[full] for seq in files if seq > full) or backend == "filesystem"
    (record,) = (r for r in root_files.history(job.root) if r["checkpoint_id"] == full)
    assert record["full_bytes"] == record["increment_bytes"] == _bytes(job, files[full])
    job.check()


def test_a_checkpoint_cannot_be_triggered_without_a_run(job: AccountsJob) -> None:
    job.run_to(SLICE)
    answer = job.command("checkpoints", "trigger", "--acknowledge-timeout", "1")
    root = {"root": f"file://{job.root}", "checkpoint": job.head.checkpoint}
    assert (answer.code, answer.error) == (2, ReportedError("config", root)), str(answer)


# -- what is shown ----------------------------------------------------------------------------------------------------


def test_the_list_has_each_checkpoint_and_marks_retained_ones(job: AccountsJob) -> None:
    """One that is kept is shown with its state."""
    job.run_to(5 * SLICE, checkpoints__retained=2)
    listed = job.command("checkpoints", "list", "--json").document
    assert [c["checkpoint_id"] for c in listed] == [r["checkpoint_id"] for r in _records(job)]
    assert [c["kept"] for c in listed] == [False, False, False, True, True]
    assert len(job.command("checkpoints", "list", "--newest", "2").out.splitlines()) == 3
    job.run_to(6 * SLICE, checkpoints__retained=1)
    newest = job.head.checkpoint
    shown = job.command("checkpoints", "show", str(newest), "--json").document
    assert shown["offsets"] == {"events": json.dumps({"row": 6 * SLICE})}
    # What is live, but for the manifest, is state.
    live = root_files.live_files(job.root)
    assert sum(o["bytes"] for o in shown["operators"]) == sum(
        size for key, (size, _) in live.items() if "manifest.json" not in key
    )
    refused = job.command("checkpoints", "show", "3")
    assert (refused.code, refused.error) == (2, ReportedError("config", {"checkpoint": 3}))
    assert f"kept={[newest]}" in refused.err


def test_the_list_has_the_figures_of_checkpoints_of_a_killed_run(job: AccountsJob) -> None:
    job.deliver(10 * SLICE)
    job.reach("batch.end:5", checkpoints__retained=100)
    listed = job.command("checkpoints", "list", "--json").document
    assert [c["checkpoint_id"] for c in listed] == [e.seq for e in job.commits]
    assert [c["status"] for c in listed] == ["completed"] * 5
    for each in listed:
        assert each["sync_ms"] > 0 and (each["commit_ms"] > 0 or each is listed[-1])
        assert each["subtasks"]["sync_ms"]["max"] == each["sync_ms"]
        assert each["subtasks"]["increment_bytes"]["min"] <= each["subtasks"]["increment_bytes"]["max"]


def test_the_summary_of_checkpoints_is_computed_from_their_records(job: AccountsJob) -> None:
    job.run_to(7 * SLICE + 3)
    summary = job.command("checkpoints", "history", "--json").document
    sizes = sorted(r["increment_bytes"] for r in _records(job))
    figures = summary["increment_bytes"]
    assert (summary["checkpoints"], figures["min"], figures["max"]) == (8, sizes[0], sizes[-1])
    # Nearest rank of eight: the fourth, and from the eighth of nine tenths on the last.
    assert (figures["p50"], figures["p90"], figures["p99.9"]) == (sizes[3], sizes[7], sizes[7])
    ranks = dict.fromkeys(("p50", "p90", "p95", "p99", "p99.9", "max"), 10)
    assert summary["rows_in"] == {"min": 3, "avg": round((7 * SLICE + 3) / 8, 1), **ranks}


# -- what is stored ---------------------------------------------------------------------------------------------------


def test_a_checkpoint_adds_one_object_per_subtask_and_two(job: AccountsJob) -> None:
    """The manifest and the COMMIT; sinks apart."""
    job.run_to(2 * SLICE, checkpoints__retained=100)
    job.deliver(12 * SLICE)
    before = root_files.files_below(job.root)
    job.reach("batch.end:10", **KEEP_ALL)
    added = [key for key in root_files.files_below(job.root) if key not in before]
    subtasks = sum(len(o["subtasks"]) for o in job.manifest["operators"])
    # The CLAIM is one more; the run before it ended well, so it had no history to store.
    assert len(added) <= 10 * (subtasks + 2) + 1
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


def _objects(job: AccountsJob) -> int:
    """How many objects the history has."""
    return len(list((job.root / "history").iterdir()))


def _checkpoints(job: AccountsJob) -> list[int]:
    return [r["checkpoint_id"] for r in root_files.history(job.root)]


def _go_back(job: AccountsJob, target: str, *more: str) -> dict[str, Any]:
    """Returns the plan."""
    planned = plan(job, target, *more)
    execute(job, "--by", "ada").check()
    return planned


def _graph(job: AccountsJob) -> list[str]:
    shown = job.command("history").check().out
    return [line.partition("  2")[0].rstrip() for line in shown.splitlines() if "  20" in line]


# -- how much is kept -------------------------------------------------------------------------------------------------


def test_successful_runs_keep_the_newest_history_records(job: AccountsJob) -> None:
    for rows in (30, 60, 90, 120):
        job.run_to(rows, history__retained=5, checkpoints__retained=100)
    # Those of a run are one object, and of objects so many are kept as it takes.
    assert _checkpoints(job) == [e.seq for e in job.commits][-6:]
    assert _objects(job) == 2


def test_history_of_killed_runs_has_the_newest_checkpoints_and_stays_bounded(job: AccountsJob) -> None:
    job.deliver(200)
    for _ in range(5):
        job.reach("batch.end:3", history__retained=4, checkpoints__retained=100)
    # One more than needed: a start deletes what the log's index does not contain, and its own index is not in the log.
    assert _objects(job) == 3
    # The newest three are in a manifest only.
    assert _checkpoints(job) == [e.seq for e in job.commits][-12:]


@pytest.mark.slow
def test_a_long_run_trims_its_history(job: AccountsJob) -> None:
    job.deliver(1020)
    job.reach("batch.end:101", history__retained=4, checkpoints__collect_every=100)
    # One more than needed: when the run deletes objects, the log still refers to the index before the newest.
    assert _objects(job) == 2


def test_a_kill_right_after_writing_history_duplicates_no_record(job: AccountsJob) -> None:
    job.deliver(300)
    job.reach("batch.end:20")
    job.finish(checkpoints__retained=100)
    shown = job.command("checkpoints", "list", "--newest", "100", "--json").document
    assert [r["checkpoint_id"] for r in shown] == _checkpoints(job)
    assert len(shown) == 30


# -- what is in it ----------------------------------------------------------------------------------------------------


@pytest.fixture
def early(job: AccountsJob) -> AccountsJob:
    """A job with a savepoint at its 20th event that continued to the 40th, and keeps every checkpoint."""
    return continue_past_savepoint(job, at=20, until=40)


def test_a_checkpoint_is_recorded_with_its_run(job: AccountsJob) -> None:
    job.deliver(20)
    job.command("run", job.job_file, "--run-id", "nightly/3", with_job=True).check()
    claim = root_files.entries(job.root)[0].doc
    records = root_files.history(job.root)
    assert [(r["by"], r["reason"]) for r in records] == [(claim["writer"], "nightly/3")] * 2
    assert "nightly/3" in job.command("history").out


def test_a_run_keeps_its_number_when_older_records_are_removed(early: AccountsJob) -> None:
    """Runs without input count as well; a restore is no run, and has its bytes and its duration."""
    first = _runs(early)
    assert sorted(first.values()) == [1, 2]
    planned = _go_back(early, "early")
    (record,), (savepoint,) = early.records("restore"), early.records("savepoint")
    assert record["bytes"] == sum(s["bytes"] for s in planned["states"]) == savepoint["bytes"] > 0
    assert record["took_ms"] > 0
    early.finish()
    early.run_to(60, history__retained=1)
    left = _runs(early)
    assert left.keys().isdisjoint(first)
    assert left[max(left)] == early.head.doc["runs"] > 3


def _runs(job: AccountsJob) -> dict[int, int]:
    """The number of each run, by generation, as the command shows it."""
    lines = map(json.loads, job.command("history", "--json").out.splitlines())
    return {line["generation"]: line["run"] for line in lines if "checkpoint_id" in line}


def test_the_history_of_a_fork_begins_with_its_parent_job_and_target(early: AccountsJob, tmp_path: Path) -> None:
    """A fork of an old checkpoint is recorded there last, under that one's number."""
    for target in ("latest", "early"):
        into = tmp_path / target
        early.command("fork", target, "--into", str(into), "--by", "eve").check()
        (record,) = root_files.history(into)
        facts = record["facts"]
        assert (facts["parent_job"], facts["parent_root"]) == (f"accounts {early.job_uuid}", f"file://{early.root}")
        assert ("savepoint_path" in facts) == (target == "early")
    newest = early.command("history", "--newest", "1", "--json").document
    assert (newest["kind"], newest["by"]) == ("fork", "eve")


def test_the_history_shows_a_restore_to_an_undone_branch(early: AccountsJob) -> None:
    """Back to the savepoint, on; then back to where the job was before, which counts again."""
    before = early.head.doc["checkpoint"]["id"]
    early.create_savepoint("late")
    _go_back(early, "early")
    assert _graph(early) == ["●", "●─╮", "◆ │", "│ ○", "│ ○", "│ ◆", "↶"]
    early.finish(run__max_batches=1)
    _go_back(early, "late")
    early.run_to(50)
    assert _graph(early) == ["●", "●─╮", "◆ │", "● │", "● │", "◆ │", "│ ↶", "│ ○", "↶", "●"]
    assert int(early.records("restore")[-1]["facts"]["base"]) == before


def test_a_rewind_at_a_start_is_recorded_in_the_history(job: AccountsJob) -> None:
    """Output was deleted before it was published, as a VACUUM does it."""
    job.deliver(60)
    job.reach("commit.after:4")
    newest = job.lose_output()
    job.finish()
    (record,) = job.records("rewind")
    assert record["facts"]["from_checkpoint"] == str(newest.seq) and str(newest.seq) in record["reason"]
    # Also of the checkpoint that it left, whose run was killed before it wrote history: the manifest has the record.
    assert _graph(job) == ["●", "●", "●─╮", "│ ○", "↶", "●", "●", "●"]


def test_a_restore_of_another_job_s_savepoint_begins_a_branch_without_a_parent(
    early: AccountsJob, tmp_path: Path
) -> None:
    other = AccountsJob(tmp_path / "other", settings=early.settings)
    other.run_to(30)
    (path,) = map(str, (early.root / "savepoints").iterdir())
    _go_back(other, path, "--from-other-job")
    facts, uuid = other.records("restore")[0]["facts"], early.job_uuid
    assert (facts["base"], facts["of_job"], facts["savepoint_path"]) == ("0", f"accounts {uuid}", f"file://{path}")
    (line,) = [line for line in other.command("history").out.splitlines() if "ada" in line]
    assert uuid in line and path in line
    assert _graph(other) == ["  ○", "  ○", "  ○", "↶"]


def test_history_of_a_wrong_path_is_an_error(job: AccountsJob) -> None:
    missing = ReportedError("config", {"storage": f"file://{job.root}"})
    for command in (["history"], ["savepoint", "list"], ["checkpoints", "list"], ["checkpoints", "history"]):
        ended = job.command(*command)
        assert (ended.code, ended.error) == (2, missing), str(ended)


def test_the_list_of_savepoints_has_each_path_whole_on_a_line_of_its_own(early: AccountsJob) -> None:
    (path,) = (early.root / "savepoints").iterdir()
    _, line, *more = early.command("savepoint", "list").out.splitlines()
    assert line.startswith("early ") and " manual " in line and len(line) <= 80
    assert [each.strip() for each in more] == [path.as_uri()]
