"""Checkpoints that a user triggers, what a checkpoint stores, and what the history records of it."""

from __future__ import annotations

import pytest

from tests.support import root_files
from tests.support.errors import ReportedError
from tests.support.job_fixture import SLICE, AccountsJob

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
    (record,) = (r for r in root_files.history(job.root) if r["checkpoint_id"] == full)
    assert record["full_bytes"] == record["increment_bytes"] == _bytes(job, files[full])
    job.check()


def test_a_checkpoint_cannot_be_triggered_without_a_run(job: AccountsJob) -> None:
    job.run_to(SLICE)
    answer = job.command("checkpoints", "trigger", "--acknowledge-timeout", "1")
    root = {"root": f"file://{job.root}", "checkpoint": job.head.checkpoint}
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


def test_a_checkpoint_is_recorded_with_its_run(job: AccountsJob) -> None:
    job.deliver(20)
    job.command("run", job.job_file, "--run-id", "nightly/3", with_job=True).check()
    claim = root_files.entries(job.root)[0].doc
    records = root_files.history(job.root)
    assert [(r["by"], r["reason"]) for r in records] == [(claim["writer"], "nightly/3")] * 2
    assert "nightly/3" in job.command("history").out


def test_a_rewind_at_a_start_is_recorded_in_the_history(job: AccountsJob) -> None:
    """Output was deleted before it was published, as a VACUUM does it."""
    job.deliver(60)
    job.reach("commit.after:4")
    newest = job.lose_output()
    job.finish()
    (record,) = job.records("rewind")
    assert record["facts"]["from_checkpoint"] == str(newest.seq) and str(newest.seq) in record["reason"]
