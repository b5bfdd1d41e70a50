"""What a job's history holds after runs, restores and kills, how much of it is kept, and how branches are drawn."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from stateflow.config.sources import resolve
from tests.support import root_files
from tests.support.errors import ReportedError
from tests.support.job_fixture import AccountsJob


def _keys(box: AccountsJob) -> list[str]:
    return sorted(path.name for path in (box.root / "history").iterdir())


def _records(box: AccountsJob, kind: str) -> list[dict[str, Any]]:
    return [r for r in root_files.history(box.root) if r.get("kind") == kind]


def _go_back(box: AccountsJob, target: str, *more: str) -> dict[str, Any]:
    """Returns the plan."""
    file = str(box.folder / "plan.json")
    job = box.job_file
    planned = box.begin("restore", job, "--plan", target, "--out", file, *more, with_job=True).wait()
    assert planned.code == 0, str(planned)
    done = box.begin("restore", job, "--execute", file, "--by", "ada", with_job=True).wait()
    assert done.code == 0, str(done)
    plan: dict[str, Any] = json.loads(Path(file).read_text())
    return plan


def _graph(box: AccountsJob) -> list[str]:
    shown = box.command("history")
    assert shown.code == 0, str(shown)
    return [line.partition("  2")[0].rstrip() for line in shown.out.splitlines() if "  20" in line]


# -- how much is kept -------------------------------------------------------------------------------------------------


def test_ten_thousand_records_are_kept_unless_set() -> None:
    assert resolve({}).history.retained == 10_000
    assert resolve({"history.retained": "7"}).history.retained == 7


def test_runs_that_end_well_keep_the_newest_records(box: AccountsJob) -> None:
    for rows in (30, 60, 90, 120):
        box.deliver(rows)
        box.finish(history__retained=5, checkpoints__retained=100)
    commits = [e.seq for e in root_files.kept_entries(box.root) if e.doc["kind"] == "commit"]
    # Those of a run are one object, and of objects so many are kept as it takes.
    assert [r["checkpoint_id"] for r in root_files.history(box.root)] == commits[-6:]
    assert len(_keys(box)) == 2


def test_of_runs_that_all_end_badly_each_checkpoint_is_known_and_no_more_is_kept_either(box: AccountsJob) -> None:
    box.deliver(200)
    box.settings = {"history__retained": 4, "checkpoints__retained": 100}
    for _ in range(5):
        box.marker.unlink(missing_ok=True)
        assert box.run("batch.end:3").code == -9
    assert len(_keys(box)) == 2
    commits = [e.seq for e in root_files.kept_entries(box.root) if e.doc["kind"] == "commit"]
    # The newest three are in a manifest only.
    assert [r["checkpoint_id"] for r in root_files.history(box.root)] == commits[-9:]


@pytest.mark.slow
def test_a_run_that_goes_on_for_long_trims_on_its_way(box: AccountsJob) -> None:
    box.deliver(1020)
    assert box.run("batch.end:101", history__retained=4, checkpoints__collect_every=100).code == -9
    assert len(_keys(box)) == 1


def test_a_kill_right_behind_writing_history_doubles_no_record(box: AccountsJob) -> None:
    box.deliver(300)
    assert box.run("batch.end:20").code == -9
    box.finish(checkpoints__retained=100)
    records = [r["checkpoint_id"] for r in root_files.history(box.root)]
    shown = json.loads(box.command("checkpoints", "list", "--newest", "100", "--json").out)
    assert len(records) == 30 and [r["checkpoint_id"] for r in shown] == records


# -- what is in it ----------------------------------------------------------------------------------------------------


@pytest.fixture
def early(box: AccountsJob) -> AccountsJob:
    """A job with a savepoint at its 20th event that went on to the 40th, and keeps every checkpoint."""
    box.settings = {"checkpoints__retained": 100}
    box.deliver(20)
    box.finish()
    assert box.command("savepoint", "create", "--name", "early").code == 0
    box.deliver(40)
    box.finish()
    return box


def test_a_restore_is_recorded_with_the_bytes_it_went_back_to_and_how_long_it_took(early: AccountsJob) -> None:
    plan = _go_back(early, "early")
    (record,) = _records(early, "restore")
    (savepoint,) = _records(early, "savepoint")
    assert record["bytes"] == sum(s["bytes"] for s in plan["states"]) == savepoint["bytes"] > 0
    assert record["took_ms"] > 0


def test_a_checkpoint_is_recorded_with_the_run_that_made_it(box: AccountsJob) -> None:
    box.deliver(20)
    ended = box.begin("run", box.job_file, "--run-id", "nightly/3", with_job=True).wait()
    assert ended.code == 0, str(ended)
    claim = root_files.entries(box.root)[0].doc
    for record in root_files.history(box.root):
        assert (record["by"], record["reason"]) == (claim["writer"], "nightly/3")
    assert "nightly/3" in box.command("history").out


def test_a_run_keeps_its_number_when_older_records_are_removed(early: AccountsJob) -> None:
    """Runs without input count as well; a restore is no run."""
    first = {line["generation"]: line["run"] for line in _checkpoints(early)}
    assert sorted(first.values()) == [1, 2]
    _go_back(early, "early")
    early.finish()
    early.settings = {**early.settings, "history__retained": 1}
    early.deliver(60)
    early.finish()
    left = {line["generation"]: line["run"] for line in _checkpoints(early)}
    assert left.keys().isdisjoint(first)
    assert left[max(left)] == root_files.head(early.root).doc["runs"] > 3


def _checkpoints(box: AccountsJob) -> list[dict[str, Any]]:
    lines = map(json.loads, box.command("history", "--json").out.splitlines())
    return [line for line in lines if "checkpoint_id" in line]


def test_a_fork_s_history_begins_with_where_it_came_from(early: AccountsJob, tmp_path: Path) -> None:
    uuid = root_files.unsealed((early.root / "FORMAT").read_bytes())[0]["job_uuid"]
    for target in ("latest", "early"):
        into = tmp_path / target
        assert early.command("fork", target, "--into", str(into)).code == 0
        (record,) = root_files.history(into)
        facts = record["facts"]
        assert (facts["parent_job"], facts["parent_root"]) == (f"accounts {uuid}", f"file://{early.root}")
        assert ("savepoint_path" in facts) == (target == "early")


def test_going_back_to_an_undone_branch_is_seen_as_such(early: AccountsJob) -> None:
    """Back to the savepoint, on; then back to where the job was before, which counts again."""
    before = root_files.head(early.root).doc["checkpoint"]["id"]
    assert early.command("savepoint", "create", "--name", "late").code == 0
    _go_back(early, "early")
    assert _graph(early) == ["●", "●─╮", "◆ │", "│ ○", "│ ○", "│ ◆", "↶"]
    early.finish(run__max_batches=1)
    _go_back(early, "late")
    early.deliver(50)
    early.finish()
    assert _graph(early) == ["●", "●─╮", "◆ │", "● │", "● │", "◆ │", "│ ↶", "│ ○", "↶", "●"]
    assert [int(r["facts"]["base"]) for r in _records(early, "restore")][-1] == before


def test_a_start_that_goes_back_by_itself_is_recorded(box: AccountsJob) -> None:
    """Output was deleted before it was published, as a VACUUM does it."""
    box.deliver(60)
    assert box.run("commit.after:4").code == -9
    newest = root_files.head(box.root)
    (box.table("movements") / "data" / newest.pending["movements"][0]).unlink()
    box.finish()
    (record,) = _records(box, "rewind")
    assert record["facts"]["from_checkpoint"] == str(newest.seq) and str(newest.seq) in record["reason"]
    # Also of the checkpoint that it left, whose run was killed before it wrote history: the manifest has the record.
    assert _graph(box) == ["●", "●", "●─╮", "│ ○", "↶", "●", "●", "●"]
    box.check_results()


def test_anothers_savepoint_begins_a_branch_that_comes_of_nothing_here(early: AccountsJob, tmp_path: Path) -> None:
    other = AccountsJob(tmp_path / "other", settings=early.settings)
    other.deliver(30)
    other.finish()
    (path,) = map(str, (early.root / "savepoints").iterdir())
    _go_back(other, path, "--from-other-job")
    (record,) = _records(other, "restore")
    facts = record["facts"]
    assert facts["base"] == "0"
    uuid = root_files.unsealed((early.root / "FORMAT").read_bytes())[0]["job_uuid"]
    assert (facts["of_job"], facts["savepoint_path"]) == (f"accounts {uuid}", f"file://{path}")
    (line,) = [line for line in other.command("history").out.splitlines() if "ada" in line]
    assert uuid in line and path in line
    assert _graph(other) == ["  ○", "  ○", "  ○", "↶"]


def test_history_of_a_wrong_path_is_an_error(box: AccountsJob) -> None:
    for command in (["history"], ["savepoint", "list"]):
        ended = box.command(*command)
        missing = ReportedError("config", {"storage": f"file://{box.root}"})
        assert (ended.code, ended.error) == (2, missing), str(ended)


def test_the_list_of_savepoints_has_each_path_whole_on_a_line_of_its_own(early: AccountsJob) -> None:
    (path,) = (early.root / "savepoints").iterdir()
    _, line, *more = early.command("savepoint", "list").out.splitlines()
    assert line.startswith("early ") and " manual " in line and len(line) <= 80
    assert [each.strip() for each in more] == [path.as_uri()]
