"""Two runs of one job: started at once, or one of them stopped while the other goes through."""

from __future__ import annotations

import pytest

from stateflow.failpoints import NAMES
from tests.support import root_files
from tests.support.job_fixture import ASKED, BESIDE, AccountsJob
from tests.support.processes import Ended, Running, spawn, wait_for

ROUNDS = 8
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
    box.deliver(30)
    box.finish()
    box.deliver(_ROWS + 30)
    _overtake(box, f"{name}:{_NTH.get(name, 1)}:stop", loser_ends_with=3)


def test_two_runs_from_nothing(box: AccountsJob) -> None:
    """Once with processes as users start them."""
    box.deliver(_ROWS)
    _race(box, [box.start(launcher=spawn), box.start(launcher=spawn)])


@pytest.mark.parametrize("round_", range(ROUNDS))
def test_two_runs_at_once(box: AccountsJob, round_: int) -> None:
    """The second comes later from round to round: from the very same moment to the other's last batches."""
    box.settings = {"checkpoints__retained": 3 + round_ % 2 * 1000, "checkpoints__collect_every": 1 + round_ % 3}
    chain = root_files.Chain(box.root)
    if round_ % 4 > 1:
        box.deliver(30)
        box.finish()
        chain.look()
    box.deliver(_ROWS + 30)
    before = len(chain.seen)
    first = box.start()

    def far_enough() -> bool:
        chain.look()
        return first.poll() is not None or len(chain.seen) >= before + round_ // 4 % 12

    wait_for(far_enough, lambda: "the first run to get on")
    _race(box, [first, box.start()], chain)


def _overtake(box: AccountsJob, failpoint: str, loser_ends_with: int) -> None:
    chain = root_files.Chain(box.root)
    stopped = box.start(failpoint)
    stopped.wait_stopped(chain.look)
    other = box.start()
    won = other.wait(chain.look)
    assert won.code == 0, str(won)
    stopped.resume()
    ended = stopped.wait(chain.look)
    assert ended.code == loser_ends_with, str(ended)
    assert ended.code == 0 or ended.error.code == "fenced", str(ended)
    _check(box, chain)


def _race(box: AccountsJob, runs: list[Running], chain: root_files.Chain | None = None) -> None:
    chain = chain or root_files.Chain(box.root)
    ended = [run.wait(chain.look) for run in runs]
    assert all(_is_win(e) or _is_loss(e) for e in ended), "\n".join(map(str, ended))
    assert any(_is_win(e) for e in ended), "\n".join(map(str, ended))
    _check(box, chain)


def _check(box: AccountsJob, chain: root_files.Chain) -> None:
    chain.check()
    box.check_results()
    # A zombie may have left something after the winner's last collection; a later run comes in any case.
    box.deliver(len(box.delivered) + 20)
    box.finish()
    chain.check()
    box.check_results()
    box.check_clean()


def _is_win(ended: Ended) -> bool:
    return ended.code == 0


def _is_loss(ended: Ended) -> bool:
    return ended.code == 3 and ended.error.code == "fenced"
