"""The backlog of a job: sources that answer, fail or hang, the rate of the last runs, and where it is shown."""

from __future__ import annotations

import json
import threading
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from stateflow.api.source import Backlog, CollectionSource
from stateflow.checkpoint.log.documents import ABORTED, COMPLETED, NOT_BEGUN, CheckpointRecord
from stateflow.checkpoint.log.job_root import JobRoot
from stateflow.clock import ManualClock, SystemClock
from stateflow.errors import StorageError
from stateflow.observability import MemoryRecorder
from stateflow.runtime.backlog import (
    JobBacklog,
    ReadPosition,
    SourceBacklog,
    input_waits,
    measure,
    read_stored_backlog,
    record_backlog,
    rows_per_second,
    sum_up,
    write_backlog,
)
from stateflow.runtime.job import BatchResult
from stateflow.runtime.local_run import run_local
from stateflow.storage import PutResult, open_storage
from stateflow.storage.paths import BACKLOG, backlog_generation, backlog_key
from tests.support.cli_fixture import ASKED, CliFixture, invoke
from tests.support.graphs import Row
from tests.support.local_jobs import Growing, LocalJobs

NOW = datetime(2026, 1, 1, 12, tzinfo=UTC)


class Asked(CollectionSource):
    """Answers with what it is given."""

    def __init__(self, answer: object) -> None:
        super().__init__([], Row)
        self.answer = answer
        self.asked: list[str | None] = []

    def backlog(self, position: str | None) -> Any:
        self.asked.append(position)
        if isinstance(self.answer, threading.Event):
            self.answer.wait()
        if isinstance(self.answer, BaseException):
            raise self.answer
        return self.answer


def ask(rate: float | None = None, seconds: float = 30, **answers: object) -> JobBacklog:
    positions = {uid: ReadPosition(Asked(answer), NOT_BEGUN) for uid, answer in answers.items()}
    return measure(positions, rate, SystemClock(), timedelta(seconds=seconds))


def test_rows_of_all_sources_are_added_and_the_oldest_counts() -> None:
    minutes = [NOW - timedelta(minutes=n) for n in range(9)]
    found = ask(10.0, a=Backlog(rows=7, oldest_at=minutes[3]), b=Backlog(rows=5, oldest_at=minutes[8], exact=False))
    assert (found.rows, found.exact, found.catch_up_ms, found.rows_per_second) == (12, False, 1200, 10.0)
    assert found.oldest_at == minutes[8].isoformat(timespec="milliseconds")
    # A time without a zone is in UTC.
    naive = ask(a=Backlog(rows=1, oldest_at=NOW.replace(tzinfo=None)))
    assert naive.oldest_at == NOW.isoformat(timespec="milliseconds")
    # The oldest of a source that does not know it may be older.
    assert ask(a=Backlog(rows=7, oldest_at=NOW), b=Backlog(rows=5)).oldest_at is None
    assert ask(a=Backlog(rows=7, oldest_at=NOW), b=Backlog(rows=0)).oldest_at is not None


def test_a_source_that_fails_makes_its_backlog_unknown_and_nothing_else() -> None:
    found = ask(
        1.0, a=Backlog(rows=3), b=StorageError("the broker is away"), c=OSError("refused"), d=SystemExit(1), e="much"
    )
    assert (found.rows, found.catch_up_ms, found.exact) == (None, None, False)
    reasons = {each.uid: each.unknown for each in found.sources}
    assert reasons["a"] == "" and "the broker is away" in reasons["b"] and "refused" in reasons["c"]
    assert reasons["d"] and reasons["e"]


def test_a_source_that_hangs_is_abandoned() -> None:
    hangs = threading.Event()
    try:
        found = ask(seconds=0.01, a=hangs, b=Backlog(rows=3))
        assert [each.rows for each in found.sources] == [None, 3]
        assert found.sources[0].unknown == "no answer within 0.01 s"
    finally:
        hangs.set()


