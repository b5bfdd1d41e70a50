"""A kill at every named failpoint, early and late, on the runner without Spark."""

from __future__ import annotations

import pytest

from stateflow.failpoints import NAMES
from tests.support import root_files
from tests.support.job_fixture import ASKED, BESIDE, AccountsJob

ONLY_ON_SPARK = {"start.seeded"}
_ONCE_PER_RUN = {"claim.before", "claim.after", "start.published", "run.end"}
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

HERE = sorted(NAMES.keys() - ONLY_ON_SPARK - ASKED - BESIDE)
SETTINGS = {"checkpoints__collect_every": 2, "checkpoints__retained": 2}


def test_every_failpoint_has_a_place_here() -> None:
    assert set(_LATER) | _ONCE_PER_RUN | ONLY_ON_SPARK | ASKED | BESIDE == set(NAMES)


@pytest.mark.parametrize("name", HERE)
def test_a_kill_in_the_first_run(box: AccountsJob, name: str) -> None:
    box.settings = SETTINGS
    box.deliver(50)
    _recover(box, f"{name}:1", 80)


@pytest.mark.parametrize("name", HERE)
def test_a_kill_later(box: AccountsJob, name: str) -> None:
    box.settings = SETTINGS
    box.deliver(30)
    box.finish()
    box.deliver(70)
    _recover(box, f"{name}:{_LATER.get(name, 1)}", 100)


def _recover(box: AccountsJob, failpoint: str, rows: int) -> None:
    """Kills a run; the next one, with the same command, finds that more has arrived and works it all off."""
    assert box.run(failpoint).code == -9
    assert box.marker.exists(), "the failpoint was not reached"
    committed = root_files.head(box.root).position if root_files.entries(box.root) else 0
    asked = len(box.requested())
    box.deliver(rows)
    box.finish(failpoint=failpoint)
    assert box.requested()[asked:] == [(n, n + 10) for n in range(committed, rows, 10)]
    box.check_results()
    box.check_clean()
