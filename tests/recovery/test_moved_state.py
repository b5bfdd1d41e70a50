"""State of every kind, moved by a savepoint: to any backend, parallelism and max parallelism, equal to dictionaries."""

from __future__ import annotations

import json
import random
import tempfile
from collections import Counter
from dataclasses import dataclass, field
from datetime import timedelta
from itertools import product
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stateflow.checkpoint.log.documents import SavepointFormat
from stateflow.clock import ManualClock
from stateflow.config.settings import SavepointSettings
from stateflow.operations import RekeyRequest, SavepointRequest, create_savepoint_into, rekey_savepoint
from stateflow.runtime.restore.new_job_root import InitialSavepoint, create_job_root
from stateflow.runtime.restore.plan_execution import RestoreRequest, execute_plan
from stateflow.runtime.restore.planner import RestoreOptions, make_restore_plan
from tests.support.local_jobs import LocalJobs
from tests.support.moved_state import Expected, Key, Row, build_job, check_operator_state

BACKENDS = ["rocksdb", "filesystem", "memory"]
ACTIONS = ["update", "clear", "add", "put", "remove", "tag", "collect", "rate", "timer", "no timer", "event timer"]
PLACES: list[Key] = [("", 0), ("a", -1), ("a\0", 2), ("é", 2**40), ("a", 7), ("b" * 300, 1)]
NAMES = ["", "x", "x\0", "é"]
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


@dataclass
class Story:
    """The jobs of a move, the rows so far, and the state that they must lead to."""

    move: Move
    folder: Path
    clock: ManualClock = field(default_factory=ManualClock)
    rows: list[Row] = field(default_factory=list)
    expected: Expected = field(default_factory=Expected)

    def jobs(self, setup: Setup, name: str) -> LocalJobs:
        return LocalJobs(self.folder / name, self.clock, **setup.settings)

    def run(self, jobs: LocalJobs, rows: list[Row], **more: Any) -> None:
        jobs.run(build_job(jobs, rows, self.move.raw_groups), **more)

    def add(self, commands: list[Any]) -> list[Row]:
        """Appends rows; returns them."""
        first = len(self.rows)
        self.rows += [Row(first + n, *place, *command) for n, (place, *command) in enumerate(commands)]
        return self.rows[first:]

    @property
    def elapsed(self) -> timedelta:
        return timedelta(seconds=self.clock.monotonic())

    def process(self, jobs: LocalJobs, commands: list[Any]) -> None:
        """Runs a batch of commands, here and in the job."""
        self.expected.apply(self.add(commands), self.elapsed)
        self.run(jobs, self.rows)

    def check(self, jobs: LocalJobs) -> None:
        """Reads the state of every key in a batch of the job, and compares it."""
        known = len(_seen(jobs))
        self.add([(place, "read", "", 0) for place in PLACES])
        self.run(jobs, self.rows)
        found = {(key, shop): json.loads(text) for key, shop, text in _seen(jobs)[known:]}
        assert found == {place: self.expected.seen(place, self.elapsed) for place in PLACES}
        root = jobs.prepare(build_job(jobs, self.rows, self.move.raw_groups)).job.root
        manifest = root.checkpoints.manifest_at(root.head())
        assert manifest is not None
        check_operator_state(manifest, root.storage, self.expected, self.move.raw_groups)

    def check_timers(self, jobs: LocalJobs) -> None:
        """Fires all timers: each fires once, at its time."""
        known = len(_seen(jobs))
        self.clock.sleep(timedelta(days=5000))
        self.run(jobs, self.rows, run__drain=True)
        found = Counter(((key, shop), text) for key, shop, text in _seen(jobs)[known:])
        assert found == Counter(self.expected.timers)


def _seen(jobs: LocalJobs) -> list[tuple[Any, ...]]:
    return jobs.rows("seen") if (jobs.folder / "seen").exists() else []


def _savepoint(move: Move, jobs: LocalJobs, into: Path) -> str:
    request = SavepointRequest("moved", from_head=True, format=move.format, settings=move.writing)
    path = create_savepoint_into(jobs.storage.uri, request, str(into)).path
    if move.rekeyed is None:
        return path
    return rekey_savepoint(RekeyRequest(path, move.rekeyed, str(into), "copy")).path


def _begin(story: Story, savepoint: str) -> LocalJobs:
    """Returns the jobs of a new root that begins with the savepoint."""
    jobs = story.jobs(story.move.after, "new")
    create_job_root(jobs.new_root(build_job(jobs, story.rows, story.move.raw_groups)), InitialSavepoint(savepoint))
    return jobs


def _go_back(story: Story, savepoint: str) -> LocalJobs:
    """Restores the job itself, which has processed other rows after its savepoint."""
    old = story.jobs(story.move.before, "old")
    noise = [Row(len(story.rows) + n, *place, "add", "", 1) for n, place in enumerate(PLACES)]
    story.run(old, [*story.rows, *noise])
    jobs = story.jobs(story.move.after, "old")
    build = build_job(jobs, story.rows, story.move.raw_groups)
    plan = make_restore_plan(jobs.prepare(build).job, savepoint, RestoreOptions())
    execute_plan(jobs.prepare(build).job, plan, RestoreRequest("back"))
    return jobs


def _check_move(move: Move, folder: Path) -> None:
    story = Story(move, folder)
    old = story.jobs(move.before, "old")
    story.process(old, move.rows[0])
    story.clock.sleep(move.waits[0])
    story.process(old, move.rows[1])
    savepoint = _savepoint(move, old, folder / "savepoints")
    story.clock.sleep(move.waits[1])
    new = _go_back(story, savepoint) if move.in_place else _begin(story, savepoint)
    story.check(new)
    story.process(new, move.rows[2])
    story.check(new)
    story.check_timers(new)


@pytest.mark.parametrize(
    "share", [3, pytest.param(1, marks=pytest.mark.slow(reason="all histories, of which the fast tier has a share"))]
)
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