def test_a_source_is_not_asked_again_before_it_has_answered() -> None:
    hangs = threading.Event()
    source = Asked(hangs)
    positions = {"a": ReadPosition(source, NOT_BEGUN)}
    try:
        first, second = (measure(positions, None, SystemClock(), timedelta(seconds=0.01)) for _ in range(2))
        assert len(source.asked) == 1 and first.sources[0].unknown != second.sources[0].unknown != ""
    finally:
        hangs.set()
    source.answer = Backlog(rows=3)
    for thread in threading.enumerate():
        if thread.name == "stateflow-backlog-a":
            thread.join()
    assert measure(positions, None, SystemClock()).rows == 3


def test_a_total_is_known_if_each_source_knows_its_part() -> None:
    found = ask(a=Backlog(rows=3, size_bytes=10, files=2), b=Backlog(rows=4, size_bytes=20))
    assert (found.rows, found.size_bytes, found.files) == (7, 30, None)
    found = ask(a=Backlog(files=2), b=Backlog(size_bytes=5, files=0))
    assert (found.rows, found.size_bytes, found.files) == (None, None, 2)
    assert ask(a=Backlog(size_bytes=0)).size_bytes == 0


def test_a_job_without_input_that_waits_has_caught_up_whatever_its_rate() -> None:
    assert ask(a=Backlog(rows=0)).catch_up_ms == 0
    assert ask(a=Backlog(rows=1)).catch_up_ms is None


def record(rows: int, start: float, end: float, status: str = COMPLETED) -> CheckpointRecord:
    numbers: dict[str, Any] = {
        "checkpoint_id": 1,
        "generation": 1,
        "ordinal": 1,
        "run": 1,
        "increment_bytes": 0,
        "full_bytes": 0,
    }
    at = (NOW + timedelta(seconds=end)).isoformat()
    return CheckpointRecord(
        **numbers,
        files=0,
        driver="",
        rows_in=rows,
        rows_out={},
        ended_at=at,
        duration_ms=(end - start) * 1000,
        status=status,
    )


def test_the_rate_counts_the_time_in_which_any_checkpoint_worked() -> None:
    assert rows_per_second([]) is None
    assert rows_per_second([record(0, 0, 5)]) is None
    assert rows_per_second([record(100, 0, 10), record(300, 1000, 1010)]) == pytest.approx(20)
    # Asynchronous ones overlap.
    assert rows_per_second([record(100, 0, 10), record(100, 5, 15), record(100, 6, 9)]) == pytest.approx(20)
    # Checkpoints without rows, and aborted ones, whose rows pass to the next one.
    assert rows_per_second([record(100, 0, 10), record(0, 20, 90), record(9, 90, 95, ABORTED)]) == pytest.approx(10)


def test_metrics_have_what_is_known() -> None:
    recorder = MemoryRecorder()
    oldest = (NOW - timedelta(seconds=90)).isoformat()
    sources = [
        SourceBacklog("a", 7, None, 2, oldest, exact=True, unknown=""),
        SourceBacklog("b", 1, 8, None, None, exact=True, unknown="no times"),
    ]
    record_backlog(recorder, sum_up(sources, 4.0, NOW), NOW)
    prefix = "stateflow.source.backlog"
    assert recorder.gauges == {
        f"{prefix}.rows{{source=a}}": 7,
        f"{prefix}.files{{source=a}}": 2,
        f"{prefix}.age{{source=a}}": 90,
        f"{prefix}.unknown{{source=a}}": 0,
        f"{prefix}.rows{{source=b}}": 1,
        f"{prefix}.size{{source=b}}": 8,
        f"{prefix}.unknown{{source=b}}": 1,
        "stateflow.backlog.catch_up_time": 2,
    }
    # A gauge keeps its value until it is set.
    record_backlog(recorder, sum_up([SourceBacklog("a", 0, 0, 0, None, exact=True, unknown="")], 4.0, NOW), NOW)
    assert (recorder.gauges[f"{prefix}.age{{source=a}}"], recorder.gauges[f"{prefix}.rows{{source=a}}"]) == (0, 0)


def root_of(jobs: LocalJobs) -> JobRoot:
    return JobRoot.open(jobs.storage, jobs.clock)


class GrowingAsked(Growing):
    """Counts how often it is asked, and for which positions."""

    asked: list[str | None]

    def backlog(self, position: str | None) -> Backlog:
        self.asked = [*getattr(self, "asked", []), position]
        return Backlog(rows=5)


