"""A restore does exactly what its plan says, once, or nothing; damage bars only the way to what is damaged."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from typing import Any

import pytest

from tests.support import root_files
from tests.support.errors import ReportedError
from tests.support.job_fixture import AccountsJob, expected, multiset
from tests.support.processes import Ended
from tests.support.restores import ask, begin, check_after, execute, go_back, plan, plan_file

CHAIN = (1, 3, 5, 2, 4, 2)


def everything(box: AccountsJob) -> dict[str, str]:
    return root_files.digests(box.root, box.folder / "tables")


def position_at(box: AccountsJob, position: int) -> root_files.Entry:
    """The commit that read up to there."""
    return next(e for e in root_files.kept_entries(box.root) if e.doc["kind"] == "commit" and e.position == position)


def check_refused(box: AccountsJob) -> Ended:
    """The plan is not carried out, and nothing at all has changed."""
    before = everything(box)
    ended = execute(box)
    assert (ended.code, ended.error.code) == (4, "plan-outdated"), str(ended)
    assert everything(box) == before
    return ended


def check_table_replaced(ended: Ended, sink: str) -> None:
    """It was refused because of the table of this sink, which is another one."""
    facts = ended.error.facts
    assert facts.keys() == {"sink", "planned", "found"} and facts["sink"] == sink, str(ended)
    assert facts["planned"] != facts["found"]


def replace_table(folder: Path) -> None:
    """Makes it a table of its own, as a copy that somebody created anew would be."""
    first = folder / "versions" / "00000000"
    first.write_text(json.dumps({"id": f"{json.loads(first.read_bytes())['id']}-other"}))


def write_as_other(folder: Path, number: int = -1) -> None:
    """Somebody else adds a row to a table."""
    name = "somebody-else.json"
    (folder / "data" / name).write_text(json.dumps({"number": number}) + "\n")
    version = {"application": "somebody else", "token": 1, "paths": [name]}
    (folder / "versions" / f"{len(list((folder / 'versions').iterdir())):08d}").write_text(json.dumps(version))


def flip(path: Path) -> None:
    """Changes a byte, in a file of its own: links of it stay whole."""
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.unlink()
    path.write_bytes(data)


# -- exactly the plan -------------------------------------------------------------------------------------------------


def test_with_other_tables_it_is_not_carried_out(early: AccountsJob) -> None:
    """Its intent would name versions of the wrong tables, and the right run would go back to them."""
    plan(early, "early")
    others = early.folder / "others"
    shutil.copytree(early.folder / "tables", others)
    for table in others.iterdir():
        replace_table(table)
    right, early.settings = early.settings, {**early.settings, "job__tables": others}
    check_table_replaced(check_refused(early), "movements")
    refused = ask(early, "early")
    assert (refused.code, refused.error.code) == (4, "sink-diverged"), str(refused)
    early.settings = right
    assert execute(early).code == 0
    early.replace_events(since=50)
    check_after(early)


@pytest.mark.parametrize(
    ("settings", "differs"),
    [
        ({"parallelism": 3}, r"\bparallelism\b.*\b3\b.*\b4\b"),
        ({"job__parts": "movements"}, r"\bturnovers\b.*\btotals\b"),
    ],
    ids=["parallelism", "a sink less"],
)
def test_with_other_settings_or_another_job_file_it_is_not_carried_out(
    early: AccountsJob, settings: dict[str, Any], differs: str
) -> None:
    early.settings = {**early.settings, "parallelism": 4}
    plan(early, "early")
    right, early.settings = early.settings, {**early.settings, **settings}
    refused = check_refused(early)
    assert re.search(rf" differs=\[.*{differs}.*\]", refused.err), str(refused)
    early.settings = right
    assert execute(early).code == 0
    early.replace_events(since=50)
    check_after(early)


def test_a_table_that_was_replaced_since_is_not_taken_back(early: AccountsJob) -> None:
    plan(early, "early")
    replace_table(early.table("totals"))
    check_table_replaced(check_refused(early), "totals")


def test_what_others_wrote_since_the_plan_is_not_undone_unseen(early: AccountsJob) -> None:
    plan(early, "early")
    write_as_other(early.table("movements"))
    refused = check_refused(early)
    assert refused.error.facts["sink"] == "movements" and "somebody else" in refused.err, str(refused)
    planned = plan(early, "early")
    (movements,) = [s for s in planned["sinks"] if s["uid"] == "movements"]
    assert "somebody else" in movements["others"][0]
    assert execute(early).code == 0
    early.replace_events(since=50)
    check_after_others(early)


def check_after_others(box: AccountsJob) -> None:
    box.finish()
    box.check_results()


def test_nor_what_others_write_while_it_is_carried_out(early: AccountsJob) -> None:
    """Looked at once more on the handle that the intent's version is taken from."""
    plan(early, "early")
    going = begin(early, failpoint="restore.claimed:1:stop")
    going.wait_stopped()
    write_as_other(early.table("movements"))
    before = root_files.digests(early.folder / "tables")
    going.resume()
    ended = going.wait()
    assert (ended.code, ended.error.code) == (4, "plan-outdated"), str(ended)
    assert ended.error.facts["sink"] == "movements"
    assert root_files.digests(early.folder / "tables") == before
    assert root_files.head(early.root).position == 120


