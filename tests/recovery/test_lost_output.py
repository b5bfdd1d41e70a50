"""Output that is deleted before it is published: the run goes back to the checkpoint before, and comes out once."""

from __future__ import annotations

import pytest

from tests.support import root_files
from tests.support.job_fixture import AccountsJob
from tests.support.processes import Ended

TABLES = ["movements", "totals"]


@pytest.fixture
def running(box: AccountsJob) -> AccountsJob:
    """A job with a few checkpoints, and more to do."""
    box.deliver(40)
    box.finish()
    box.deliver(100)
    return box


def _lose(box: AccountsJob, table: str) -> root_files.Entry:
    """Deletes a file of the newest checkpoint from a table's folder, as a VACUUM may."""
    newest = root_files.head(box.root)
    (box.table(table) / "data" / newest.pending[table][0]).unlink()
    return newest


@pytest.mark.parametrize("table", TABLES)
def test_a_run_goes_back_and_replays(running: AccountsJob, table: str) -> None:
    assert running.run("commit.after:3").code == -9
    lost = _lose(running, table)
    asked = len(running.requested())
    running.finish()
    again = [start for start, _ in running.requested()[asked:]]
    # From the checkpoint before, and no further back.
    assert again == list(range(lost.position - 10, 100, 10))
    tokens = root_files.folder_tokens(running.table(table))
    assert lost.seq not in tokens and tokens == sorted(set(tokens))
    running.check_results()
    running.check_clean()


def test_a_kill_while_it_goes_back(running: AccountsJob) -> None:
    """The CLAIM that adopts the older checkpoint is written, and nothing else happens."""
    assert running.run("commit.after:3").code == -9
    _lose(running, "movements")
    running.marker.unlink()
    assert running.run("log.created:2").code == -9
    running.finish()
    running.check_results()
    running.check_clean()


def test_an_error_while_it_goes_back_is_not_taken_for_a_newer_run(running: AccountsJob) -> None:
    """The CLAIM that adopts the older checkpoint is the run's own."""
    assert running.run("commit.after:3").code == -9
    _lose(running, "movements")
    running.marker.unlink()
    assert running.run("rewind.table:1:error").error.code == "internal"
    running.finish()
    running.check_results()


def test_lost_again_and_again(running: AccountsJob) -> None:
    for table in (*TABLES, *TABLES):
        assert running.run("commit.after:2").code == -9
        running.marker.unlink()
        _lose(running, table)
    running.finish()
    running.check_results()
    running.check_clean()


def test_what_is_published_in_another_sink_cannot_be_taken_back(running: AccountsJob) -> None:
    """The run names that sink, and changes no table."""
    assert running.run("publish.after:5").code == -9
    newest = root_files.head(running.root)
    (published,) = [t for t in TABLES if newest.seq in root_files.folder_tokens(running.table(t))]
    (unpublished,) = set(TABLES) - {published}
    _lose(running, unpublished)
    before = root_files.digests(running.folder / "tables")
    ended = running.run()
    assert (ended.code, ended.error.code) == (4, "missing-file"), str(ended)
    facts = ended.result["error"]["facts"]
    assert (facts["checkpoint"], facts["published_in"]) == (newest.seq, [published])
    assert root_files.digests(running.folder / "tables") == before


@pytest.mark.parametrize("table", TABLES)
def test_the_run_that_wrote_it_goes_on_behind(running: AccountsJob, table: str) -> None:
    """It is stopped between COMMIT and publishing, and goes on when the other has replayed everything."""
    stopped = running.start("commit.after:3:stop")
    stopped.wait_stopped()
    _lose(running, table)
    running.finish()
    stopped.resume()
    ended = stopped.wait()
    assert (ended.code, ended.error.code) == (3, "fenced"), str(ended)
    running.check_results()
    running.check_clean()


@pytest.mark.parametrize("table", TABLES)
def test_the_run_that_wrote_it_goes_on_in_between(running: AccountsJob, table: str) -> None:
    """As before, but the other run is stopped too, when it has gone back and has not yet published again. The first
    looks at all tables before it publishes to one."""
    ended = _resume_in_between(running, table, "commit.after:3:stop")
    assert ended.code == 0, str(ended)
    running.check_results()
    running.check_clean()


def test_the_run_that_wrote_it_publishes_in_between(running: AccountsJob) -> None:
    """As before, but it has looked already, and the file is one of the second table: the first gets output of a
    checkpoint that was given up, and is taken back."""
    ended = _resume_in_between(running, "totals", "publish.before:5:stop")
    assert ended.code == 0, str(ended)
    running.check_results()
    running.check_clean()


def _resume_in_between(box: AccountsJob, table: str, failpoint: str) -> Ended:
    """How the run ends that goes back."""
    stopped = box.start(failpoint)
    stopped.wait_stopped()
    _lose(box, table)
    box.marker.unlink()
    other = box.start("log.created:2:stop")
    other.wait_stopped()
    stopped.resume()
    ended = stopped.wait()
    assert (ended.code, ended.error.code) == (3, "fenced"), str(ended)
    other.resume()
    return other.wait()


@pytest.mark.parametrize("table", TABLES)
def test_the_run_that_wrote_it_finds_out_first(running: AccountsJob, table: str) -> None:
    """It fails as something that another try may mend, and another try does."""
    stopped = running.start("commit.after:3:stop")
    stopped.wait_stopped()
    _lose(running, table)
    stopped.resume()
    ended = stopped.wait()
    assert (ended.code, ended.error.code) == (5, "batch-failed"), str(ended)
    running.finish()
    running.check_results()
    running.check_clean()
