"""Output that is deleted before it is published: the run goes back to the checkpoint before, and comes out once."""

from __future__ import annotations

import pytest

from tests.support import root_files
from tests.support.job_fixture import KILLED, AccountsJob

TABLES = ["movements", "totals"]


@pytest.fixture
def running(box: AccountsJob) -> AccountsJob:
    """A job with a few checkpoints, and more to do."""
    box.run_to(40)
    box.deliver(100)
    return box


@pytest.mark.parametrize("table", TABLES)
def test_a_run_goes_back_and_replays(running: AccountsJob, table: str) -> None:
    running.reach("commit.after:3")
    lost = running.lose_output(table)
    asked = len(running.requested())
    running.finish()
    again = [start for start, _ in running.requested()[asked:]]
    # From the checkpoint before, and no further back.
    assert again == list(range(lost.position - 10, 100, 10))
    tokens = root_files.folder_tokens(running.table(table))
    assert lost.seq not in tokens and tokens == sorted(set(tokens))
    running.check()


@pytest.mark.parametrize("failpoint", ["log.created:2", "rewind.table:1:error"])
def test_a_kill_or_an_error_while_it_goes_back(running: AccountsJob, failpoint: str) -> None:
    """The CLAIM that adopts the older checkpoint is written, and nothing else happens. It is the run's own: a run that
    fails then does not take it for that of a newer run."""
    running.reach("commit.after:3")
    running.lose_output()
    ended = running.run(failpoint)
    assert ended.code == KILLED or ended.error.code == "internal", str(ended)
    running.finish()
    running.check()


def test_lost_again_and_again(running: AccountsJob) -> None:
    for table in (*TABLES, *TABLES):
        running.reach("commit.after:2")
        running.lose_output(table)
    running.finish()
    running.check()


def test_what_is_published_in_another_sink_cannot_be_taken_back(running: AccountsJob) -> None:
    """The run names that sink, and changes no table."""
    running.reach("publish.after:5")
    newest = running.head
    (published,) = [t for t in TABLES if newest.seq in root_files.folder_tokens(running.table(t))]
    (unpublished,) = set(TABLES) - {published}
    running.lose_output(unpublished)
    before = root_files.digests(running.folder / "tables")
    ended = running.run()
    ended.check_error(4, "missing-file")
    facts = ended.result["error"]["facts"]
    assert (facts["checkpoint"], facts["published_in"]) == (newest.seq, [published])
    assert root_files.digests(running.folder / "tables") == before


@pytest.mark.parametrize("table", TABLES)
def test_the_run_that_wrote_it_goes_on_afterwards(running: AccountsJob, table: str) -> None:
    """It is stopped between COMMIT and publishing, and goes on when the other has replayed everything."""
    stopped = running.start("commit.after:3:stop").wait_stopped()
    running.lose_output(table)
    running.finish()
    stopped.resume().wait().check_error(3, "fenced")
    running.check()


@pytest.mark.parametrize(
    ("table", "failpoint"),
    [("movements", "commit.after:3"), ("totals", "commit.after:3"), ("totals", "publish.before:5")],
)
def test_the_run_that_wrote_it_goes_on_in_between(running: AccountsJob, table: str, failpoint: str) -> None:
    """As before, but the other run is stopped too, when it has gone back and has not yet published again. The first
    looks at all tables before it publishes to one; where it has looked already, and the file is one of the second
    table, the first table gets output of a checkpoint that was given up, and is taken back."""
    stopped = running.start(f"{failpoint}:stop").wait_stopped()
    running.lose_output(table)
    other = running.start("log.created:2:stop").wait_stopped()
    stopped.resume().wait().check_error(3, "fenced")
    other.resume().wait().check()
    running.check()


@pytest.mark.parametrize("table", TABLES)
def test_the_run_that_wrote_it_finds_out_first(running: AccountsJob, table: str) -> None:
    """It fails as something that another try may mend, and another try does."""
    stopped = running.start("commit.after:3:stop").wait_stopped()
    running.lose_output(table)
    stopped.resume().wait().check_error(5, "batch-failed")
    running.finish()
    running.check()