def test_tables_that_are_kept_may_get_rows_of_others_meanwhile(early: AccountsJob) -> None:
    plan(early, "early", "--sinks", "keep")
    write_as_other(early.table("movements"))
    assert execute(early).code == 0
    assert root_files.head(early.root).position == 50


def test_output_of_the_job_itself_that_was_pending_does_not_outdate_a_plan(box: AccountsJob) -> None:
    """A savepoint without a run publishes it, and the log's head stands where it stood."""
    box.settings = {"checkpoints__retained": 100}
    box.deliver(100)
    assert box.run("commit.after:5").code == -9
    box.marker.unlink()
    plan(box, str(position_at(box, 30).seq))
    made = box.begin("savepoint", "create", "--name", "between", "--job", box.job_file, with_job=True).wait()
    assert made.code == 0, str(made)
    rows = multiset(root_files.folder_rows(box.table("movements")))
    assert rows == multiset(expected(box.delivered[:50]).movements)
    assert execute(box).code == 0
    box.replace_events(since=30)
    check_after(box)


@pytest.mark.parametrize(
    "options",
    [
        ("--sinks", "keep"),
        ("--drop", "turnovers"),
        ("--from-other-job",),
        ("--keep-table", "totals"),
        ("--out", "other.json"),
    ],
    ids=lambda o: o[0],
)
def test_options_of_a_plan_are_refused_with_execute(early: AccountsJob, options: tuple[str, ...]) -> None:
    plan(early, "early")
    before = everything(early)
    ended = execute(early, *options)
    assert (ended.code, ended.error.code) == (2, "config"), str(ended)
    assert f"options={[options[0]]}" in ended.err
    assert everything(early) == before


def test_a_plan_for_another_job_is_refused(early: AccountsJob, tmp_path: Path) -> None:
    other = AccountsJob(tmp_path / "other")
    other.deliver(30)
    other.finish()
    plan(early, "early")
    shutil.copy(plan_file(early), plan_file(other))
    before = everything(other)
    ended = execute(other)
    planned_for, this_job = (json.loads(plan_file(early).read_bytes())["job_uuid"], uuid_of(other))
    facts = {"planned_for": planned_for, "this_job": this_job, "root": other.root.as_uri()}
    assert (ended.code, ended.error) == (2, ReportedError("config", facts)), str(ended)
    assert "--job-root" in ended.err
    assert everything(other) == before


def uuid_of(box: AccountsJob) -> str:
    return str(root_files.unsealed((box.root / "FORMAT").read_bytes())[0]["job_uuid"])


def test_the_command_that_a_plan_prints_carries_it_out(tmp_path: Path) -> None:
    """With every setting, and paths with blanks and quotes."""
    box = AccountsJob(tmp_path / "Ada's job", {"checkpoints__retained": 100, "parallelism": 2})
    box.deliver(50)
    box.finish()
    assert box.command("savepoint", "create", "--name", "early").code == 0
    box.deliver(80)
    box.finish()
    config = box.folder / "more settings.toml"
    config.write_text("[spark]\n")
    asked = ask(box, "early", "--out", str(plan_file(box)), "--config", str(config), "--reason", "it's wrong")
    assert asked.code == 0, str(asked)
    assert box.job_file in asked.out
    (command,) = (line for line in asked.out.splitlines() if line.strip().startswith("stateflow restore "))
    ended = box.shell(command)
    assert ended.code == 0, str(ended)
    assert root_files.head(box.root).position == 50
    (record,) = [r for r in root_files.history(box.root) if r.get("kind") == "restore"]
    assert record["reason"] == "it's wrong"
    box.replace_events(since=50)
    check_after(box)


# -- tables of sinks that are gone ------------------------------------------------------------------------------------


