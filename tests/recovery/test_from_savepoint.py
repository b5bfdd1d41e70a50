"""New job roots that begin with a savepoint whose own root is gone: what happens to tables, kills, repeated runs."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from tests.recovery.new_roots import NewRoot
from tests.support import root_files
from tests.support.job_fixture import ASKED, JOBS, AccountsJob, expected, mostly_slow, multiset

STEPS = [*sorted(n for n in ASKED if n.startswith("begin.")), "claim.after", "start.published", "commit.after"]


@pytest.fixture
def roots(box: AccountsJob, tmp_path: Path) -> NewRoot:
    return NewRoot(box, tmp_path)


def test_a_job_whose_root_is_gone_goes_on_from_a_savepoint(roots: NewRoot) -> None:
    shutil.rmtree(roots.old.root)
    roots.new.deliver(120)
    ended = roots.run()
    assert ended.code == 0, str(ended)
    roots.check_own_tables()
    (record,) = [r for r in root_files.history(roots.new.root) if r.get("kind") == "fork"]
    assert record["facts"]["savepoint_path"].endswith(roots.savepoint.name)
    format_ = root_files.unsealed((roots.new.root / "FORMAT").read_bytes())[0]
    assert format_["begun_with"] == record["facts"]["savepoint_path"]
    assert record["facts"]["at"] in _origin(roots) and "mine" in record["facts"]["at"]
    (found,) = (roots.new.root / "history").glob("*-fork-made.json")
    found.unlink()
    assert format_["begun_with"] in _origin(roots)
    # It is its own: a savepoint of it, and a job without the argument, need nothing of the first one.
    shutil.rmtree(roots.savepoint)
    roots.new.settings = {**roots.new.settings, "job__tables": roots.tables}
    roots.new.deliver(140)
    roots.new.finish()
    roots.check_own_tables()
    roots.new.collect()
    root_files.check_no_orphans(roots.new.root)


def _origin(roots: NewRoot) -> str:
    shown = roots.new.command("status", "--json")
    return str(json.loads(shown.out)["origin"])


def test_the_same_command_goes_on_also_when_the_savepoint_is_gone(roots: NewRoot) -> None:
    for rows in (80, 100, 120):
        roots.new.deliver(rows)
        ended = roots.run()
        assert ended.code == 0, str(ended)
        roots.check_own_tables()
    shutil.rmtree(roots.savepoint)
    roots.new.deliver(140)
    assert roots.run().code == 0
    roots.check_own_tables()
    roots.savepoint = roots.savepoint.with_name("other")
    assert roots.run().code == 2


@pytest.mark.parametrize("name", mostly_slow(STEPS, ["begin.created", "begin.adopted"]))
def test_one_that_was_killed_is_completed_by_the_same_command(roots: NewRoot, name: str) -> None:
    roots.new.deliver(120)
    assert roots.run(failpoint=name).code == -9
    if name in ("begin.created", "begin.imported"):
        assert roots.new.run(job__tables=roots.tables).code == 2
    ended = roots.run()
    assert ended.code == 0, str(ended)
    roots.check_own_tables()
    assert len([r for r in root_files.history(roots.new.root) if r.get("kind") == "fork"]) == 1
    roots.new.collect()
    root_files.check_no_orphans(roots.new.root)


@pytest.mark.parametrize("name", ["begin.created", "begin.imported"])
def test_of_two_at_once_both_begin_the_same_job(roots: NewRoot, name: str) -> None:
    roots.new.deliver(120)
    slow = roots.begin(failpoint=f"{name}:1:stop")
    slow.wait_stopped()
    assert roots.run().code == 0
    roots.new.collect()
    slow.resume()
    ended = slow.wait()
    assert ended.code == 0, str(ended)
    roots.check_own_tables()


def test_tables_of_the_savepoint_s_job_are_written_only_with_an_option(roots: NewRoot) -> None:
    """Tables that stand where the savepoint does get what comes after it, and no row twice."""
    shutil.rmtree(roots.old.root)
    roots.new.deliver(120)
    refused = roots.run(own_tables=False)
    error = refused.error
    assert (refused.code, error.code, error.facts["sink"]) == (2, "config", "movements"), str(refused)
    assert "--tables continue" in refused.err
    assert not roots.new.root.exists()
    ended = roots.run("--tables", "continue", own_tables=False)
    assert ended.code == 0, str(ended)
    roots.new.check_results()
    # From now on they are the new job's own.
    roots.new.deliver(140)
    assert roots.run(own_tables=False).code == 0
    roots.new.check_results()


def test_tables_that_hold_more_than_the_savepoint_are_not_written_twice_in_silence(roots: NewRoot) -> None:
    roots.old.deliver(80)
    roots.old.finish()
    roots.new.deliver(120)
    before = root_files.digests(roots.old.folder / "tables")
    refused = roots.run("--tables", "continue", own_tables=False)
    assert (refused.code, refused.error.code) == (4, "sink-diverged"), str(refused)
    assert refused.error.facts["version_of_savepoint"] == 5
    assert (root_files.digests(roots.old.folder / "tables"), roots.new.root.exists()) == (before, False)
    # Taken back, they stand where the savepoint does, whatever their tokens are.
    plan = roots.old.folder / "plan.json"
    for step in (("--plan", str(roots.savepoint), "--out", str(plan)), ("--execute", str(plan))):
        done = roots.old.begin("restore", roots.old.job_file, *step, with_job=True).wait()
        assert done.code == 0, str(done)
    ended = roots.run("--tables", "continue", own_tables=False)
    assert ended.code == 0, str(ended)
    roots.new.check_results()


def forget_versions(savepoint: Path) -> None:
    """Rewrites a savepoint as one that does not know the versions of its tables."""
    path = savepoint / "_savepoint"
    document, _ = root_files.unsealed(path.read_bytes())
    for sink in document["sinks"].values():
        sink["version"] = -1
    path.write_bytes(root_files.sealed(document))


@pytest.mark.parametrize(("tables", "is_version_known"), [("continue", True), ("continue", False), ("refuse", True)])
def test_what_another_new_root_wrote_after_the_savepoint_is_not_written_again(
    roots: NewRoot, tables: str, is_version_known: bool
) -> None:
    """In the tables of the savepoint's job, and in tables that only the other new root knows."""
    is_old_table = tables == "continue"
    if not is_version_known:
        forget_versions(roots.savepoint)
    roots.new.deliver(120)
    assert roots.run("--tables", tables, own_tables=not is_old_table).code == 0
    shutil.rmtree(roots.new.root)
    folder = roots.old.folder / "tables" if is_old_table else roots.tables
    before = root_files.digests(folder)
    roots.new.deliver(140)
    for policy in ("continue", "refuse"):
        refused = roots.run("--tables", policy, own_tables=not is_old_table)
        assert refused.code == (2 if is_old_table and policy == "refuse" else 4), str(refused)
        assert (root_files.digests(folder), roots.new.root.exists()) == (before, False)
    assert roots.run("--tables", "keep", own_tables=not is_old_table).code == 0
    rows = expected(roots.new.delivered).movements
    found = multiset(root_files.folder_rows(folder / "movements"))
    assert found == multiset(rows[0 if is_old_table else 50 :]) + multiset(rows[50:120])


