"""A savepoint is the user's: it holds no output, making it publishes and notifies nothing, any copy of it restores."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tests.support import root_files
from tests.support.job_fixture import AccountsJob, expected, multiset
from tests.support.processes import wait_for
from tests.support.restores import check_after, go_back, plan


def _names(document: Any) -> Iterator[str]:
    """The names of all fields, at any depth."""
    if isinstance(document, dict):
        yield from document
        for value in document.values():
            yield from _names(value)
    elif isinstance(document, list):
        for value in document:
            yield from _names(value)


def test_it_names_no_output(box: AccountsJob) -> None:
    """Also where its checkpoint's output was pending a moment before."""
    box.deliver(50)
    assert box.run("commit.after:3").code == -9
    pending = root_files.head(box.root).doc["pending"]
    assert pending and {"pending", "committables"} <= set(_names(root_files.head(box.root).doc))
    made = box.begin(
        "savepoint", "create", "--name", "mine", "--patience", "0.2", "--job", box.job_file, with_job=True
    ).wait()
    assert made.code == 0, str(made)
    stored = root_files.savepoints(box.root)["mine"]
    assert stored["checkpoint_id"] == root_files.head(box.root).checkpoint
    assert not {"pending", "committables"} & set(_names(stored))
    files = [c["path"] for output in pending for c in output["committables"]]
    assert files and not [path for path in files if path in str(stored)]


def test_making_it_touches_no_table(early: AccountsJob) -> None:
    before = root_files.digests(early.folder / "tables")
    for more in ((), ("--from-head",)):
        assert early.command("savepoint", "create", "--name", f"more{len(more)}", *more).code == 0
    assert root_files.digests(early.folder / "tables") == before


def test_making_it_notifies_nobody(box: AccountsJob) -> None:
    """Functions hear of checkpoints, each soon after its commit, also of that which a savepoint is made of; of nothing
    else: a savepoint's entries in the log have numbers, too."""
    box.job = "checkpointed"
    box.settings = {"requests__interval": "20ms"}
    box.deliver(60)
    run = box.start("batch.begin:3:stop")
    run.wait_stopped()
    asker = box.begin("savepoint", "create", "--name", "beside", "--timeout", "60", "--patience", "60")
    wait_for(lambda: any((box.root / "requests").glob("*")), lambda: "the request")
    run.resume()
    assert (run.wait().code, asker.wait().code) == (0, 0)
    assert box.command("savepoint", "create", "--name", "resting").code == 0
    box.deliver(90)
    box.finish()
    told = {row["told"] for row in root_files.folder_rows(box.table("told"))} - {0}
    entries = root_files.entries(box.root)
    others = {e.seq for e in entries if not e.is_checkpoint}
    recorded = {r["checkpoint_id"] for r in root_files.history(box.root) if "checkpoint_id" in r}
    assert told and told <= recorded and not told & others


def test_a_copy_is_gone_back_to_and_may_go_then(early: AccountsJob, tmp_path: Path) -> None:
    (folder,) = (early.root / "savepoints").iterdir()
    copied = tmp_path / "copied"
    shutil.copytree(folder, copied)
    go_back(early, str(copied))
    shutil.rmtree(copied)
    early.replace_events(since=50)
    check_after(early)


def test_one_on_another_file_system_is_gone_back_to(early: AccountsJob, elsewhere: Path) -> None:
    (folder,) = (early.root / "savepoints").iterdir()
    moved = Path(shutil.move(folder, elsewhere / "moved"))
    before = root_files.digests(moved)
    go_back(early, str(moved))
    assert root_files.digests(moved) == before
    shutil.rmtree(moved)
    early.replace_events(since=50)
    check_after(early)


def test_a_fork_on_another_file_system_goes_its_own_way(early: AccountsJob, elsewhere: Path) -> None:
    into = elsewhere / "fork"
    assert early.command("fork", "early", "--into", str(into), "--shadow").code == 0
    uuids = {root_files.unsealed((root / "FORMAT").read_bytes())[0]["job_uuid"] for root in (early.root, into)}
    assert len(uuids) == 2
    forked = AccountsJob(early.folder, {**early.settings, "local_dir": elsewhere / "local"}, root_folder=into)
    forked.finish()
    shadow = multiset(root_files.folder_rows(early.folder / "tables" / "movements_shadow"))
    assert shadow == multiset(expected(early.delivered).movements[50:])
    early.check_results()


def test_an_operator_that_the_target_does_not_know_begins_anew(early: AccountsJob) -> None:
    """Made by a version without the second operator, gone back to by one that has it."""
    old = AccountsJob(early.folder / "old", {**early.settings, "job__parts": "movements"})
    old.deliver(50)
    old.finish()
    assert old.command("savepoint", "create", "--name", "before-totals").code == 0
    old.settings = dict(early.settings)
    old.deliver(120)
    old.finish()
    planned = plan(old, "before-totals", "--sinks", "keep")
    found = {s["uid"]: (s["action"], s["bytes"], s["from_parallelism"]) for s in planned["states"]}
    assert found["turnovers"] == ("new", 0, 0) and found["balances"][0] == "matched"
    go_back(old, "before-totals", "--sinks", "keep")
    old.finish()
    whole, first = expected(old.delivered), expected(old.delivered[:50])
    turnover = {k: v - first.turnovers.get(k, 0) for k, v in whole.turnovers.items() if k[0] == "turnover"}
    state = root_files.read_state(old.root, "turnovers")
    assert {k: v for k, v in state.items() if k[0] == "turnover"} == turnover
    assert root_files.read_state(old.root, "balances") == whole.balances
    old.end_all()