def test_tables_of_a_new_version_go_back_with_its_file_and_the_old_file_goes_on(box: AccountsJob) -> None:
    old, new = {**box.settings, "job__parts": "movements"}, dict(box.settings)
    box.settings = old
    box.deliver(50)
    box.finish()
    assert box.command("savepoint", "create", "--name", "before-v2").code == 0
    box.settings = new
    box.deliver(80)
    box.finish()
    assert root_files.folder_rows(box.table("totals"))
    box.settings = old
    refused = ask(box, "before-v2")
    assert refused.code == 2 and "sinks=['totals']" in refused.err, str(refused)
    box.settings = new
    assert plan(box, "before-v2")["left"] == []
    assert execute(box).code == 0
    assert root_files.folder_rows(box.table("totals")) == []
    box.settings = old
    box.finish()
    assert multiset(root_files.folder_rows(box.table("movements"))) == multiset(expected(box.delivered).movements)
    assert root_files.folder_rows(box.table("totals")) == []


def test_a_table_is_left_behind_only_when_it_is_named(early: AccountsJob) -> None:
    """The job has no sink for it: it keeps its rows, and a later version with the sink would write them again."""
    totals = root_files.digests(early.table("totals"))
    early.settings = {**early.settings, "job__parts": "movements"}
    refused = ask(early, "early", "--drop", "turnovers")
    assert refused.code == 2 and "sinks=['totals']" in refused.err and "--keep-table" in refused.err, str(refused)
    wrong = ask(early, "early", "--drop", "turnovers", "--keep-table", "totals", "--keep-table", "movements")
    assert wrong.code == 2 and "uids=['movements']" in wrong.err, str(wrong)
    planned = plan(early, "early", "--drop", "turnovers", "--keep-table", "totals")
    assert [(s["uid"], s["checkpoint_id"]) for s in planned["left"]] == [("totals", position_at(early, 120).seq)]
    assert execute(early).code == 0
    assert root_files.digests(early.table("totals")) == totals
    assert len(root_files.folder_rows(early.table("movements"))) == 50


def test_tables_that_are_kept_anyway_are_listed_and_need_no_name(early: AccountsJob) -> None:
    early.settings = {**early.settings, "job__parts": "movements"}
    planned = plan(early, "early", "--drop", "turnovers", "--sinks", "keep")
    assert [s["uid"] for s in planned["left"]] == ["totals"]


def test_a_table_with_nothing_behind_the_target_is_not_left_behind(early: AccountsJob) -> None:
    early.settings = {**early.settings, "job__parts": "movements"}
    assert plan(early, "latest", "--drop", "turnovers")["left"] == []


def test_output_that_belongs_to_the_target_needs_its_sink(box: AccountsJob) -> None:
    box.deliver(100)
    assert box.run("commit.after:5").code == -9
    box.marker.unlink()
    box.settings = {"job__parts": "movements"}
    refused = ask(box, "latest", "--drop", "turnovers", "--keep-table", "totals")
    # With --keep-table nothing else is left to refuse than output of the checkpoint itself.
    assert refused.code == 2 and "sinks=['totals']" in refused.err, str(refused)


# -- once -------------------------------------------------------------------------------------------------------------


def test_another_plan_is_another_request(early: AccountsJob) -> None:
    """Of two plans to one target that differ in what becomes of tables, one is carried out, and the other refused."""
    plan(early, "early", "--sinks", "keep")
    keep = plan_file(early).read_bytes()
    go_back(early, "early")
    plan_file(early).write_bytes(keep)
    check_refused(early)
    early.replace_events(since=50)
    check_after(early)


def test_executing_a_plan_again_does_nothing(early: AccountsJob) -> None:
    go_back(early, "early")
    early.replace_events(since=50)
    early.finish()
    before = everything(early)
    again = execute(early, "--json")
    assert again.code == 0, str(again)
    report = json.loads(again.out)
    assert (report["repeated"], report["checkpoint_id"]) == (True, position_at(early, 120).seq)
    assert report["offsets"] == {"events": '{"row": 120}'}
    assert everything(early) == before


def test_a_request_id_of_one_s_own_is_not_used_twice_either(early: AccountsJob) -> None:
    plan(early, "early")
    assert execute(early, "--request-id", "mine").code == 0
    early.finish()
    plan(early, "early")
    before = everything(early)
    again = execute(early, "--request-id", "mine", "--json")
    assert again.code == 0 and json.loads(again.out)["repeated"], str(again)
    assert everything(early) == before


@pytest.mark.parametrize("name", ["restore.begin", "restore.claimed", "restore.imported", "rewind.table"])
def test_of_two_executions_of_one_plan_the_slower_finds_it_done(early: AccountsJob, name: str) -> None:
    plan(early, "early")
    slow = begin(early, failpoint=f"{name}:1:stop")
    slow.wait_stopped()
    assert execute(early).code == 0
    stands = root_files.head(early.root).doc
    slow.resume()
    ended = slow.wait()
    assert ended.code == 0, str(ended)
    newest = root_files.head(early.root).doc
    assert (newest["generation"], newest["requests"]) == (stands["generation"], stands["requests"])
    early.replace_events(since=50)
    check_after(early)
    assert len([r for r in root_files.history(early.root) if r.get("kind") == "restore"]) == 1