def test_the_path_of_a_savepoint_s_document_is_understood_everywhere(roots: NewRoot) -> None:
    document = f"{roots.savepoint}/_savepoint"
    plan = roots.old.begin("restore", roots.old.job_file, "--plan", document, "--json", with_job=True).wait()
    assert plan.code == 0 and json.loads(plan.out)["savepoint"] == roots.savepoint.as_uri(), str(plan)
    checked = roots.old.shell(
        f"stateflow check {roots.old.job_file} --against {document} --set job.folder={roots.old.folder}"
    )
    assert checked.code == 0, str(checked)
    roots.savepoint = roots.savepoint / "_savepoint"
    roots.new.deliver(60)
    assert roots.run().code == 0
    roots.check_own_tables()
    roots.savepoint = roots.savepoint.parent
    assert roots.run().code == 0


def test_tables_can_be_kept_as_they_are(roots: NewRoot) -> None:
    roots.old.deliver(80)
    roots.old.finish()
    roots.new.deliver(120)
    assert roots.run("--tables", "keep", own_tables=False).code == 0
    rows = expected(roots.new.delivered).movements
    found = multiset(root_files.folder_rows(roots.old.table("movements")))
    assert found == multiset(rows) + multiset(rows[50:80])


def test_a_missing_table_is_not_begun_anew_in_silence(roots: NewRoot) -> None:
    shutil.rmtree(roots.old.table("movements"))
    refused = roots.run("--tables", "continue", own_tables=False)
    assert refused.code == 2 and not roots.new.root.exists(), str(refused)


