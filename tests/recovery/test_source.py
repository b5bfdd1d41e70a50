"""Nothing before position S_n is asked of the source again once checkpoint n, which ends at S_n, is complete."""

from __future__ import annotations

import random
from dataclasses import dataclass

import pytest

from stateflow.failpoints import NAMES
from tests.support import root_files
from tests.support.job_fixture import AccountsJob
from tests.support.processes import Ended

_KILLS = 6
_ROWS = 240


@dataclass(frozen=True)
class Asked:
    """What one run asked the source for, and how far the job's newest checkpoint was before and after it."""

    before: int
    slices: list[tuple[int, int]]
    after: int


def _run(box: AccountsJob, failpoint: str = "") -> tuple[Ended, Asked]:
    before, asked = _committed(box), len(box.requested())
    ended = box.run(failpoint)
    return ended, Asked(before, box.requested()[asked:], _committed(box))


def _committed(box: AccountsJob) -> int:
    """S_n of the newest checkpoint, from the log."""
    found = root_files.entries(box.root)
    return found[-1].position if found else 0


def _check(run: Asked) -> None:
    """A run asks for what comes right behind the newest checkpoint, and for each next slice only when the one before
    is in a checkpoint; so the slices follow each other without a gap or a step back."""
    starts, ends = [a for a, _ in run.slices], [b for _, b in run.slices]
    assert starts[:1] in ([], [run.before])
    assert starts[1:] == ends[:-1]
    # All but the last were committed before the next was asked for; of the last, either may be.
    assert run.after in ([run.before] if not ends else [starts[-1], ends[-1]])


@pytest.mark.parametrize("seed", range(3))
def test_positions_over_many_kills(box: AccountsJob, seed: int) -> None:
    dice = random.Random(seed)
    box.settings = {"checkpoints__collect_every": 2}
    box.deliver(_ROWS)
    runs = []
    while len(runs) < _KILLS:
        name = dice.choice(sorted(NAMES.keys() - {"start.seeded", "run.end"}))
        box.marker.unlink(missing_ok=True)
        ended, run = _run(box, f"{name}:{dice.randint(1, 4)}")
        assert ended.code in (-9, 0), str(ended)
        runs.append(run)
        if ended.code == 0:
            box.deliver(len(box.delivered) + 40)
    box.marker.unlink(missing_ok=True)
    ended, run = _run(box)
    assert ended.code == 0, str(ended)
    for one in [*runs, run]:
        _check(one)
    assert sum(bool(r.slices) for r in runs) > 2
    box.check_results()
    box.check_clean()


def test_a_script_that_crashes_and_pauses(box: AccountsJob) -> None:
    """The process dies inside the source; a run is caught up where the script pauses."""
    items = [(20, {"crash": "first"}), (50, {"pause": "gate"}), (60, {"crash": "second"})]
    box.deliver(90, *items)
    codes, runs = [], []
    for _ in range(4):
        ended, run = _run(box)
        _check(run)
        codes.append(ended.code)
        runs.append(run.after)
        if ended.code == 0:
            (box.folder / "gate").touch()
    assert (codes, runs) == ([-9, 0, -9, 0], [20, 50, 60, 90])
    box.check_results()
    box.check_clean()
