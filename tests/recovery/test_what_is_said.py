"""What status, plans, savepoints and errors tell a person, in the states in which one looks at them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.recovery import disk
from tests.recovery.harness import AccountsBox
from tests.recovery.restores import ask, check_after, execute, go_back, plan, plan_file


@pytest.fixture
def half_done(early: AccountsBox) -> AccountsBox:
    """A restore that was killed between its two tables."""
    plan(early, "early")
    assert execute(early, "--by", "ada", "--reason", "wrong rows", failpoint="rewind.table:2").code == -9
    early.marker.unlink()
    return early


def _status(box: AccountsBox) -> dict[str, Any]:
    shown = box.command("status", "--json")
    assert shown.code == 0, str(shown)
    return json.loads(shown.out)  # type: ignore[no-any-return]


# -- a restore that is not completed ----------------------------------------------------------------------------------


def test_status_says_that_a_restore_is_not_completed(half_done: AccountsBox) -> None:
    shown = half_done.command("status").out
    assert "NOT COMPLETED: the restore to savepoint early (checkpoint " in shown
    assert "asked for by ada at 20" in shown and " UTC (wrong rows)" in shown
    assert "table of movements to version 5\n" in shown and "--job JOB.py" in shown
    assert "next start completes it" in shown
    looked = half_done.begin("status", "--job", half_done.job_file, with_job=True).wait().out
    assert "table of movements to version 5: is back\n" in looked
    assert "table of totals to version 5: NOT YET\n" in looked
    assert _status(half_done)["restoring"]["tables"] == {"movements": 5, "totals": 5}
    half_done.replace_events(since=50)
    check_after(half_done)
    assert "NOT COMPLETED" not in half_done.command("status").out
    assert _status(half_done)["restoring"] is None


def test_a_savepoint_says_so_too(half_done: AccountsBox) -> None:
    refused = half_done.command("savepoint", "create", "--name", "now", "--patience", "0.2")
    assert refused.code == 2, str(refused)
    assert "a restore to savepoint early (checkpoint" in refused.err and "is not completed" in refused.err
    assert "died" not in refused.err and "--job JOB.py" in refused.err
    made = half_done.begin("savepoint", "create", "--name", "now", "--patience", "0.2", "--job", half_done.job_file,
                           with_job=True).wait()  # fmt: skip
    assert made.code == 0, str(made)
    assert _status(half_done)["restoring"] is None


# -- runs that give no sign -------------------------------------------------------------------------------------------


def test_a_run_that_is_silent_is_not_called_dead(box: AccountsBox) -> None:
    box.deliver(60)
    run = box.start("commit.after:3:stop")
    run.wait_stopped()
    refused = box.command("savepoint", "create", "--patience", "0.2")
    assert refused.code == 2 and "no run gave a sign within 0.2 s" in refused.err, str(refused)
    assert "--patience" in refused.err and "died" not in refused.err and "dead" not in refused.err
    made = box.command("savepoint", "create", "--from-head")
    assert "from the newest checkpoint: no run was asked" in made.out
    stopping = box.command("stop", "--patience", "0.2")
    assert stopping.code == 2 and "no run gave a sign within 0.2 s" in stopping.err
    assert "--patience" in stopping.err
    run.resume()
    assert run.wait().code == 0


# -- status -----------------------------------------------------------------------------------------------------------


def test_status_shows_up_to_where_sources_were_read(early: AccountsBox) -> None:
    assert "source events at row:120\n" in early.command("status").out
    assert _status(early)["offsets"] == {"events": '{"row": 120}'}


def test_status_marks_what_a_restore_has_undone(early: AccountsBox) -> None:
    newest = disk.head(early.root).checkpoint
    assert "undone" not in early.command("status").out
    go_back(early, "early")
    assert {c["checkpoint_id"]: c["undone"] for c in _status(early)["checkpoints"]}[newest]
    early.replace_events(since=50)
    early.finish()
    told = {c["checkpoint_id"]: c["undone"] for c in _status(early)["checkpoints"]}
    assert told[disk.head(early.root).checkpoint] is False and True in told.values()
    shown = early.command("status").out
    assert "○  undone: a restore went back behind it" in shown
    numbers = [
        line.partition(" 20")[0].split() for line in shown.splitlines() if ":" in line and " 20" in line
    ]
    marked = [int(words[1]) for words in numbers if words[0] == "○"]
    assert marked == [number for number, undone in told.items() if undone]


def test_status_says_what_is_a_fork(early: AccountsBox, tmp_path: Path) -> None:
    assert "fork" not in early.command("status").out
    told = _status(early)
    forks = {"plain": (), "shadow": ("--shadow",)}
    for name, more in forks.items():
        assert early.command("fork", "latest", "--into", str(tmp_path / name), *more).code == 0
        shown = early.shell(f"stateflow status --job-root {tmp_path / name}").out
        assert f", {'a shadow fork' if more else 'a fork'} of accounts at {told['stands_at']}\n" in shown
        forked = early.shell(f"stateflow status --json --job-root {tmp_path / name}").out
        assert json.loads(forked)["forked_from"].startswith(f"{told['job_uuid']}/")


# -- history ----------------------------------------------------------------------------------------------------------


def test_the_newest_records_are_those_that_happened_last(early: AccountsBox, tmp_path: Path) -> None:
    """A fork of an old checkpoint is recorded under that one's number."""
    assert early.command("fork", "early", "--into", str(tmp_path / "fork"), "--by", "eve").code == 0
    shown = early.command("history", "--newest", "1")
    assert "fork by eve" in shown.out, str(shown)


