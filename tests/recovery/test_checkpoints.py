"""``stateflow checkpoints``: which there are, what they hold, and one out of turn."""

from __future__ import annotations

import json

import pytest

from tests.support import root_files
from tests.support.errors import ReportedError
from tests.support.job_fixture import SLICE, AccountsJob


def test_one_out_of_turn_has_all_that_was_worked_off_and_is_published(box: AccountsJob) -> None:
    box.deliver(30 * SLICE)
    box.settings = {"checkpoints__interval_batches": 1000}
    made = box.asked_at("batch.begin:4", "checkpoints", "trigger", "--json")
    triggered = json.loads(made.out)["checkpoint_id"]
    commits = {e.seq: e.position for e in root_files.kept_entries(box.root) if e.doc["kind"] == "commit"}
    assert commits[triggered] >= 4 * SLICE
    # The run went on, and ended with a checkpoint of its own.
    assert max(commits) > triggered
    box.check_results()


def test_without_a_run_there_is_nothing_to_trigger(box: AccountsJob) -> None:
    box.deliver(SLICE)
    box.finish()
    answer = box.command("checkpoints", "trigger", "--patience", "1")
    root = {"root": f"file://{box.root}", "checkpoint": root_files.head(box.root).checkpoint}
    assert (answer.code, answer.error) == (2, ReportedError("config", root)), str(answer)


def test_the_list_has_each_checkpoint_with_its_figures_and_marks_what_is_kept(box: AccountsJob) -> None:
    box.deliver(5 * SLICE)
    box.finish(checkpoints__retained=2)
    listed = json.loads(box.command("checkpoints", "list", "--json").out)
    records = [r for r in root_files.history(box.root) if "rows_in" in r]
    assert [c["checkpoint_id"] for c in listed] == [r["checkpoint_id"] for r in records]
    assert [c["kept"] for c in listed] == [False, False, False, True, True]
    assert len(box.command("checkpoints", "list", "--newest", "2").out.splitlines()) == 3


def test_one_that_is_kept_is_shown_with_its_state_and_another_one_is_not(box: AccountsJob) -> None:
    box.deliver(3 * SLICE)
    box.finish(checkpoints__retained=1)
    newest = root_files.head(box.root).checkpoint
    shown = json.loads(box.command("checkpoints", "show", str(newest), "--json").out)
    assert shown["offsets"] == {"events": json.dumps({"row": 3 * SLICE})}
    # What is live, but for the manifest, is state.
    assert sum(o["bytes"] for o in shown["operators"]) == sum(
        size for key, (size, _) in root_files.live_files(box.root).items() if "manifest.json" not in key
    )
    refused = box.command("checkpoints", "show", str(newest - 1))
    assert (refused.code, refused.error) == (2, ReportedError("config", {"checkpoint": newest - 1}))
    assert f"kept={[newest]}" in refused.err


def test_the_summary_is_that_of_the_records(box: AccountsJob) -> None:
    box.deliver(7 * SLICE + 3)
    box.finish()
    summary = json.loads(box.command("checkpoints", "history", "--json").out)
    sizes = sorted(r["increment_bytes"] for r in root_files.history(box.root) if "rows_in" in r)
    figures = summary["increment_bytes"]
    assert (summary["checkpoints"], figures["min"], figures["max"]) == (8, sizes[0], sizes[-1])
    # Nearest rank of eight: the fourth, and from the eighth of nine tenths on the last.
    assert (figures["p50"], figures["p90"], figures["p99.9"]) == (sizes[3], sizes[7], sizes[7])
    assert summary["rows_in"] == {
        "min": 3,
        "avg": round((7 * SLICE + 3) / 8, 1),
        "p50": 10,
        "p90": 10,
        "p95": 10,
        "p99": 10,
        "p99.9": 10,
        "max": 10,
    }


def test_a_job_that_never_ran_is_refused(box: AccountsJob) -> None:
    for command in ("list", "history"):
        assert box.command("checkpoints", command).code == 2


