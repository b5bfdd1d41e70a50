"""State of every kind, written from dictionaries: equal to what a run stores, and a job continues from it."""

from __future__ import annotations

import random
import tempfile
from collections import Counter
from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stateflow.bootstrap.writer import SavepointWriter
from stateflow.checkpoint.savepoints.catalog import savepoint_at
from tests.bootstrap.given_state import add_operators, source_of
from tests.support import moved_state, stored_state
from tests.support.local_jobs import LocalJobs
from tests.support.moved_state import BACKENDS, NAMES, PLACES
from tests.support.root_files import head, read_manifest, unsealed

ACTIONS = ["update", "clear", "add", "put", "remove", "tag", "rate", "timer", "no timer", "event timer"]


def _reader(table: pa.Table) -> pa.RecordBatchReader:
    return table.to_reader(max_chunksize=3)


SHAPES = {"table": lambda table: table, "reader": _reader}


class Story(moved_state.Story):
    """A job, what its random rows lead to, and a job that begins with a savepoint of the same state."""

    def __init__(self, seed: int, folder: Path) -> None:
        super().__init__(folder)
        self.dice = random.Random(seed)
        self.began = self.clock.now()
        self.groups = self.dice.choice([1, 7, 64, 300])

    def jobs(self, name: str, backends: Sequence[str] = BACKENDS) -> LocalJobs:
        return LocalJobs(
            self.folder / name,
            self.clock,
            state__backend=self.dice.choice(backends),
            parallelism=self.dice.randint(1, min(4, self.groups)),
            max_parallelism=self.groups,
            source__max_rows_per_batch=1000,
        )

    def process(self, jobs: LocalJobs) -> None:
        """Runs a batch of random rows, here and in the job."""
        dice = self.dice
        count = dice.randint(1, 40)
        self.apply(
            jobs,
            [
                (dice.choice(PLACES), dice.choice(ACTIONS), dice.choice(NAMES), dice.randint(-3, 300))
                for _ in range(count)
            ],
        )

    def write(self) -> str:
        """Writes the savepoint from the dictionaries."""
        parallelism = self.dice.randint(1, min(4, self.groups))
        writer = SavepointWriter.new("job", max_parallelism=self.groups, parallelism=parallelism, clock=self.clock)
        add_operators(writer, self.expected, self.began, SHAPES[self.dice.choice(sorted(SHAPES))])
        writer.with_source("rows", source_of(self.rows), {"row": len(self.rows)})
        return writer.write(str(self.folder / "written"))

    def begin(self, savepoint: str) -> LocalJobs:
        return self.start(self.jobs("new"), savepoint)


Entries = Counter[tuple[bytes, bytes]]


def _entries(folder: Path, manifest: dict[str, Any]) -> tuple[Entries, Entries]:
    """The stored entries of the operator, and its expiry entries; those of lists without their positions."""
    (operator,) = (each for each in manifest["operators"] if each["uid"] == "every")
    names = {schema["name"]: schema["kind"] for schema in operator["states"]}
    expiry = {stored_state.state_id(f"{name}\0expiry"): kind for name, kind in names.items()}
    kinds = {stored_state.state_id(name): kind for name, kind in names.items()} | expiry
    values: Entries = Counter()
    hints: Entries = Counter()
    for subtask in operator["subtasks"]:
        for key, value in stored_state.stored_entries(folder, subtask):
            found = hints if key[2:6] in expiry else values
            found[key[:-12] if kinds.get(key[2:6]) == "list" else key, value] += 1
    return values, hints


def _check(seed: int, folder: Path) -> None:
    story = Story(seed, folder)
    # Backends whose files the test reads without the code under test.
    old = story.jobs("old", ["filesystem", "memory"])
    story.process(old)
    story.clock.sleep(timedelta(minutes=story.dice.choice([0, 20])))
    story.process(old)
    root = old.folder / "root"
    stored = _entries(root, read_manifest(root, head(root).doc["manifest"]))
    written = story.write()
    place = Path(written.removeprefix("file://"))
    document, _ = unsealed((place / "_savepoint").read_bytes())
    values, hints = _entries(place, document["manifest"])
    # A run leaves expiry entries of values that were written again.
    assert values == stored[0] and hints <= stored[1]
    assert hints.total() == sum(value[:1] == b"\x02" for _, value in values.elements())
    savepoint_at(written).verify()
    story.clock.sleep(timedelta(minutes=story.dice.choice([0, 41])))
    new = story.begin(written)
    story.check(new)
    story.process(new)
    story.check(new)
    story.check_timers(new)


@pytest.mark.long(reason="writes and restores savepoints of random jobs")
@pytest.mark.parametrize("share", [15, pytest.param(1, marks=pytest.mark.slow(reason="as many examples as elsewhere"))])
def test_a_job_continues_from_state_that_dictionaries_describe(share: int) -> None:
    """The stored entries are those of a run that has led to the same state, byte by byte."""

    @settings(max_examples=max(1, settings().max_examples // share))
    @given(seed=st.integers(0, 1 << 32))
    def check(seed: int) -> None:
        with tempfile.TemporaryDirectory() as folder:
            _check(seed, Path(folder))

    check()
