"""Batches run again: which ones a checkpoint consists of, whether their rows still exist, and what they give."""

from __future__ import annotations

import json
import math
import os
import re
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

import stateflow
from stateflow import DeadLetters, StateTtlConfig, StreamExecutionEnvironment, WatermarkStrategy
from stateflow.checkpoint.log.documents import BatchRecord, Manifest, SourcePosition
from stateflow.checkpoint.log.job_root import LEASE, JobRoot
from stateflow.clock import ManualClock, SystemClock
from stateflow.connectors.partition_offsets import Gap, gaps_between
from stateflow.environment import declare
from stateflow.errors import ConfigError, CorruptFile, InputLost
from stateflow.launch import PreparedJob
from stateflow.private_files import PREFIX
from stateflow.replay.input import PlannedBatch, deleted_file, plan_replay
from stateflow.replay.replay_batch import key_texts
from stateflow.replay.report import ReplayReport
from stateflow.replay.run import ReplayRequest, replay_prepared
from stateflow.replay.spark import lost_files
from stateflow.runtime.preflight import StartContext
from stateflow.runtime.task import store_cache
from stateflow.storage import open_storage
from stateflow.types.key_values import convert_key, parse_key
from tests.checkpoint.records import record as checkpoint_record
from tests.support import folder_tables, root_files
from tests.support.cli_fixture import BUILD, JOB, CliFixture, contents
from tests.support.errors import raises
from tests.support.job_fixture import KILLED
from tests.support.ledger_job import LedgerJob
from tests.support.local_jobs import Build, Growing, LocalJobs
from tests.support.processes import Ended, Launch, spawn
from tests.testing.every_state import EveryState, Rule, Seen, pack
from tests.testing.test_every_state import declarations, steps

TIME = "2026-01-31T03:00:00.000001+00:00"


def _manifest(epoch: int, offsets: dict[str, str], **more: object) -> Manifest:
    sources = [SourcePosition(uid=uid, description=uid, offset=offset) for uid, offset in offsets.items()]
    manifest = Manifest(job_uuid="j", generation=1, ordinal=epoch, operators=[], sources=sources, epoch=epoch)
    return replace(manifest, **more)


BASE = _manifest(4, {"a": "1"})


def test_recorded_batches_continue_one_another_up_to_the_positions_of_the_checkpoint() -> None:
    records = [
        BatchRecord(ordinal=1, processing_time=TIME, checkpoint_id=3, offsets=["2", "5"], spark_time=7),
        BatchRecord(ordinal=2, processing_time=TIME, checkpoint_id=3, watermarks={"op": 9}),
    ]
    found = plan_replay(_manifest(6, {"a": "3", "b": "5"}, batches=records), BASE)
    first, second = found.batches
    assert (first.start, first.end, first.spark_time) == ({"a": "1", "b": "-"}, {"a": "2", "b": "5"}, 7)
    assert (second.start, second.end, second.watermarks) == (first.end, {"a": "3", "b": "5"}, {"op": 9})
    assert first.processing_time == datetime(2026, 1, 31, 3, microsecond=1, tzinfo=UTC)
    assert not found.deviation


@pytest.mark.parametrize(("epoch", "joined"), [(5, False), (7, True)])
def test_batches_without_records_run_as_one_at_the_time_of_the_last(epoch: int, joined: bool) -> None:
    last = checkpoint_record(1, triggered_at=TIME)
    found = plan_replay(_manifest(epoch, {"a": "3"}, record=last), BASE)
    (batch,) = found.batches
    assert (batch.start, batch.end) == ({"a": "1"}, {"a": "3"})
    assert batch.processing_time == datetime(2026, 1, 31, 3, microsecond=1, tzinfo=UTC)
    assert (f"{epoch - 4} batches" in found.deviation) is joined


@pytest.mark.parametrize(
    "record",
    [
        BatchRecord(ordinal=1, processing_time=TIME, checkpoint_id=3, offsets=[]),
        BatchRecord(ordinal=1, processing_time="noon", checkpoint_id=3, offsets=["2"]),
    ],
)
def test_a_record_that_cannot_be_true_is_refused(record: BatchRecord) -> None:
    last = BatchRecord(ordinal=2, processing_time=TIME, checkpoint_id=3)
    with raises(CorruptFile):
        plan_replay(_manifest(6, {"a": "3"}, batches=[record, last]), BASE)


# -- files of the batches ---------------------------------------------------------------------------------------------