def test_the_list_has_what_a_killed_run_committed_as_well(box: AccountsJob) -> None:
    box.deliver(10 * SLICE)
    assert box.run("batch.end:5", checkpoints__retained=100).code == -9
    listed = json.loads(box.command("checkpoints", "list", "--json").out)
    commits = [e.seq for e in root_files.kept_entries(box.root) if e.doc["kind"] == "commit"]
    assert [c["checkpoint_id"] for c in listed] == commits and len(commits) == 5
    assert [c["status"] for c in listed] == ["completed"] * 5
    for each in listed:
        assert each["sync_ms"] > 0 and (each["commit_ms"] > 0 or each is listed[-1])
        assert each["subtasks"]["sync_ms"]["max"] == each["sync_ms"]
        assert each["subtasks"]["increment_bytes"]["min"] <= each["subtasks"]["increment_bytes"]["max"]


def test_a_checkpoint_adds_one_object_per_subtask_and_two(box: AccountsJob) -> None:
    """The manifest and the COMMIT; sinks apart."""
    box.deliver(2 * SLICE)
    box.finish(checkpoints__retained=100)
    box.deliver(12 * SLICE)
    before = root_files.files_below(box.root)
    assert box.run("batch.end:10", checkpoints__retained=100, checkpoints__collect_every=100).code == -9
    added = [key for key in root_files.files_below(box.root) if key not in before]
    manifest = root_files.read_manifest(box.root, root_files.head(box.root).doc["manifest"])
    subtasks = sum(len(o["subtasks"]) for o in manifest["operators"])
    # The CLAIM is one more; the run before it ended well, so it had no history to store.
    assert len(added) <= 10 * (subtasks + 2) + 1
    assert sum(1 for key in added if key.startswith("log/")) == 11


@pytest.mark.parametrize("backend", ["rocksdb", "filesystem"])
def test_a_full_one_has_no_file_in_common_with_any_before_it(box: AccountsJob, backend: str) -> None:
    box.settings = {"state__backend": backend, "state__inline_below_bytes": 1, "checkpoints__retained": 100}
    box.deliver(30 * SLICE)
    made = box.asked_at("batch.begin:4", "checkpoints", "trigger", "--full", "--json")
    full = json.loads(made.out)["checkpoint_id"]
    files = {e.seq: _state_files(box, e) for e in root_files.kept_entries(box.root) if e.doc["kind"] == "commit"}
    before = set[str]().union(*(keys for seq, keys in files.items() if seq < full))
    assert files[full] and not files[full] & before
    assert any(files[seq] & files[full] for seq in files if seq > full) or backend == "filesystem"
    (record,) = (r for r in root_files.history(box.root) if r["checkpoint_id"] == full)
    assert record["full_bytes"] == record["increment_bytes"] == _bytes(box, files[full])
    box.check_results()
    box.check_clean()


def test_the_recorded_sizes_are_those_of_what_the_storage_got(box: AccountsJob) -> None:
    box.settings = {
        "state__backend": "rocksdb",
        "state__inline_below_bytes": 1,
        "rocksdb__compact_at_files": 2,
        "checkpoints__retained": 100,
        "checkpoints__collect_every": 100,
    }
    box.deliver(8 * SLICE)
    box.finish()
    seen, records = set[str](), {r["checkpoint_id"]: r for r in root_files.history(box.root)}
    commits = [entry for entry in root_files.kept_entries(box.root) if entry.doc["kind"] == "commit"]
    for entry in commits:
        new = _state_files(box, entry) - seen
        record = records[entry.seq]
        assert record["increment_bytes"] + record["compaction_bytes"] == _bytes(box, new)
        seen |= new
    assert len(commits) == 8 and any(r["compaction_bytes"] for r in records.values())


def _bytes(box: AccountsJob, keys: set[str]) -> int:
    return sum((box.root / key).stat().st_size for key in keys)


def _state_files(box: AccountsJob, entry: root_files.Entry) -> set[str]:
    manifest = root_files.read_manifest(box.root, entry.doc["manifest"])
    return {f["handle"]["key"] for o in manifest["operators"] for s in o["subtasks"] for f in s["files"]}