def test_it_does_not_take_the_job_from_another_execution_that_works_on_it(early: AccountsJob) -> None:
    plan(early, "early")
    first = begin(early, failpoint="restore.begin:1:stop")
    first.wait_stopped()
    early.marker.unlink()
    second = begin(early, failpoint="restore.claimed:1:stop")
    second.wait_stopped()
    first.resume()
    ended = first.wait()
    # Only the request is named: it is the same one.
    assert (ended.code, ended.error.code, ended.error.facts.keys()) == (3, "fenced", {"request"}), str(ended)
    second.resume()
    assert second.wait().code == 0
    early.replace_events(since=50)
    check_after(early)


# -- damage -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("damage", ["removed", "cut", "flipped"])
def test_a_damaged_checkpoint_is_named_before_the_job_is_claimed(early: AccountsJob, damage: str) -> None:
    # What the job is at now has no file of the target any more.
    early.settings["rocksdb__compact_at_files"] = 1
    early.deliver(140)
    early.finish()
    target = position_at(early, 80)
    others = {f["key"] for f in root_files.handles(_manifest(early, root_files.head(early.root)))}
    key = next(h["key"] for h in root_files.handles(_manifest(early, target)) if h["key"] not in others)
    if damage == "flipped":
        flip(early.root / key)
    else:
        data = (early.root / key).read_bytes()
        (early.root / key).unlink()
        if damage == "cut":
            (early.root / key).write_bytes(data[:-1])
    before = everything(early)
    asked = ask(early, str(target.seq), "--out", str(plan_file(early)))
    # A plan looks at sizes, the execution reads everything.
    ended = execute(early) if damage == "flipped" else asked
    assert ended.code == 4 and key in ended.error.facts.values(), str(ended)
    assert everything(early) == before
    go_back(early, "early")
    early.replace_events(since=50)
    early.finish()
    early.check_results()


def test_a_damaged_head_does_not_bar_the_way_back(early: AccountsJob) -> None:
    checkpoint = position_at(early, 80).seq
    (early.root / root_files.head(early.root).doc["manifest"]["key"]).unlink()
    assert early.run().code == 4
    planned = plan(early, "early")
    (source,) = planned["sources"]
    assert (source["then"], source["now"]) == ('{"row": 50}', '{"row": 120}')
    assert plan(early, str(checkpoint))["target_checkpoint"] == checkpoint
    refused = ask(early, "latest")
    assert (refused.code, refused.error.code) == (4, "missing-file"), str(refused)
    go_back(early, "early")
    early.replace_events(since=50)
    check_after(early)


def test_a_damaged_older_checkpoint_is_passed_over(early: AccountsJob) -> None:
    """By a condition, with a warning; named by its id it is refused."""
    damaged, older = position_at(early, 80), position_at(early, 70)
    flip(early.root / damaged.doc["manifest"]["key"])
    planned = ask(early, "before:events=89", "--json")
    assert planned.code == 0 and damaged.doc["manifest"]["key"] in planned.err, str(planned)
    assert json.loads(planned.out)["target_checkpoint"] == older.seq
    refused = ask(early, str(damaged.seq))
    assert (refused.code, refused.error.code) == (4, "corrupt-file"), str(refused)


def _manifest(box: AccountsJob, entry: root_files.Entry) -> root_files.Document:
    return root_files.read_manifest(box.root, entry.doc["manifest"])


# -- another parallelism ----------------------------------------------------------------------------------------------


def test_it_goes_back_at_any_parallelism(box: AccountsJob) -> None:
    """Each time to a savepoint that was taken at another one; the plan shows the change."""
    box.settings = {"checkpoints__retained": 100, "parallelism": CHAIN[0]}
    box.deliver(30)
    box.finish()
    for number, parallelism in enumerate(CHAIN[1:]):
        before, kept = CHAIN[number], 30 * (number + 1)
        assert box.command("savepoint", "create", "--name", f"at-{before}").code == 0
        box.deliver(kept + 20)
        box.finish()
        box.settings = {**box.settings, "parallelism": parallelism}
        planned = plan(box, f"at-{before}")
        changes = {s["uid"]: (s["from_parallelism"], s["to_parallelism"]) for s in planned["states"]}
        assert changes == dict.fromkeys(("balances", "turnovers"), (before, parallelism))
        assert execute(box).code == 0
        assert root_files.head(box.root).position == kept
        box.deliver(kept + 30)
        check_after(box)
        state = _manifest(box, root_files.head(box.root))["operators"]
        assert {(o["uid"], o["parallelism"], len(o["subtasks"])) for o in state} == {
            (uid, parallelism, parallelism) for uid in ("balances", "turnovers")
        }
