"""Batches of random jobs run again: each leads to the state and the rows that the run itself had."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Mapping, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from stateflow import DeadLetters, StateTtlConfig, StreamExecutionEnvironment, WatermarkStrategy
from stateflow.clock import ManualClock, SystemClock
from stateflow.environment import declare
from stateflow.launch import PreparedJob
from stateflow.replay.run import ReplayRequest, replay_prepared
from stateflow.runtime.preflight import StartContext
from tests.support import folder_tables
from tests.support.local_jobs import Build, Growing, LocalJobs
from tests.testing.every_state import EveryState, Rule, Seen, pack
from tests.testing.test_every_state import declarations, steps


def prepared(jobs: LocalJobs, build: Build) -> PreparedJob:
    """A job that is a function, as if it had been loaded from a file."""
    given = {name.replace("__", "."): str(value) for name, value in jobs.settings.items()}
    env, resolved = declare(build, "job", (given,))
    env.graph.check()
    start = StartContext(env.graph, resolved, on_spark=False, clock=SystemClock(), storage=jobs.storage)
    return PreparedJob(start)


def request(jobs: LocalJobs, batch: int, max_rows: int | None = None) -> ReplayRequest:
    """A request for a replay of such a job, with all rows."""
    return ReplayRequest(Path("job.py"), jobs.storage.uri, batch, max_rows=max_rows)


SLICE = 4


class Timed(msgspec.Struct):
    """A row of `EveryState` with an event time."""

    key: str
    number: int
    steps: bytes
    at: int


class TickingClock(ManualClock):
    """A clock by which every batch has another processing time."""

    def now(self) -> Any:
        self.sleep(timedelta(milliseconds=1))
        return super().now()


visits = st.tuples(
    st.sampled_from(["a", "b", "", "a\0"]),
    st.sampled_from([None, "n"]),
    st.lists(steps | st.just(("fail", "")), min_size=1, max_size=5),
    st.integers(0, 120),
)


def _rows(drawn: Sequence[Any], start: int) -> list[Timed]:
    """The rows of the visits, with a word of its own for each step that has one, and times after those of the batch."""
    return [
        Timed(key, number, pack([_step(namespace, step, start + at, f"w{number}") for step in own]), start + at)
        for number, (key, namespace, own, at) in enumerate(drawn)
    ]


def _step(namespace: Any, step: Sequence[Any], at: int, word: str) -> tuple[Any, ...]:
    about, verb, *arguments = json.loads(json.dumps(list(step)).replace('"-"', f'"{word}"'))
    if about == "timer":
        arguments = [arguments[0], arguments[1] + at]
    return (namespace, about, verb, *arguments)


@pytest.mark.long(reason="runs and replays random jobs")
@settings(max_examples=6, phases=(Phase.generate,))
@given(
    drawn=st.lists(visits, min_size=6, max_size=20),
    rules=st.lists(st.builds(Rule, st.sampled_from(["x", "y"]), st.integers(0, 2)), max_size=6),
    ttls=declarations,
    chosen=st.fixed_dictionaries(
        {
            "parallelism": st.sampled_from([1, 3]),
            "checkpoints__interval_batches": st.sampled_from([1, 1, 2, 3]),
            "checkpoints__asynchronous": st.sampled_from(["no", "yes"]),
            "state__backend": st.sampled_from(["memory", "filesystem", "filesystem", "rocksdb"]),
            "run__drain": st.sampled_from(["no", "yes"]),
        }
    ),
)
def test_every_batch_of_a_random_job_leads_to_its_state_and_rows_again(
    drawn: list[Any], rules: list[Rule], ttls: Mapping[str, StateTtlConfig | None], chosen: Mapping[str, str]
) -> None:
    with tempfile.TemporaryDirectory() as folder:
        jobs = LocalJobs(Path(folder), TickingClock())
        jobs.settings |= {"source__max_rows_per_batch": SLICE, "checkpoints__retained": 50, **chosen}
        rows = _rows(drawn, 1_767_225_600_000)

        def build(env: StreamExecutionEnvironment, number: int) -> None:
            strategy = WatermarkStrategy.for_bounded_out_of_orderness(timedelta(milliseconds=20))
            stream = env.from_source(Growing(rows[:number], Timed), uid="rows").assign_timestamps_and_watermarks(
                strategy.with_timestamp_column("at")
            )
            words = env.from_source(Growing(rules, Rule), uid="rules").broadcast()
            seen = (
                stream.key_by("key")
                .connect(words)
                .process(EveryState(ttls, None), output=Seen, uid="all", on_error=DeadLetters(1000))
            )
            seen.sink_to(jobs.sink("out"), uid="out")
            seen.get_dead_letters().sink_to(jobs.sink("letters"), uid="letters")

        # Two runs, so that batches of a later one follow a restore.
        jobs.run(lambda env: build(env, len(rows) // 2))
        jobs.run(lambda env: build(env, len(rows)))
        start = prepared(jobs, lambda env: build(env, len(rows)))
        batches = published(jobs, "out").keys() | published(jobs, "letters").keys()
        assert batches
        for batch in sorted(batches):
            report = replay_prepared(start, request(jobs, batch))
            assert report.is_same, report.difference
            assert not report.deviation
            for emitted in report.emitted:
                assert comparable(emitted.rows) == published(jobs, emitted.sink).get(batch, [])


def published(jobs: LocalJobs, name: str) -> dict[int, list[dict[str, Any]]]:
    """The rows of a table by the checkpoint that published them."""
    return {token: rows for token, rows in folder_tables.by_token(jobs.sink(name).folder).items() if rows}


def comparable(rows: Sequence[Mapping[str, object]]) -> list[dict[str, Any]]:
    """Rows as a table of JSON files has them."""
    found: list[dict[str, Any]] = json.loads(json.dumps(list(rows), default=str))
    return found
