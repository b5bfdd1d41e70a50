"""Going back: state, source position and tables together, killed at every step, beside runs and sleeping drivers."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from tests.support import root_files
from tests.support.errors import ReportedError
from tests.support.job_fixture import ASKED, AccountsJob, expected, multiset
from tests.support.restores import ask
from tests.support.restores import check_after as _check_after
from tests.support.restores import execute as _execute
from tests.support.restores import go_back as _go_back
from tests.support.restores import plan as _plan
from tests.support.restores import plan_file as _file

STEPS = sorted(n for n in ASKED if n.startswith(("restore.", "rewind.")))
_BEFORE_THE_INTENT = ("restore.begin", "restore.claimed", "restore.imported")
_KEEP_ALL = {"checkpoints__retained": 100}


# -- the plan ---------------------------------------------------------------------------------------------------------


def test_a_plan_has_everything_and_changes_nothing(early: AccountsJob) -> None:
    before = root_files.digests(early.root, early.folder / "tables")
    plan = _plan(early, "early")
    assert root_files.digests(early.root, early.folder / "tables") == before
    assert [(s["uid"], s["action"], s["bytes"] > 0) for s in plan["states"]] == [
        ("balances", "matched", True),
        ("turnovers", "matched", True),
    ]
    (source,) = plan["sources"]
    assert (source["now"], source["then"], source["held"]) == ('{"row": 120}', '{"row": 50}', True)
    rows = {s["uid"]: (s["mode"], s["now"], s["then"], s["rows_removed"]) for s in plan["sinks"]}
    totals = len(root_files.folder_rows(early.table("totals")))
    early_totals = len(_rows_of_first(early, 50)["totals"])
    assert rows == {"movements": ("restore", 12, 5, 70), "totals": ("restore", 12, 5, totals - early_totals)}


def _rows_of_first(box: AccountsJob, number: int) -> dict[str, list[Any]]:
    wanted = expected(box.delivered[:number])
    return {"movements": wanted.movements, "totals": wanted.totals}


@pytest.mark.parametrize("target", ["early", "latest", "checkpoint", "before:time", "before:offset", "path"])
def test_every_kind_of_target(early: AccountsJob, tmp_path: Path, target: str) -> None:
    entries = [e for e in root_files.kept_entries(early.root) if e.doc["kind"] == "commit"]
    position, text = 50, target
    if target == "latest":
        position = 120
    elif target == "checkpoint":
        chosen = next(e for e in entries if e.position == 80)
        position, text = 80, str(chosen.seq)
    elif target == "before:time":
        chosen = next(e for e in entries if e.position == 90)
        position, text = 80, f"before:{chosen.doc['at']}"
    elif target == "before:offset":
        position, text = 70, "before:events=79"
    elif target == "path":
        (folder,) = (early.root / "savepoints").iterdir()
        text = str(shutil.move(folder, tmp_path / "elsewhere"))
    _go_back(early, text)
    assert root_files.head(early.root).position == position
    assert multiset(root_files.folder_rows(early.table("movements"))) == multiset(
        _rows_of_first(early, position)["movements"]
    )
    early.replace_events(since=position)
    _check_after(early)


@pytest.mark.parametrize(
    ("target", "facts", "known"),
    [
        ("999", {"target": "999"}, "early"),
        ("nothing", {"target": "nothing"}, "early"),
        ("before:1999-01-01", {"before": "1999-01-01"}, "early"),
        ("before:yesterday", {"time": "yesterday"}, "before:"),
        ("before:nowhere=3", {"uid": "nowhere"}, "known=['events']"),
        ("/nowhere", {"path": "file:///nowhere"}, "_savepoint"),
    ],
)
def test_an_unknown_target_is_refused_with_what_is_known(
    early: AccountsJob, target: str, facts: dict[str, str], known: str
) -> None:
    ended = ask(early, target)
    assert (ended.code, ended.error) == (2, ReportedError("config", facts)), str(ended)
    assert known in ended.err


# -- execution --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("target", ["early", "checkpoint"])
@pytest.mark.parametrize("name", STEPS)
def test_killed_at_any_step_it_is_completed_by_the_next_start(early: AccountsJob, name: str, target: str) -> None:
    """Before the intent nothing has happened; behind it everything happens. Either way the same request, asked again,
    goes back once."""
    if target == "checkpoint":
        target = str(
            next(e.seq for e in root_files.kept_entries(early.root) if e.doc["kind"] == "commit" and e.position == 50)
        )
    plan = _plan(early, target)
    assert _execute(early, failpoint=name).code == -9
    early.marker.unlink()
    requests = root_files.head(early.root).doc["requests"]
    assert bool(requests) == (name not in _BEFORE_THE_INTENT)
    if requests:
        early.replace_events(since=50)
        early.finish()
    else:
        assert root_files.head(early.root).position == 120
        early.finish()
        early.check_results()
        plan = _plan(early, target)
        early.replace_events(since=50)
    newest = root_files.head(early.root)
    again = _execute(early)
    assert again.code == 0, str(again)
    if requests:
        assert root_files.head(early.root).seq == newest.seq, "it went back twice"
    (record,) = [r for r in root_files.history(early.root) if r.get("kind") == "restore"]
    assert record["facts"]["base"] == str(plan["target_checkpoint"]), "by whoever completed it"
    _check_after(early)


@pytest.mark.parametrize("name", _BEFORE_THE_INTENT)
def test_killed_before_its_intent_the_same_request_goes_on_at_once(early: AccountsJob, name: str) -> None:
    """Its own CLAIM does not outdate its plan."""
    _plan(early, "early")
    assert _execute(early, failpoint=name).code == -9
    early.marker.unlink()
    assert _execute(early, failpoint=name).code == -9, "nor does a second one"
    early.marker.unlink()
    assert _execute(early).code == 0
    early.replace_events(since=50)
    _check_after(early)


def test_the_claim_of_another_request_outdates_a_plan(early: AccountsJob) -> None:
    _plan(early, "early")
    assert _execute(early, "--request-id", "first", failpoint="restore.claimed").code == -9
    early.marker.unlink()
    ended = _execute(early, "--request-id", "second")
    assert (ended.code, ended.error.code) == (4, "plan-outdated"), str(ended)
    assert _execute(early, "--request-id", "first").code == 0
    early.replace_events(since=50)
    _check_after(early)


def test_a_savepoint_that_went_since_the_plan_is_named_and_nothing_happens(early: AccountsJob) -> None:
    """As when retention took a periodic one while its plan waited for an approval."""
    savepoint = _plan(early, "early")["savepoint"]
    assert early.command("savepoint", "dispose", "early").code == 0
    before = root_files.digests(early.root, early.folder / "tables")
    ended = _execute(early)
    assert (ended.code, ended.error.code) == (4, "plan-outdated"), str(ended)
    assert ended.error.facts.keys() == {"target", "savepoint"}
    assert ended.error.facts["savepoint"] == savepoint
    assert root_files.digests(early.root, early.folder / "tables") == before


def test_a_run_names_the_savepoint_that_it_starts_from(early: AccountsJob) -> None:
    """Also the status does, until the first checkpoint is committed."""
    _go_back(early, "early")
    assert " early " in _position(early)
    early.replace_events(since=50)
    assert " early " in early.finish().result["started_at"]
    assert "early" not in _position(early) and str(root_files.head(early.root).checkpoint) in _position(early)
    _check_after(early)


def _position(box: AccountsJob) -> str:
    return str(json.loads(box.command("status", "--json").out)["position"])


def test_a_request_goes_back_once(early: AccountsJob) -> None:
    _go_back(early, "early")
    early.finish()
    newest = root_files.head(early.root)
    again = _execute(early, "--json")
    assert again.code == 0, str(again)
    report = json.loads(again.out)
    # Where the job stands, not where the plan went back to.
    assert (report["repeated"], report["checkpoint_id"]) == (True, newest.checkpoint)
    assert root_files.head(early.root).seq == newest.seq
    assert _execute(early, "--request-id", "another").code == 4, "the plan is outdated"
    _check_after(early)


def test_a_plan_for_a_job_that_moved_on_is_refused(early: AccountsJob) -> None:
    _plan(early, "early")
    early.deliver(130)
    early.finish()
    before = root_files.digests(early.root, early.folder / "tables")
    ended = _execute(early)
    assert (ended.code, ended.error.code) == (4, "plan-outdated"), str(ended)
    assert root_files.digests(early.root, early.folder / "tables") == before


def test_a_savepoint_taken_meanwhile_does_not_outdate_a_plan(early: AccountsJob) -> None:
    _plan(early, "early")
    assert early.command("savepoint", "create", "--name", "meanwhile").code == 0
    assert _execute(early).code == 0
    early.replace_events(since=50)
    _check_after(early)
    assert set(root_files.savepoints(early.root)) == {"early", "meanwhile"}


@pytest.mark.parametrize(
    "name", ["commit.after:3", "publish.before:5", "publish.before:6", "batch.begin:3", "log.created:4"]
)
def test_an_old_driver_that_wakes_after_it_adds_no_row(early: AccountsJob, name: str) -> None:
    early.deliver(200)
    sleeper = early.start(f"{name}:stop")
    sleeper.wait_stopped()
    early.marker.unlink()
    _go_back(early, "early")
    early.replace_events(since=50)
    sleeper.resume()
    ended = sleeper.wait()
    assert (ended.code, ended.error.code) == (3, "fenced"), str(ended)
    assert multiset(root_files.folder_rows(early.table("movements"))) == multiset(
        _rows_of_first(early, 50)["movements"]
    )
    _check_after(early)


@pytest.mark.parametrize("name", ["rewind.table", "restore.intent"])
def test_an_old_driver_that_wakes_in_the_middle_of_it(early: AccountsJob, name: str) -> None:
    """The intent is written, the tables still stand as they were: what the old one publishes now is taken back."""
    early.deliver(200)
    sleeper = early.start("commit.after:3:stop")
    sleeper.wait_stopped()
    early.marker.unlink()
    _plan(early, "early")
    going = early.begin(
        "restore", early.job_file, "--execute", str(_file(early)), failpoint=f"{name}:1:stop", with_job=True
    )
    going.wait_stopped()
    sleeper.resume()
    assert sleeper.wait().code == 3
    going.resume()
    assert going.wait().code == 0
    early.replace_events(since=50)
    _check_after(early)


def test_an_old_driver_that_wakes_when_there_was_nothing_to_take_back(early: AccountsJob) -> None:
    """Nothing behind the target is published when the intent is written, and then the old driver publishes it."""
    early.deliver(200)
    sleeper = early.start("commit.after:3:stop")
    sleeper.wait_stopped()
    early.marker.unlink()
    before = next(e for e in root_files.kept_entries(early.root) if e.doc["kind"] == "commit" and e.position == 140)
    _plan(early, str(before.seq))
    going = early.begin(
        "restore", early.job_file, "--execute", str(_file(early)), failpoint="restore.intent:1:stop", with_job=True
    )
    going.wait_stopped()
    sleeper.resume()
    assert sleeper.wait().code == 3
    going.resume()
    assert going.wait().code == 0
    early.replace_events(since=140)
    _check_after(early)


def test_back_and_forth(early: AccountsJob) -> None:
    """To a savepoint of the branch that was given up, too."""
    assert early.command("savepoint", "create", "--name", "late").code == 0
    given_up = early.delivered
    _go_back(early, "early")
    early.replace_events(since=50)
    early.finish()
    early.check_results()
    _go_back(early, "late")
    (early.folder / "events.jsonl").write_text("".join(json.dumps(e) + "\n" for e in given_up))
    assert root_files.head(early.root).position == 120
    early.check_tables()
    early.deliver(150)
    _check_after(early)


def test_what_is_pending_and_belongs_to_the_target_is_published_first(box: AccountsJob) -> None:
    box.deliver(100)
    assert box.run("commit.after:5").code == -9
    box.marker.unlink()
    _go_back(box, "latest")
    assert root_files.head(box.root).position == 50
    assert multiset(root_files.folder_rows(box.table("movements"))) == multiset(_rows_of_first(box, 50)["movements"])
    _check_after(box)


def test_tables_can_be_kept(early: AccountsJob) -> None:
    plan = _plan(early, "early", "--sinks", "keep")
    assert [(s["mode"], s["then"]) for s in plan["sinks"]] == [("keep", None)] * 2
    before = multiset(root_files.folder_rows(early.table("movements")))
    assert _execute(early).code == 0
    assert multiset(root_files.folder_rows(early.table("movements"))) == before
    early.finish()
    # The events behind the 50th come a second time.
    found = multiset(root_files.folder_rows(early.table("movements")))
    assert found == before + multiset(_rows_of_first(early, 120)["movements"][50:])


def test_no_checkpoint_depends_on_the_savepoint(early: AccountsJob) -> None:
    (folder,) = (early.root / "savepoints").iterdir()
    before = root_files.digests(folder)
    _go_back(early, "early")
    assert root_files.digests(folder) == before
    shutil.rmtree(folder)
    early.replace_events(since=50)
    _check_after(early)


@pytest.mark.parametrize("damage", ["flipped", "removed"])
def test_a_damaged_savepoint_is_named_and_nothing_happens(early: AccountsJob, damage: str) -> None:
    (folder,) = (early.root / "savepoints").iterdir()
    path = sorted((folder / "files").iterdir())[0]
    data = bytearray(path.read_bytes())
    path.unlink()
    if damage == "flipped":
        data[0] ^= 1
        path.write_bytes(data)
        _plan(early, "early")
    before = root_files.digests(early.root, early.folder / "tables")
    # A plan looks at sizes, the execution reads everything, before it claims the job.
    ended = _execute(early) if damage == "flipped" else ask(early, "early")
    assert ended.code == 4 and path.name in str(ended.error.facts), str(ended)
    assert root_files.digests(early.root, early.folder / "tables") == before
    shutil.rmtree(folder)
    _check_after(early)


def test_state_without_an_operator_goes_only_when_it_is_named(early: AccountsJob) -> None:
    early.settings = {**_KEEP_ALL, "job__parts": "movements"}
    refused = early.run()
    assert refused.code == 2 and "['turnovers']" in refused.err, str(refused)
    nameless = ask(early, "early")
    assert nameless.code == 2 and "uids=['turnovers']" in nameless.err, str(nameless)
    assert "--drop" in nameless.err
    wrong = ask(early, "early", "--drop", "turnover")
    assert wrong.code == 2 and "uids=['turnovers']" in wrong.err, str(wrong)
    plan = _plan(early, "early", "--drop", "turnovers", "--keep-table", "totals")
    assert [(s["uid"], s["action"]) for s in plan["states"]] == [("balances", "matched"), ("turnovers", "dropped")]
    assert _execute(early).code == 0
    early.replace_events(since=50)
    early.finish()
    wanted = expected(early.delivered)
    assert multiset(root_files.folder_rows(early.table("movements"))) == multiset(wanted.movements)
    assert root_files.read_state(early.root, "balances") == wanted.balances
    newest = root_files.read_manifest(early.root, root_files.head(early.root).doc["manifest"])
    assert [o["uid"] for o in newest["operators"]] == ["balances"]
    early.check_clean()


def test_two_jobs_restore_one_savepoint_at_once(early: AccountsJob, tmp_path: Path) -> None:
    (folder,) = (early.root / "savepoints").iterdir()
    before = root_files.digests(folder)
    others = [AccountsJob(tmp_path / f"other-{n}", _KEEP_ALL) for n in range(2)]
    for other in others:
        other.deliver(30)
        other.finish()
        other.deliver(120)
        _plan(other, str(folder), "--from-other-job")
    going = [
        other.begin(
            "restore", other.job_file, "--execute", str(_file(other)), failpoint="restore.claimed:1:stop", with_job=True
        )
        for other in others
    ]
    for one in going:
        one.wait_stopped()
    for one in going:
        one.resume()
    assert [one.wait().code for one in going] == [0, 0]
    assert root_files.digests(folder) == before
    for other in others:
        other.finish()
        assert root_files.read_state(other.root, "balances") == expected(other.delivered).balances
        other.check_clean()
        other.end_all()


# -- forks ------------------------------------------------------------------------------------------------------------


def test_a_shadow_fork_goes_its_own_way(early: AccountsJob, tmp_path: Path) -> None:
    before = root_files.digests(early.root / "log", early.root / "data", early.folder / "tables")
    forked = AccountsJob(early.folder, early.settings)
    forked.root_folder = tmp_path / "fork"
    ended = early.command("fork", "early", "--into", str(forked.root), "--shadow", "--reason", "a try")
    assert ended.code == 0, str(ended)
    forked.settings = {**early.settings, "local_dir": tmp_path / "local"}
    forked.finish()
    assert root_files.head(forked.root).position == 120
    shadow = multiset(root_files.folder_rows(early.folder / "tables" / "movements_shadow"))
    assert shadow == multiset(_rows_of_first(early, 120)["movements"][50:])
    changed = root_files.digests(early.root / "log", early.root / "data", early.folder / "tables")
    assert {p: d for p, d in changed.items() if "_shadow/" not in p} == before
    early.check_results()
    early.check_clean()
    taken = early.command("fork", "early", "--into", str(forked.root))
    facts = {"root": forked.root.as_uri(), "job": "accounts"}
    assert (taken.code, taken.error) == (2, ReportedError("config", facts)), str(taken)


def test_another_job_s_savepoint_must_be_asked_for(early: AccountsJob, tmp_path: Path) -> None:
    other = AccountsJob(tmp_path / "other", _KEEP_ALL)
    other.deliver(30)
    other.finish()
    (folder,) = (early.root / "savepoints").iterdir()
    refused = ask(other, str(folder))
    assert (refused.code, refused.error.code) == (2, "config") and "--from-other-job" in refused.err, str(refused)
    assert refused.error.facts.keys() == {"savepoint", "job_uuid", "this_job"}
    other.deliver(120)
    plan = _plan(other, str(folder), "--from-other-job")
    assert [s["mode"] for s in plan["sinks"]] == ["keep", "keep"]
    assert _execute(other).code == 0
    other.finish()
    # State and position are the other's; the table has its own first rows, and those behind the 50th.
    rows = _rows_of_first(other, 120)["movements"]
    assert multiset(root_files.folder_rows(other.table("movements"))) == multiset(rows[:30] + rows[50:])
    other.check_clean()
