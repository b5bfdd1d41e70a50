"""A kill at every failpoint, early and late, and two drivers, one of them stopped at each failpoint; without Spark."""

from __future__ import annotations

import pytest

from stateflow.failpoints import NAMES
from tests.support import root_files
from tests.support.job_fixture import ASYNCHRONOUS, KILLED, ON_REQUEST, AccountsJob
from tests.support.processes import Ended

ONLY_ON_SPARK = {"start.seeded"}
_ONCE_PER_RUN = {"claim.before", "claim.after", "start.published", "history.indexed", "run.end"}
_LATER = {name: 9 for name in NAMES if name.startswith("task.")} | {
    "batch.begin": 3,
    "batch.reported": 3,
    "commit.stored": 3,
    "commit.manifest": 3,
    "log.created": 4,
    "commit.after": 3,
    "publish.before": 5,
    "publish.after": 4,
    "batch.end": 4,
    "gc.listed": 2,
    "gc.deleting": 3,
}
"""The later n of those that a run passes many times."""

HERE = sorted(NAMES.keys() - ONLY_ON_SPARK - ON_REQUEST - ASYNCHRONOUS)
SETTINGS = {"checkpoints__collect_every": 2, "checkpoints__retained": 2}


def test_every_failpoint_is_covered_by_tests_of_kills() -> None:
    assert set(_LATER) | _ONCE_PER_RUN | ONLY_ON_SPARK | ON_REQUEST | ASYNCHRONOUS == set(NAMES)


@pytest.mark.parametrize("name", HERE)
def test_a_job_recovers_from_a_kill_at_each_failpoint_of_the_first_run(job: AccountsJob, name: str) -> None:
    job.settings = SETTINGS
    job.deliver(50)
    _recover(job, f"{name}:1", 80)


@pytest.mark.parametrize("name", HERE)
def test_a_job_recovers_from_a_kill_at_each_failpoint_of_a_later_run(job: AccountsJob, name: str) -> None:
    job.settings = SETTINGS
    job.run_to(30)
    job.deliver(70)
    _recover(job, f"{name}:{_LATER.get(name, 1)}", 100)


def _recover(job: AccountsJob, failpoint: str, rows: int) -> None:
    """Kills a run; the next one finds that more has arrived and processes it all."""
    assert _run(job, failpoint).code == KILLED
    assert job.marker.exists(), "the failpoint was not reached"
    job.deliver(rows)
    _run(job).check()
    job.check()


def test_a_job_recovers_from_a_source_that_crashes_and_pauses(job: AccountsJob) -> None:
    """The process dies inside the source; a run is caught up where the script pauses."""
    items = [(20, {"crash": "first"}), (50, {"pause": "gate"}), (60, {"crash": "second"})]
    job.deliver(90, *items)
    found = []
    for _ in range(4):
        ended = _run(job)
        found.append((ended.code, _committed(job)))
        if ended.code == 0:
            (job.folder / "gate").touch()
    assert found == [(KILLED, 20), (0, 50), (KILLED, 60), (0, 90)]
    job.check()


def _run(job: AccountsJob, failpoint: str = "") -> Ended:
    """A run. It asks the source for what comes right after the newest checkpoint, and for each next slice only when the
    one before is in a checkpoint; so nothing before a checkpoint is asked for again."""
    before, asked = _committed(job), len(job.requested())
    ended = job.run(failpoint)
    slices = job.requested()[asked:]
    starts, ends = [start for start, _ in slices], [end for _, end in slices]
    assert starts == [before, *ends[:-1]][: len(slices)]
    # All but the last were committed before the next was asked for; of the last, either may be.
    assert _committed(job) in ([starts[-1], ends[-1]] if slices else [before])
    return ended


def _committed(job: AccountsJob) -> int:
    """Up to where the source was read in the newest checkpoint."""
    found = root_files.entries(job.root)
    return found[-1].position if found else 0


# -- two drivers -------------------------------------------------------------------------------------------------------


_ROWS = 80
# How often a run passes them before it is stopped: in the middle of the second batch, or thereabouts.
_NTH = {name: 6 for name in NAMES if name.startswith("task.")} | {
    "batch.begin": 2,
    "batch.reported": 2,
    "commit.manifest": 2,
    "log.created": 3,
    "commit.after": 2,
    "publish.before": 3,
    "publish.after": 3,
    "batch.end": 2,
}
# A run that stops here has committed everything, or has not claimed yet.
_HARMLESS = {"history.indexed", "claim.before", "run.end"}
STOPS = sorted(NAMES.keys() - {"start.seeded"} - ON_REQUEST - ASYNCHRONOUS)


@pytest.mark.parametrize("name", STOPS)
def test_a_run_resumed_after_another_run_is_fenced_or_changes_nothing(job: AccountsJob, name: str) -> None:
    job.settings = {"checkpoints__retained": 1000, "checkpoints__collect_every": 2}
    job.deliver(_ROWS)
    _overtake(job, f"{name}:{_NTH.get(name, 1)}:stop", loser_ends_with=0 if name in _HARMLESS else 3)


@pytest.mark.parametrize("name", ["commit.after", "publish.before", "log.created", "claim.after", "batch.reported"])
def test_a_run_resumed_after_its_checkpoint_was_collected_is_fenced(job: AccountsJob, name: str) -> None:
    """As before, but what the stopped run restores from is garbage when it continues."""
    job.settings = {"checkpoints__retained": 1, "checkpoints__collect_every": 1}
    job.run_to(30)
    job.deliver(_ROWS + 30)
    _overtake(job, f"{name}:{_NTH.get(name, 1)}:stop", loser_ends_with=3)


def _overtake(job: AccountsJob, failpoint: str, loser_ends_with: int) -> None:
    chain = root_files.Chain(job.root)
    stopped = job.start(failpoint).wait_stopped(chain.look)
    job.start().wait(chain.look).check()
    ended = stopped.resume().wait(chain.look)
    assert ended.code == loser_ends_with and _is_known(ended), str(ended)
    _check(job, chain)


def _is_known(ended: Ended) -> bool:
    """Whether it ended well, or was fenced."""
    return ended.code == 0 or (ended.code, ended.error.code) == (3, "fenced")


def _check(job: AccountsJob, chain: root_files.Chain) -> None:
    chain.check()
    job.check_results()
    # A zombie may have left something after the winner's last collection; a later run comes in any case.
    job.deliver_more(20)
    job.finish()
    chain.check()
    job.check()
