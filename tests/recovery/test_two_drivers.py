"""Two runs of one job: started at once, or one of them stopped while the other goes through."""

from __future__ import annotations

import pytest

from stateflow.failpoints import NAMES
from tests.support import root_files
from tests.support.job_fixture import ASKED, BESIDE, AccountsJob
from tests.support.processes import Ended, spawn

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
# Whoever stops here has committed everything, or has not claimed yet.
_HARMLESS = {"claim.before", "run.end"}
STOPS = sorted(NAMES.keys() - {"start.seeded"} - ASKED - BESIDE)


@pytest.mark.parametrize("name", STOPS)
def test_a_run_that_is_stopped_while_another_goes_through(box: AccountsJob, name: str) -> None:
    box.settings = {"checkpoints__retained": 1000, "checkpoints__collect_every": 2}
    box.deliver(_ROWS)
    _overtake(box, f"{name}:{_NTH.get(name, 1)}:stop", loser_ends_with=0 if name in _HARMLESS else 3)


@pytest.mark.parametrize("name", ["commit.after", "publish.before", "log.created", "claim.after", "batch.reported"])
def test_a_run_of_a_known_job_is_stopped_and_its_checkpoint_collected(box: AccountsJob, name: str) -> None:
    """As before, but what the stopped run restores from is garbage when it goes on."""
    box.settings = {"checkpoints__retained": 1, "checkpoints__collect_every": 1}
    box.run_to(30)
    box.deliver(_ROWS + 30)
    _overtake(box, f"{name}:{_NTH.get(name, 1)}:stop", loser_ends_with=3)


def test_two_runs_at_once_from_nothing(box: AccountsJob) -> None:
    """With processes as users start them. The scoreboard starts the second later, and a third."""
    box.deliver(_ROWS)
    chain = root_files.Chain(box.root)
    runs = [box.start(launcher=spawn), box.start(launcher=spawn)]
    ended = [run.wait(chain.look) for run in runs]
    assert all(map(_is_known, ended)) and 0 in [e.code for e in ended], "\n".join(map(str, ended))
    _check(box, chain)


def _overtake(box: AccountsJob, failpoint: str, loser_ends_with: int) -> None:
    chain = root_files.Chain(box.root)
    stopped = box.start(failpoint).wait_stopped(chain.look)
    box.start().wait(chain.look).check()
    ended = stopped.resume().wait(chain.look)
    assert ended.code == loser_ends_with and _is_known(ended), str(ended)
    _check(box, chain)


def _is_known(ended: Ended) -> bool:
    """Whether it ended well, or was fenced."""
    return ended.code == 0 or (ended.code, ended.error.code) == (3, "fenced")


def _check(box: AccountsJob, chain: root_files.Chain) -> None:
    chain.check()
    box.check_results()
    # A zombie may have left something after the winner's last collection; a later run comes in any case.
    box.deliver_more(20)
    box.finish()
    chain.check()
    box.check()