# -- plans ------------------------------------------------------------------------------------------------------------


def test_a_plan_says_that_nothing_has_changed_and_how_to_go_on(early: AccountsBox) -> None:
    shown = ask(early, "early").out
    assert "Nothing has changed" in shown and "--out FILE" in shown and "--execute FILE" in shown
    assert " UTC" in shown.splitlines()[0]
    written = ask(early, "early", "--out", str(plan_file(early))).out
    assert (
        "Nothing has changed" in written and "--reason" not in written and "…" not in written.splitlines()[-1]
    )
    with_reason = ask(early, "early", "--out", str(plan_file(early)), "--reason", "wrong rows").out
    assert "--reason 'wrong rows'" in with_reason


def test_a_plan_says_what_a_source_does_not_hold_any_more(early: AccountsBox) -> None:
    assert "NO" not in ask(early, "early").out
    early.deliver(80)
    shown = ask(early, "early").out
    (line,) = (line.split() for line in shown.splitlines() if line.startswith("events "))
    assert line[:3] == ["events", "row:120", "row:50"] and "NO" in line
    assert "WARNING source events: it does not have everything any more that came since" in shown


def test_a_plan_warns_of_another_job_s_savepoint(early: AccountsBox, tmp_path: Path) -> None:
    other = AccountsBox(tmp_path / "other", settings=early.settings)
    other.deliver(10)
    other.finish()
    (path,) = map(str, (early.root / "savepoints").iterdir())
    shown = ask(other, path, "--foreign").out
    assert f"WARNING: the savepoint is another job's: accounts {_status(early)['job_uuid']}" in shown
    assert "WARNING: tables are kept" in shown


# -- savepoints -------------------------------------------------------------------------------------------------------


def test_one_can_be_deleted_by_its_path(early: AccountsBox, tmp_path: Path) -> None:
    (folder,) = (early.root / "savepoints").iterdir()
    refused = early.command("savepoint", "dispose", str(tmp_path))
    assert refused.code == 2
    assert early.command("savepoint", "dispose", f"file://{folder}/").code == 0
    assert disk.savepoints(early.root) == {}


def test_a_damaged_one_is_named_with_its_whole_path(early: AccountsBox) -> None:
    (folder,) = (early.root / "savepoints").iterdir()
    some = next((folder / "files").iterdir())
    content = some.read_bytes()
    some.chmod(0o600)
    some.write_bytes(b"x" * len(content))
    for name in ("early", str(folder)):
        told = early.command("savepoint", "verify", name)
        assert told.code != 0 and f"file='file://{some}'" in told.err, str(told)
        assert "stateflow savepoint dispose" in told.err
    some.write_bytes(content)
    (folder / "_savepoint").chmod(0o600)
    (folder / "_savepoint").write_bytes(b"nothing\n")
    told = early.command("savepoint", "show", str(folder))
    assert f"file='file://{folder}/_savepoint'" in told.err and "stateflow savepoint dispose" in told.err
    assert early.command("savepoint", "dispose", str(folder)).code == 0