def test_a_run_measures_the_backlog_at_most_once_a_minute_and_at_its_end(tmp_path: Path) -> None:
    clock, recorder, source = ManualClock(), MemoryRecorder(), GrowingAsked([Row("a", n) for n in range(12)], Row)
    jobs = LocalJobs(tmp_path, clock, source__max_rows_per_batch=1)
    jobs.recorder = recorder

    def build(env: Any) -> None:
        env.from_source(source, uid="rows").sink_to(jobs.sink("out"), uid="out")

    def on_batch(result: BatchResult) -> None:
        clock.sleep(timedelta(seconds=15))

    run = jobs.prepare(build)
    run.start()
    run_local(run, {"rows": source}, on_batch)
    # The last time at its end.
    assert [json.loads(position or "{}") for position in source.asked] == [{"row": 5}, {"row": 9}, {"row": 12}]
    assert recorder.gauges["stateflow.source.backlog.rows{source=rows}"] == 5


def test_a_run_stores_what_it_has_measured_and_each_report_replaces_the_one_before(tmp_path: Path) -> None:
    clock = ManualClock()
    jobs = LocalJobs(tmp_path, clock, source__max_rows_per_batch=1)
    reports: list[tuple[list[str], str]] = []

    def build(env: Any) -> None:
        env.from_source(source, uid="rows").sink_to(jobs.sink("out"), uid="out")

    def stored() -> tuple[list[str], str]:
        found = read_stored_backlog(jobs.storage, root_of(jobs).head())
        return [blob.key for blob in jobs.storage.list(BACKLOG)], found.backlog.measured_at if found else ""

    def on_batch(result: BatchResult) -> None:
        clock.sleep(timedelta(seconds=15))
        reports.append(stored())

    for number in range(2):
        reports.clear()
        source = GrowingAsked([Row("a", n) for n in range(12 * (number + 1))], Row)
        run = jobs.prepare(build)
        run.start()
        run_local(run, {"rows": source}, on_batch)
        # While it works, one a minute; and one at its end, which is that of the result.
        keys, measured_at = stored()
        assert run.backlog is not None and run.backlog.measured_at == measured_at
        assert [len(each) for each, _ in reports] == [number] * 4 + [1] * 8 and len(keys) == 1
    assert backlog_generation(keys[0]) == root_of(jobs).head().entry.generation


@pytest.fixture
def ended(tmp_path: Path) -> LocalJobs:
    """A job that has run once."""
    jobs = LocalJobs(tmp_path)
    jobs.run(lambda env: env.from_collection([Row("a", 1)], Row, uid="rows").sink_to(jobs.sink("out"), uid="out"))
    return jobs


def counted(*rows: int | None) -> JobBacklog:
    sources = [SourceBacklog(str(n), each, None, None, None, exact=True, unknown="") for n, each in enumerate(rows)]
    return sum_up(sources, None, NOW)


@pytest.mark.parametrize(("last", "waits"), [(0, False), (7, True), (None, None)])
def test_a_report_of_many_sources_has_those_that_wait_and_a_damaged_one_is_none(
    ended: LocalJobs, last: int | None, waits: bool | None
) -> None:
    storage, head = ended.storage, root_of(ended).head()
    write_backlog(storage, backlog_key(head.entry.generation, 7), counted(*[0] * 300, last), [])
    # Of another program that copies files.
    storage.put_new(f"{BACKLOG}zzz.tmp", b"")
    found = read_stored_backlog(storage, head)
    assert found is not None and (found.backlog.rows, len(found.backlog.sources)) == (last, 100)
    assert input_waits(found.backlog) is waits
    storage.put_new(backlog_key(head.entry.generation, 8), b"{")
    assert read_stored_backlog(storage, head) is None


def test_a_report_without_an_answer_replaces_none(ended: LocalJobs, monkeypatch: pytest.MonkeyPatch) -> None:
    storage, head = ended.storage, root_of(ended).head()
    before = [blob.key for blob in storage.list(BACKLOG)]
    assert len(before) == 1
    monkeypatch.setattr(type(storage), "put_new", lambda *_: PutResult.UNKNOWN)
    write_backlog(storage, backlog_key(head.entry.generation, 7), counted(3), before)
    assert [blob.key for blob in storage.list(BACKLOG)] == before


