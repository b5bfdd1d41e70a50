"""``stateflow checkpoints``: which there are, what they hold, and one out of turn."""

from __future__ import annotations

import json

import pytest

from tests.support import root_files
from tests.support.errors import ReportedError
from tests.support.job_fixture import SLICE, AccountsJob

KEEP_ALL = {"checkpoints__retained": 100, "checkpoints__collect_every": 100}


def _records(box: AccountsJob) -> list[root_files.Document]:
    return [r for r in root_files.history(box.root) if "rows_in" in r]


def _bytes(box: AccountsJob, keys: set[str]) -> int:
    return sum((box.root / key).stat().st_size for key in keys)


def _state_files(box: AccountsJob, entry: root_files.Entry) -> set[str]:
    manifest = root_files.read_manifest(box.root, entry.doc["manifest"])
    return {f["handle"]["key"] for o in manifest["operators"] for s in o["subtasks"] for f in s["files"]}


# -- out of turn ------------------------------------------------------------------------------------------------------


def test_one_out_of_turn_has_all_that_was_processed_and_is_published(box: AccountsJob) -> None:
    box.deliver(30 * SLICE)
    box.settings = {"checkpoints__interval_batches": 1000}
    made, _ = box.asked_at("batch.begin:4", "checkpoints", "trigger", "--json")
    triggered = made.check().document["checkpoint_id"]
    commits = {e.seq: e.position for e in box.commits}
    assert commits[triggered] >= 4 * SLICE
    # The run went on, and ended with a checkpoint of its own.
    assert max(commits) > triggered
    box.check_results()


@pytest.mark.parametrize("backend", ["rocksdb", "filesystem"])
def test_a_full_one_has_no_file_in_common_with_any_before_it(box: AccountsJob, backend: str) -> None:
    box.settings = {"state__backend": backend, "state__inline_below_bytes": 1, "checkpoints__retained": 100}
    box.deliver(30 * SLICE)
    made, _ = box.asked_at("batch.begin:4", "checkpoints", "trigger", "--full", "--json")
    full = made.check().document["checkpoint_id"]
    files = {e.seq: _state_files(box, e) for e in box.commits}
    before = set[str]().union(*(keys for seq, keys in files.items() if seq < full))
    assert files[full] and not files[full] & before
    assert any(files[seq] & files[full] for seq in files if seq > full) or backend == "filesystem"
    (record,) = (r for r in root_files.history(box.root) if r["checkpoint_id"] == full)
    assert record["full_bytes"] == record["increment_bytes"] == _bytes(box, files[full])
    box.check()


def test_without_a_run_there_is_nothing_to_trigger(box: AccountsJob) -> None:
    box.run_to(SLICE)
    answer = box.command("checkpoints", "trigger", "--patience", "1")
    root = {"root": f"file://{box.root}", "checkpoint": box.head.checkpoint}
    assert (answer.code, answer.error) == (2, ReportedError("config", root)), str(answer)


# -- what is shown ----------------------------------------------------------------------------------------------------


def test_the_list_has_each_checkpoint_and_marks_what_is_kept(box: AccountsJob) -> None:
    """One that is kept is shown with its state."""
    box.run_to(5 * SLICE, checkpoints__retained=2)
    listed = box.command("checkpoints", "list", "--json").document
    assert [c["checkpoint_id"] for c in listed] == [r["checkpoint_id"] for r in _records(box)]
    assert [c["kept"] for c in listed] == [False, False, False, True, True]
    assert len(box.command("checkpoints", "list", "--newest", "2").out.splitlines()) == 3
    box.run_to(6 * SLICE, checkpoints__retained=1)
    newest = box.head.checkpoint
    shown = box.command("checkpoints", "show", str(newest), "--json").document
    assert shown["offsets"] == {"events": json.dumps({"row": 6 * SLICE})}
    # What is live, but for the manifest, is state.
    live = root_files.live_files(box.root)
    assert sum(o["bytes"] for o in shown["operators"]) == sum(
        size for key, (size, _) in live.items() if "manifest.json" not in key
    )
    refused = box.command("checkpoints", "show", "3")
    assert (refused.code, refused.error) == (2, ReportedError("config", {"checkpoint": 3}))
    assert f"kept={[newest]}" in refused.err


def test_the_list_has_the_figures_of_what_a_killed_run_committed_as_well(box: AccountsJob) -> None:
    box.deliver(10 * SLICE)
    box.reach("batch.end:5", checkpoints__retained=100)
    listed = box.command("checkpoints", "list", "--json").document
    assert [c["checkpoint_id"] for c in listed] == [e.seq for e in box.commits]
    assert [c["status"] for c in listed] == ["completed"] * 5
    for each in listed:
        assert each["sync_ms"] > 0 and (each["commit_ms"] > 0 or each is listed[-1])
        assert each["subtasks"]["sync_ms"]["max"] == each["sync_ms"]
        assert each["subtasks"]["increment_bytes"]["min"] <= each["subtasks"]["increment_bytes"]["max"]


def test_the_summary_is_that_of_the_records(box: AccountsJob) -> None:
    box.run_to(7 * SLICE + 3)
    summary = box.command("checkpoints", "history", "--json").document
    sizes = sorted(r["increment_bytes"] for r in _records(box))
    figures = summary["increment_bytes"]
    assert (summary["checkpoints"], figures["min"], figures["max"]) == (8, sizes[0], sizes[-1])
    # Nearest rank of eight: the fourth, and from the eighth of nine tenths on the last.
    assert (figures["p50"], figures["p90"], figures["p99.9"]) == (sizes[3], sizes[7], sizes[7])
    ranks = dict.fromkeys(("p50", "p90", "p95", "p99", "p99.9", "max"), 10)
    assert summary["rows_in"] == {"min": 3, "avg": round((7 * SLICE + 3) / 8, 1), **ranks}


# -- what is stored ---------------------------------------------------------------------------------------------------


def test_a_checkpoint_adds_one_object_per_subtask_and_two(box: AccountsJob) -> None:
    """The manifest and the COMMIT; sinks apart."""
    box.run_to(2 * SLICE, checkpoints__retained=100)
    box.deliver(12 * SLICE)
    before = root_files.files_below(box.root)
    box.reach("batch.end:10", **KEEP_ALL)
    added = [key for key in root_files.files_below(box.root) if key not in before]
    subtasks = sum(len(o["subtasks"]) for o in box.manifest["operators"])
    # The CLAIM is one more; the run before it ended well, so it had no history to store.
    assert len(added) <= 10 * (subtasks + 2) + 1
    assert sum(1 for key in added if key.startswith("log/")) == 11


def test_the_recorded_sizes_are_those_of_what_the_storage_got(box: AccountsJob) -> None:
    small = {"state__inline_below_bytes": 1, "rocksdb__compact_at_files": 2}
    box.run_to(8 * SLICE, **KEEP_ALL, **small)
    seen, records = set[str](), {r["checkpoint_id"]: r for r in _records(box)}
    for entry in box.commits:
        new = _state_files(box, entry) - seen
        record = records[entry.seq]
        assert record["increment_bytes"] + record["compaction_bytes"] == _bytes(box, new)
        seen |= new
    assert len(box.commits) == 8 and any(r["compaction_bytes"] for r in records.values())
