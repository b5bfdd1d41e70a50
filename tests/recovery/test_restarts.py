"""A run that fails somewhere and starts again by itself, in one process: nothing is lost, nothing is there twice."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from syrupy.assertion import SnapshotAssertion

from stateflow.failpoints import NAMES
from tests.support import root_files
from tests.support.job_fixture import ASKED, BESIDE, AccountsJob, mostly_slow, second_time
from tests.support.screens import normalized

_AGAIN = {"restart__strategy": "fixed-delay", "restart__fixed_delay__delay": "1ms"}
# Without Spark nothing is seeded, and at the end there is nothing to start again for.
_POINTS = sorted(NAMES.keys() - ASKED - BESIDE - {"start.seeded", "run.end"})


@pytest.fixture
def box(tmp_path: Path) -> Iterator[AccountsJob]:
    made = AccountsJob(tmp_path / "job", _AGAIN)
    yield made
    made.end_all()


_QUICK = ("claim.after", "task.uploaded", "commit.manifest", "commit.after", "publish.after", "gc.deleting")


@pytest.mark.parametrize("point", mostly_slow(_POINTS, _QUICK))
def test_a_run_that_failed_at_a_step_ends_well_by_itself(box: AccountsJob, point: str) -> None:
    box.deliver(60)
    ended = box.run(f"{second_time(point)}:error", checkpoints__collect_every=2)
    assert ended.code == 0, str(ended)
    # A collection that fails is no reason to fail a run: it is made up for by the next one.
    assert box.marker.exists() and ended.result["restarts"] == (0 if point.startswith("gc.") else 1)
    box.check_results()
    box.check_clean()


def test_bounds_and_figures_are_those_of_the_whole_run(box: AccountsJob, golden: SnapshotAssertion) -> None:
    box.deliver(100)
    ended = box.run("batch.reported:3:error", run__max_batches=4)
    assert ended.code == 0, str(ended)
    assert root_files.head(box.root).position == 40
    figures = {name: ended.result[name] for name in ("batches", "rows_in", "started_from", "restarts")}
    assert figures == {"batches": 4, "rows_in": 40, "started_from": 0, "restarts": 1}
    assert ended.result["rows_out"] == {"movements": 40, "totals": 20}
    assert normalized(ended.out) == golden


def test_when_the_strategy_gives_up_the_next_launch_goes_on(box: AccountsJob) -> None:
    box.deliver(60)
    ended = box.run("batch.reported:3:error", restart__strategy="none")
    assert ended.code == 1, str(ended)
    box.finish()
    box.check_results()
    box.check_clean()
