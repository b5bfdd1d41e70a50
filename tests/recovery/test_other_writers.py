"""Tables that others touch: rows of another writer while a job goes back, and output that is deleted too early."""

from __future__ import annotations

from collections import Counter

import pytest

from tests.recovery.other_writer import TABLES, append, newest_version
from tests.support import folder_tables, root_files
from tests.support.job_fixture import KILLED, AccountsJob, multiset
from tests.support.processes import Ended
from tests.support.restores import begin, execute, plan


@pytest.fixture
def approved(early: AccountsJob) -> AccountsJob:
    """A restore to the 50th event was approved, and killed after its intent."""
    plan(early, "early")
    assert execute(early, failpoint="restore.intent").code == KILLED
    return early


def _check_refused(job: AccountsJob, ended: Ended, table: str) -> None:
    version = newest_version(job, table)
    ended.check_error(4, "foreign-rows", sink=table, table=str(job.table(table)))
    assert f"versions={[version]}" in ended.err and f"other-{version}.json" in ended.err, ended.err


def _tables(job: AccountsJob) -> dict[str, Counter[str]]:
    return {table: multiset(job.rows(table)) for table in TABLES}


def test_an_approved_restore_does_not_undo_rows_that_its_plan_did_not_show(approved: AccountsJob) -> None:
    table = "totals"
    append(approved, table)
    before = approved.rows(table)
    for ended in (execute(approved), approved.run(), execute(approved)):
        _check_refused(approved, ended, table)
        assert approved.rows(table) == before


@pytest.mark.parametrize(
    ("failpoint", "code"), [("restore.claimed", "plan-outdated"), ("restore.imported", "foreign-rows")]
)
def test_rows_that_another_writer_adds_during_a_restore_stop_the_restore(
    early: AccountsJob, failpoint: str, code: str
) -> None:
    """Before its last look, and between that and the intent."""
    plan(early, "early")
    restore = begin(early, failpoint=f"{failpoint}:1:stop").wait_stopped()
    append(early, "movements")
    before = _tables(early)
    ended = restore.resume().wait()
    ended.check_error(4, code, sink="movements")
    assert _tables(early) == before
    if code == "plan-outdated":
        assert early.head.position == 120
    else:
        _check_refused(early, ended, "movements")


# -- lost output -------------------------------------------------------------------------------------------------------


@pytest.fixture
def running(job: AccountsJob) -> AccountsJob:
    """A job with a few checkpoints, and more to do."""
    job.run_to(40)
    job.deliver(100)
    return job


@pytest.mark.parametrize("table", TABLES)
def test_a_run_whose_output_was_lost_is_rewound_by_one_checkpoint_and_replayed(
    running: AccountsJob, table: str
) -> None:
    running.reach("commit.after:3")
    lost = running.lose_output(table)
    asked = len(running.requested())
    running.finish()
    again = [start for start, _ in running.requested()[asked:]]
    # From the checkpoint before, and no further back.
    assert again == list(range(lost.position - 10, 100, 10))
    tokens = folder_tables.tokens(running.table(table))
    assert lost.seq not in tokens and tokens == sorted(set(tokens))
    running.check()


def test_a_rewind_that_was_killed_or_failed_is_completed_by_the_next_run(running: AccountsJob) -> None:
    """The CLAIM that adopts the older checkpoint is written, and nothing else happens. It is the run's own: a run that
    fails then does not take it for that of a newer run."""
    running.reach("commit.after:3")
    running.lose_output()
    assert running.run("log.created:2").code == KILLED
    assert running.run("rewind.table:1:error").error.code == "internal"
    running.finish()
    running.check()


def test_a_rewind_of_a_checkpoint_that_another_sink_has_published_is_refused(running: AccountsJob) -> None:
    """The run names that sink, and changes no table."""
    running.reach("publish.after:5")
    newest = running.head
    (published,) = [t for t in TABLES if newest.seq in folder_tables.tokens(running.table(t))]
    (unpublished,) = set(TABLES) - {published}
    running.lose_output(unpublished)
    before = root_files.digests(running.folder / "tables")
    ended = running.run()
    ended.check_error(4, "missing-file")
    facts = ended.result["error"]["facts"]
    assert (facts["checkpoint"], facts["published_in"]) == (newest.seq, [published])
    assert root_files.digests(running.folder / "tables") == before


@pytest.mark.slow(reason="runs jobs many times")
@pytest.mark.parametrize(("table", "failpoint"), [("movements", "commit.after:3"), ("totals", "publish.before:5")])
def test_a_run_that_wrote_lost_output_is_fenced_when_resumed_during_the_rewind(
    running: AccountsJob, table: str, failpoint: str
) -> None:
    """The other run is stopped when it has gone back and has not yet published again. The first looks at all tables
    before it publishes to one; where it has looked already, and the file is one of the second table, the first table
    gets output of a checkpoint that was given up, and is retracted."""
    stopped = running.start(f"{failpoint}:stop").wait_stopped()
    running.lose_output(table)
    other = running.start("log.created:2:stop").wait_stopped()
    stopped.resume().wait().check_error(3, "fenced")
    other.resume().wait().check()
    running.check()


def test_a_run_that_detects_its_own_lost_output_fails_with_a_retryable_error(running: AccountsJob) -> None:
    stopped = running.start("commit.after:3:stop").wait_stopped()
    running.lose_output("totals")
    stopped.resume().wait().check_error(5, "batch-failed")
    running.finish()
    running.check()