def test_a_run_deletes_no_report_of_a_newer_one_and_no_object_of_others(ended: LocalJobs) -> None:
    storage, foreign = ended.storage, f"{BACKLOG}00-mine.csv"
    storage.put_new(foreign, b"1")
    newer = backlog_key(root_of(ended).head().entry.generation + 100, 1)
    write_backlog(storage, newer, counted(3), [])
    ended.run(lambda env: env.from_collection([Row("a", 1)], Row, uid="rows").sink_to(ended.sink("out"), uid="out"))
    first, *_, last = [blob.key for blob in storage.list(BACKLOG)]
    assert (first, last) == (foreign, newer)


@pytest.mark.parametrize(
    "numbers", [{"rows": "5"}, {"files": float("inf")}, {"size_bytes": float("nan")}, {"rows": -1}]
)
def test_a_number_that_no_source_can_mean_is_unknown(numbers: Any) -> None:
    found = ask(a=Backlog(**numbers))
    assert found.rows is None and next(iter(numbers)) in found.sources[0].unknown


@pytest.mark.parametrize(
    ("numbers", "waits"),
    [
        ([(0, None), (None, 0)], False),
        ([(0, None), (None, 2)], True),
        ([(None, None), (1, None)], True),
        ([(None, None), (0, 0)], None),
        ([], False),
    ],
)
def test_whether_input_waits(numbers: list[tuple[int | None, int | None]], waits: bool | None) -> None:
    sources = [SourceBacklog("a", rows, None, files, None, exact=True, unknown="") for rows, files in numbers]
    assert input_waits(sum_up(sources, None, NOW)) is waits


# -- where it is shown ------------------------------------------------------------------------------------------------


@pytest.fixture
def cli(tmp_path: Path) -> CliFixture:
    fixture = CliFixture(tmp_path)
    fixture.settings["checkpoints.asynchronous"] = "no"
    fixture.write(ASKED)
    return fixture


def status(cli: CliFixture, *more: str) -> Mapping[str, Any]:
    found: Mapping[str, Any] = json.loads(invoke("status", "--job-root", cli.root, "--json", *more).output)
    return found


def test_the_result_and_the_status_have_the_backlog_while_no_run_is_active(cli: CliFixture) -> None:
    result = cli.run()
    assert result.backlog is not None and (result.backlog.rows, result.backlog.catch_up_ms) == (0, 0)
    (cli.folder / "more.json").write_text("30")
    found = status(cli, "--job", str(cli.job))
    backlog = found["backlog"]
    assert (backlog["rows"], backlog["exact"], found["backlog_unknown"]) == (30, True, None)
    of_source = {"uid": "rows", "rows": 30, "size_bytes": None, "files": None, "oldest_at": None, "exact": True}
    assert backlog["sources"] == [{**of_source, "unknown": None}]
    # Its twelve rows in the time of its three checkpoints.
    seconds = sum(each["duration_ms"] for each in found["points"]) / 1000
    assert backlog["rows_per_second"] == pytest.approx(12 / seconds, rel=0.5)
    assert backlog["catch_up_ms"] == pytest.approx(30_000 / backlog["rows_per_second"], abs=1)
    lines = invoke("status", "--job-root", cli.root, "--job", str(cli.job)).output
    assert "source rows has waiting: 30 rows, " in lines


def test_a_status_without_a_job_file_or_with_a_broken_one_says_why_the_backlog_is_unknown(cli: CliFixture) -> None:
    cli.run()
    found = status(cli)
    # As of the end of the run, because only the job file has the sources.
    assert (found["backlog"]["rows"], found["backlog_unknown"], found["health"]["word"]) == (0, None, "caught-up")
    assert ", as of " in invoke("status", "--job-root", cli.root).output
    (cli.folder / "more.json").write_text("30")
    assert status(cli)["backlog"] == found["backlog"]
    assert status(cli, "--job", str(cli.job))["health"]["word"] == "idle"
    for blob in open_storage(cli.root).list(BACKLOG):
        open_storage(cli.root).delete([blob.key])
    assert status(cli)["backlog"] is None and "--job" in status(cli)["backlog_unknown"]
    cli.job.write_text("raise ValueError('no')")
    found = status(cli, "--job", str(cli.job))
    assert found["backlog"] is None and found["backlog_unknown"] and found["checkpoint_id"]