def _log(number: int, *files: Path) -> bytes:
    lines = [
        json.dumps({"path": file.as_uri(), "timestamp": file.stat().st_mtime_ns // 1_000_000, "batchId": number})
        for file in files
    ]
    return "\n".join(["v1", *lines]).encode()


def _offset(number: int) -> str:
    return json.dumps({"logOffset": number})


def test_missing_and_changed_files_of_the_batch_are_reported_and_no_others(tmp_path: Path) -> None:
    files = [tmp_path / f"{name} 1.json" for name in "abcd"]
    for file in files:
        file.write_text("{}")
    before, missing, changed, after = files
    logs = [_log(0, before), _log(1, missing, changed), _log(2, after)]
    assert lost_files(logs, "-", _offset(2)) == []
    for file in (before, missing, after):
        file.unlink()
    os.utime(changed, (1, 1))
    found = lost_files(logs, _offset(0), _offset(1))
    assert [each.startswith(f"{file}: ") for each, file in zip(found, (missing, changed), strict=True)] == [True, True]
    assert len(lost_files(logs, "-", _offset(0))) == 1


def test_files_on_other_file_systems_are_left_to_spark() -> None:
    line = json.dumps({"path": "s3a://bucket/file.json", "timestamp": 1, "batchId": 0})
    assert lost_files([f"v1\n{line}".encode()], "-", _offset(0)) == []


# -- rows that a source no longer has ---------------------------------------------------------------------------------

partitions = st.dictionaries(st.sampled_from("abc"), st.integers(0, 6), max_size=3)


@pytest.fixture
def job(tmp_path: Path) -> Iterator[LedgerJob]:
    job = LedgerJob(tmp_path, spark=False, source__max_rows_per_batch=6, checkpoints__retained=50)
    (tmp_path / "in").mkdir()
    yield job
    job.close()
    store_cache.close_all()


def _replay(job: LedgerJob, batch: int) -> ReplayReport:
    given = {name.replace("__", "."): str(value) for name, value in job.settings.items()}
    settings = {**given, "local_dir": str(job.local)}
    return stateflow.replay_batch(job.job_file, job.job_root, batch, settings=settings)


def test_the_error_has_the_source_the_batch_the_lost_rows_and_the_batches_left(job: LedgerJob) -> None:
    job.send("a", 18)
    job.finish(checkpoints__asynchronous="no")
    # After the batches with rows, one in which timers fire.
    first, second, third, *others = (ref["id"] for ref in root_files.kept_refs(job.root))
    (job.folder / "in" / "a.first").write_text("8")
    with raises(InputLost, source="entries", batch=second, lost=["a: offsets [6, 8)"], left=[first, third, *others]):
        _replay(job, second)
    assert _replay(job, third).is_same


@pytest.mark.slow(reason="runs a job and a replay of several batches")
def test_rows_of_a_later_batch_that_are_lost_do_not_prevent_a_replay(job: LedgerJob) -> None:
    job.send("b", 2)
    job.finish(checkpoints__asynchronous="no")
    job.send("a", 6)
    job.finish(checkpoints__asynchronous="no")
    job.send("b", 3)
    job.finish(checkpoints__asynchronous="no")
    _, second, third = folder_tables.by_token(job.folder / "entries")
    (job.folder / "in" / "b.first").write_text("4")
    assert _replay(job, second).is_same
    with raises(InputLost, batch=third, lost=["b: offsets [2, 4)"]):
        _replay(job, third)


@given(partitions, partitions, partitions, partitions)
def test_rows_between_two_positions_are_lost_if_one_of_them_does_not_exist(
    start: dict[str, int], moved: dict[str, int], earliest: dict[str, int], sizes: dict[str, int]
) -> None:
    end = {name: start.get(name, 0) + moved.get(name, 0) for name in start.keys() | moved.keys()}
    ends = {name: first + sizes.get(name, 0) for name, first in earliest.items()}
    exists = {name: set(range(first, ends[name])) for name, first in earliest.items()}
    lost = {n for n in start if n in end and not set(range(start[n], end[n])) <= exists.get(n, set())}
    assert {gap.partition for gap in gaps_between(start, end, earliest, ends)} == lost


def test_a_gap_names_what_is_lost() -> None:
    (gap,) = gaps_between({"a": 2}, {"a": 9}, {"a": 5}, {"a": 20})
    assert gap == Gap("a", 2, 5)
    # Created again, with fewer rows.
    (gap,) = gaps_between({"a": 2}, {"a": 9}, {"a": 0}, {"a": 4})
    assert gap == Gap("a", 9, 4)


def _missing(path: str) -> str:
    return f"[FAILED_READ_FILE.FILE_NOT_EXIST] Encountered error while reading file {path}. File does not exist."


@pytest.mark.parametrize(
    ("path", "source"), [("file:///data/items/x%201.parquet", "items"), ("file:///other/x.parquet", "orders")]
)
def test_a_file_that_spark_does_not_find_belongs_to_the_source_that_reads_its_folder(path: str, source: str) -> None:
    sources: dict[str, Any] = {"orders": "KafkaSource[orders]", "items": "DeltaSource[rows:/data/items]"}
    batch = PlannedBatch(
        datetime(2026, 1, 31, tzinfo=UTC), 1, {"orders": "1", "items": "1"}, {"orders": "2", "items": "2"}
    )
    found = deleted_file(_missing(path), batch, sources)
    assert found is not None
    assert (found.facts["source"], found.facts["start"], found.facts["end"]) == (source, "1", "2")
    assert deleted_file("[FAILED_READ_FILE.NO_HINT] Encountered error", batch, sources) is None


# -- one batch again --------------------------------------------------------------------------------------------------

FIRST, SECOND, THIRD = 2, 3, 4


@pytest.fixture
def bounded_job(tmp_path: Path) -> Iterator[CliFixture]:
    bounded_job = CliFixture(tmp_path)
    bounded_job.settings["checkpoints.asynchronous"] = "no"
    yield bounded_job
    store_cache.close_all()


def _again(job: CliFixture, batch: int, **more: Any) -> ReplayReport:
    return stateflow.replay_batch(job.job, job.root, batch, settings=job.settings, **more)


def test_a_batch_is_returned_as_rows_and_changes_of_state(bounded_job: CliFixture) -> None:
    bounded_job.run()
    settings = bounded_job.folder / "job.toml"
    settings.write_text("".join(f'{name} = "{value}"\n' for name, value in bounded_job.settings.items()))
    report = stateflow.replay_batch(bounded_job.job, bounded_job.root, SECOND, settings=settings)
    assert (report.batch, report.base, report.is_same, report.deviation) == (SECOND, FIRST, True, "")
    (emitted,) = report.emitted
    assert sorted((row["key"], row["total"]) for row in emitted.rows) == [("a", 9), ("b", 5), ("b", 12), ("c", 7)]
    changes = {change.key: (change.before, change.after) for change in report.state.changes}
    assert changes == {("a",): (3, 9), ("b",): (1, 12), ("c",): (2, 7)}
    assert report.keys == ()


@pytest.mark.parametrize("backend", ["rocksdb", "filesystem"])
def test_one_key_has_no_entry_of_a_longer_key(bounded_job: CliFixture, backend: str) -> None:
    names = ["a", "a\0", "a\0b", "a\0\0"]
    head = JOB.replace('[Row("abc"[n % 3], n) for n in range(12)]', f"[Row({names}[n % 4], n) for n in range(12)]")
    head = head.replace("\n\nROWS", "\n    def on_timer(self, timestamp, ctx):\n        return ()\n\n\nROWS")
    timer = "ctx.timer_service().register_processing_time_timer(2**45)"
    bounded_job.write(BUILD, head.replace("        yield", f"        {timer}\n        yield"))
    bounded_job.settings |= {"state.backend": backend, "parallelism": "2"}
    bounded_job.run()
    for number, name in enumerate(names):
        report = _again(bounded_job, THIRD, key=[name])
        (key,) = report.keys
        assert report.is_same
        assert [(call.given["key"], call.given["number"]) for call in key.calls] == [(name, 8 + number)]
        assert len(key.state) == 2
        found = {change.state: (change.key, change.before, change.after) for change in key.state}
        assert found == {"total": ((name,), 4 + 2 * number, 12 + 3 * number), "_timers": ((name,), 2**45, 2**45)}


def test_what_cannot_be_replayed_is_an_error_with_what_can(bounded_job: CliFixture) -> None:
    bounded_job.run()
    with raises(ConfigError, batch=9, kept=[FIRST, SECOND, THIRD]):
        _again(bounded_job, 9)
    with raises(ConfigError, operator="other"):
        _again(bounded_job, THIRD, key=["a"], operator="other")


def test_a_value_of_a_key_may_have_the_type_of_its_column(bounded_job: CliFixture) -> None:
    text = JOB.replace("    key: str\n    number: int", "    key: bytes\n    number: int", 1)
    text = re.sub(r"Row\(\"abc\"\[n % 3\], n\)", 'Row(b"abc"[n % 3 : n % 3 + 1], n)', text)
    text = text.replace("yield Total(row.key,", "yield Total(row.key.decode(),")
    bounded_job.write(BUILD, text)
    bounded_job.run()
    (key,) = _again(bounded_job, SECOND, key=[b"b"]).keys
    assert [call.given["number"] for call in key.calls] == [4, 7]


@pytest.mark.parametrize(
    ("value", "spark_type"),
    [
        ("a", "string"), (None, "string"), (b"\0\xff", "binary"), (True, "boolean"), (-7, "bigint"), (1.5, "double"),
        (-math.inf, "double"), (Decimal("1.50"), "decimal(5,2)"), (date(2026, 1, 31), "date"),
        (datetime(2026, 1, 31, 12, 0, 0, 5, tzinfo=UTC), "timestamp"),
        (timedelta(days=-1, microseconds=3), "interval day to second"),
    ],
)  # fmt: skip
def test_each_value_of_a_key_is_read_as_itself(value: object, spark_type: str) -> None:
    (found,) = parse_key(key_texts([value]), {"key": spark_type})
    assert found == convert_key([value], [spark_type])[0]


# -- replays that are killed ------------------------------------------------------------------------------------------

POINTS = {
    "read.pinned:1": 2, "read.pinned:2": 2, "task.processed": 2, "task.uploaded": 2, "task.sink-closed": 2,
    "batch.reported": 2, "read.finished:1": 2, "read.unpinned:1": 1, "read.unpinned:2": 0,
}  # fmt: skip
"""Failpoints of a replay, and the pins that exist then."""


def _replay_batch(bounded_job: CliFixture, failpoint: str = "") -> Ended:
    arguments = [
        "replay", str(bounded_job.job), "--job-root", bounded_job.root, "--batch", "3", *bounded_job.command()[4:],
    ]  # fmt: skip
    environment = {"STATEFLOW_FAILPOINT": failpoint, "TMPDIR": str(bounded_job.folder / "tmp")}
    return spawn(Launch(arguments, bounded_job.folder / "output", environment)).wait()


def _scratch(bounded_job: CliFixture) -> list[Path]:
    return list((bounded_job.folder / "tmp").glob(f"{PREFIX}*"))


def _lasting(bounded_job: CliFixture) -> dict[str, str]:
    """The files of the job, its tables and its working folder, apart from the log."""
    others = ("root/log/", "tmp/", "output", "code/")
    return {name: text for name, text in contents(bounded_job.folder).items() if not name.startswith(others)}


@pytest.mark.parametrize("point", POINTS)
@pytest.mark.slow(reason="starts a process for each kill")
def test_a_killed_replay_changes_nothing_of_the_job_and_the_next_one_removes_its_files(
    bounded_job: CliFixture, point: str
) -> None:
    bounded_job.run()
    (bounded_job.folder / "tmp").mkdir()
    before = _lasting(bounded_job)
    assert _replay_batch(bounded_job, point).code == KILLED
    pins = POINTS[point]
    left = set(_scratch(bounded_job))
    assert len(left) == (1 if 1 < pins else 0) or point.startswith("read.")
    assert _lasting(bounded_job) == before
    _replay_batch(bounded_job).check()
    assert not _scratch(bounded_job) and left.isdisjoint(_scratch(bounded_job))
    assert _lasting(bounded_job) == before
    later = ManualClock(start=SystemClock().now() + LEASE)
    root = JobRoot.open(open_storage(bounded_job.root), later, "later")
    assert len(root.head().entry.pinned) == pins
    root.admin.end_leases()
    assert root.head().entry.pinned == []


# -- random jobs ------------------------------------------------------------------------------------------------------


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
    key: str
    number: int
    steps: bytes
    at: int


class TickingClock(ManualClock):
    def now(self) -> Any:
        self.sleep(timedelta(milliseconds=1))
        return super().now()


visits = st.tuples(
    st.sampled_from(["a", "b", "", "a\0"]), st.sampled_from([None, "n"]),
    st.lists(steps | st.just(("fail", "")), min_size=1, max_size=5), st.integers(0, 120),
)  # fmt: skip


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
    return {token: rows for token, rows in folder_tables.by_token(jobs.sink(name).folder).items() if rows}


def comparable(rows: Sequence[Mapping[str, object]]) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(json.dumps(list(rows), default=str))
    return found