def test_a_root_that_was_begun_otherwise_is_refused_and_named(roots: NewRoot) -> None:
    roots.old.root_folder = roots.new.root
    roots.old.finish(job__tables=roots.tables)
    roots.new.deliver(120)
    refused = roots.run(own_tables=False)
    facts = refused.error.facts
    assert (refused.code, refused.error.code) == (2, "config"), str(refused)
    assert (facts["root"], facts["savepoint"]) == (roots.new.root.as_uri(), str(roots.savepoint))
    (roots.new.root.parent / "thesis").mkdir()
    (roots.new.root.parent / "thesis" / "thesis.txt").write_text("years of work")
    roots.new.root_folder = roots.new.root.parent / "thesis"
    assert roots.run().code == 2


def test_another_job_s_savepoint_must_be_asked_for(roots: NewRoot) -> None:
    roots.new.deliver(120)
    refused = roots.run("--set", "name=ledger")
    assert (refused.code, refused.error.code) == (2, "config") and not roots.new.root.exists()
    assert (refused.error.facts["of_job"], refused.error.facts["this_job"]) == ("accounts", "ledger")
    assert "--from-other-job" in refused.err
    assert roots.run("--set", "name=ledger", "--from-other-job").code == 0
    roots.check_own_tables()


def test_a_damaged_savepoint_begins_nothing(roots: NewRoot) -> None:
    victim = next((roots.savepoint / "files").iterdir())
    victim.unlink()
    refused = roots.run()
    assert refused.code == 4 and not (roots.new.root / "FORMAT").exists(), str(refused)


def test_state_that_the_job_does_not_take_is_dropped_only_with_an_option(roots: NewRoot) -> None:
    roots.new.deliver(120)
    less = ("--set", "job.parts=movements")
    refused = roots.run(*less)
    assert (refused.code, refused.error.code) == (2, "config") and not roots.new.root.exists()
    assert "--drop" in refused.err and "['turnovers']" in refused.err
    assert roots.run(*less, "--drop", "turnovers").code == 0
    roots.check_own_tables()


def test_max_parallelism_is_that_of_what_is_restored(box: AccountsJob, tmp_path: Path) -> None:
    """Where neither the job nor its settings set one, it needs not be said again; keys find their state."""
    job = tmp_path / "accounts.py"
    job.write_text((JOBS / "accounts.py").read_text().replace("env.configure(max_parallelism=128)", ""))

    class Unset(AccountsJob):
        @property
        def job_file(self) -> str:
            return str(job)

    old = Unset(box.folder, {"max_parallelism": 64})
    roots = NewRoot(old, tmp_path)
    roots.new = Unset(box.folder, roots.new.settings, root_folder=roots.new.root)
    old.settings = {}
    old.deliver(120)
    old.finish()
    old.check_results()
    assert roots.run().code == 0
    roots.check_own_tables()
    assert root_files.unsealed((roots.new.root / "FORMAT").read_bytes())[0]["max_parallelism"] == 64
    assert roots.run("--set", "max_parallelism=128").code == 2
