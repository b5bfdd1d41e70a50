"""State of every kind, moved by a savepoint: to any backend, parallelism and max parallelism, equal to dictionaries."""

from __future__ import annotations

import random
import tempfile
from dataclasses import dataclass
from datetime import timedelta
from itertools import product
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stateflow.checkpoint.log.documents import SavepointFormat
from stateflow.config.settings import SavepointSettings
from stateflow.operations import RekeyRequest, SavepointRequest, create_savepoint_into, rekey_savepoint
from stateflow.runtime.restore.plan_execution import RestoreRequest, execute_plan
from stateflow.runtime.restore.planner import RestoreOptions, make_restore_plan
from tests.support.local_jobs import LocalJobs
from tests.support.moved_state import BACKENDS, NAMES, PLACES, Row, Story, build_job, check_operator_state

ACTIONS = ["update", "clear", "add", "put", "remove", "tag", "collect", "rate", "timer", "no timer", "event timer"]
GROUPS = [1, 2, 7, 16, 64, 300]
MINUTES = [0, 20, 40, 60]


@dataclass(frozen=True)
class Setup:
    """How a job runs."""

    backend: str
    groups: int
    parallelism: int
    inline: int

    @property
    def settings(self) -> dict[str, Any]:
        """The settings of its runs."""
        return {
            "state__backend": self.backend,
            "state__inline_below_bytes": self.inline,
            "max_parallelism": self.groups,
            "parallelism": self.parallelism,
            "source__max_rows_per_batch": 1000,
        }


@dataclass(frozen=True)
class Move:
    """A job, its savepoint, and the job that begins with it.

    Attributes:
        rekeyed: max parallelism of a copy of the savepoint; None to use the savepoint itself.
        in_place: whether the job itself is restored, rather than begun in a new root.
        waits: time between the batches before the savepoint, and after it.
    """

    before: Setup
    after: Setup
    format: SavepointFormat
    writing: SavepointSettings
    rekeyed: int | None
    in_place: bool
    rows: tuple[list[Any], list[Any], list[Any]]
    waits: tuple[timedelta, timedelta]

    @property
    def raw_groups(self) -> int:
        """Key groups of raw keyed state; 0 where the max parallelism changes, because its keys are not known."""
        is_same = self.rekeyed in (None, self.before.groups) and self.before.groups == self.after.groups
        return self.before.groups if is_same else 0


def _setup(dice: random.Random, groups: int) -> Setup:
    return Setup(dice.choice(BACKENDS), groups, dice.randint(1, min(5, groups)), dice.choice([1, 4096]))


def _commands(dice: random.Random) -> list[Any]:
    count = dice.randint(1, 40)
    return [
        (dice.choice(PLACES), dice.choice(ACTIONS), dice.choice(NAMES), dice.randint(-3, 300)) for _ in range(count)
    ]


def _move(seed: int) -> Move:
    """A job that is restored in place keeps its max parallelism."""
    dice = random.Random(seed)
    in_place, groups = dice.random() < 0.5, dice.choice(GROUPS)
    after = groups if in_place or dice.random() < 0.3 else dice.choice(GROUPS)
    return Move(
        before=_setup(dice, groups),
        after=_setup(dice, after),
        format=dice.choice(list(SavepointFormat)),
        writing=SavepointSettings(
            worker_bytes=dice.choice([1, 100, 1 << 30]), max_workers=dice.randint(1, 6), native_files=dice.randint(0, 3)
        ),
        rekeyed=dice.choice([None, None, *GROUPS]),
        in_place=in_place,
        rows=(_commands(dice), _commands(dice), _commands(dice)),
        waits=(timedelta(minutes=dice.choice(MINUTES)), timedelta(minutes=dice.choice(MINUTES))),
    )


def _jobs(story: Story, setup: Setup, name: str) -> LocalJobs:
    return LocalJobs(story.folder / name, story.clock, **setup.settings)


def _savepoint(move: Move, jobs: LocalJobs, into: Path) -> str:
    request = SavepointRequest("moved", from_head=True, format=move.format, settings=move.writing)
    path = create_savepoint_into(jobs.storage.uri, request, str(into)).path
    if move.rekeyed is None:
        return path
    return rekey_savepoint(RekeyRequest(path, move.rekeyed, str(into), "copy")).path


def _go_back(story: Story, move: Move, savepoint: str) -> LocalJobs:
    """Restores the job itself, which has processed other rows after its savepoint."""
    old = _jobs(story, move.before, "old")
    noise = [Row(len(story.rows) + n, *place, "add", "", 1) for n, place in enumerate(PLACES)]
    old.run(build_job(old, [*story.rows, *noise], move.raw_groups))
    jobs = _jobs(story, move.after, "old")
    plan = make_restore_plan(jobs.prepare(story.build(jobs)).job, savepoint, RestoreOptions())
    execute_plan(jobs.prepare(story.build(jobs)).job, plan, RestoreRequest("back"))
    return jobs


def _check(story: Story, jobs: LocalJobs) -> None:
    story.check(jobs)
    root = jobs.prepare(story.build(jobs)).job.root
    manifest = root.checkpoints.manifest_at(root.head())
    assert manifest is not None
    check_operator_state(manifest, root.storage, story.expected, story.raw_groups)


def _check_move(move: Move, folder: Path) -> None:
    story = Story(folder, move.raw_groups)
    old = _jobs(story, move.before, "old")
    story.apply(old, move.rows[0])
    story.clock.sleep(move.waits[0])
    story.apply(old, move.rows[1])
    savepoint = _savepoint(move, old, folder / "savepoints")
    story.clock.sleep(move.waits[1])
    if move.in_place:
        new = _go_back(story, move, savepoint)
    else:
        new = story.start(_jobs(story, move.after, "new"), savepoint)
    _check(story, new)
    story.apply(new, move.rows[2])
    _check(story, new)
    story.check_timers(new)


@pytest.mark.parametrize("share", [10, pytest.param(1, marks=pytest.mark.slow(reason="as many examples as elsewhere"))])
def test_moved_state_equals_plain_dictionaries(share: int) -> None:
    """A part of the usual examples, because each runs two jobs several times."""

    @settings(max_examples=max(1, settings().max_examples // share))
    @given(seed=st.integers(0, 1 << 32))
    def check(seed: int) -> None:
        with tempfile.TemporaryDirectory() as folder:
            _check_move(_move(seed), Path(folder))

    check()


def test_random_moves_are_of_every_kind() -> None:
    """A test of the examples: without this, moves to the same place would pass."""
    found = [_move(seed) for seed in range(300)]
    assert {(m.before.backend, m.after.backend, m.in_place) for m in found} == set(
        product(BACKENDS, BACKENDS, [False, True])
    )
    assert {(m.format, m.rekeyed is None, m.before.groups == m.after.groups) for m in found} == set(
        product(SavepointFormat, [False, True], [False, True])
    )
    assert any(m.before.parallelism > m.after.parallelism for m in found)
    assert any(m.before.parallelism < m.after.parallelism for m in found)
    assert sum(m.raw_groups > 0 and m.before.parallelism != m.after.parallelism for m in found) > 30
