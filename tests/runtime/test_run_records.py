"""What the job root has about a run: the record of its start with job file and graph, and its progress."""

from __future__ import annotations

import hashlib
import json
import os
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from stateflow import StreamExecutionEnvironment
from stateflow.checkpoint import history
from stateflow.checkpoint.history import RUN_START, read_history, read_run_file, record_run, trim_history
from stateflow.checkpoint.log.documents import ActionRecord, RunProgress
from stateflow.clock import ManualClock
from stateflow.operations.checkpoints import verify_history
from stateflow.operations.status import describe
from stateflow.runtime.job import Positions
from stateflow.runtime.local_run import LocalExecutor
from stateflow.storage import MemoryStorage, open_storage
from stateflow.storage.paths import PROGRESS, RUN_FILES
from tests.support.cli_fixture import BUILD, CliFixture
from tests.support.graphs import Row
from tests.support.local_jobs import LocalJobs
from tests.support.processes import wait_for


@pytest.fixture
def cli(tmp_path: Path) -> CliFixture:
    return CliFixture(tmp_path)


def starts(root: str) -> list[ActionRecord]:
    return [r for r in read_history(open_storage(root)) if isinstance(r, ActionRecord) and r.kind == RUN_START]


def test_each_run_has_a_record_and_each_job_file_and_graph_is_stored_once(cli: CliFixture) -> None:
    texts, results = [], []
    for step in ("", "", ".filter(repr)"):
        cli.write(BUILD.replace(".key_by", f"{step}.key_by"))
        os.utime(cli.job, (1_000_000, 1_000_000))
        texts.append(cli.job.read_bytes())
        results.append(cli.run())
    found, storage = starts(cli.root), open_storage(cli.root)
    assert [record.seq for record in found] == [result.generation for result in results]
    assert [record.facts["run"] for record in found] == [1, 2, 3]
    assert [record.facts["checkpoint_id"] or 0 for record in found] == [r.start_checkpoint_id for r in results]
    assert [read_run_file(storage, record.text("job_file_sha256")) for record in found] == texts
    assert {record.facts["job_file_modified_at"] for record in found} == {"1970-01-12T13:46:40.000Z"}
    assert all(0 < (record.duration_ms or 0) < 60_000 for record in found)
    graphs = [json.loads(read_run_file(storage, record.text("graph_sha256")) or b"") for record in found]
    chains = [chain for graph in graphs for level in graph["levels"] for chain in level["chains"]]
    assert [(chain["uid"], chain["states"]) for chain in chains] == [("sum", None)] * 3
    rows = {"key": ["key string"], "from_uids": ["rows"], "order_by": [], "broadcast": False}
    ways = ["rows", "rows", "rows > filter repr"]
    assert [chain["inputs"] for chain in chains] == [[{**rows, "rows": way}] for way in ways]
    assert [[(sink["uid"], sink["from_uids"]) for sink in chain["sinks"]] for chain in chains] == [
        [("totals", ["sum"])]
    ] * 3
    assert len(storage.list(RUN_FILES)) == 4
    described = Path("docs/format.md").read_text()
    assert [fact for record in found for fact in record.facts if f"`{fact}`" not in described] == []
    verify_history(cli.root)


def start(number: int) -> ActionRecord:
    return ActionRecord(seq=number, kind=RUN_START, ended_at=datetime.now(UTC).isoformat(), by="a")


def test_a_file_is_deleted_with_the_last_record_of_a_run_that_had_it() -> None:
    storage = MemoryStorage()
    for number, text in enumerate((b"a", b"b", b"a"), 1):
        record_run(storage, start(number), text, b"{}")

    def stored(data: bytes) -> bool:
        return read_run_file(storage, hashlib.sha256(data).hexdigest()) == data

    trim_history(storage, keep=2)
    assert [stored(data) for data in (b"a", b"b", b"{}")] == [True, True, True]
    trim_history(storage, keep=1)
    assert [stored(data) for data in (b"a", b"b", b"{}")] == [True, False, True]
    trim_history(storage, keep=0)
    assert storage.list("") == []


def test_a_large_job_file_is_not_stored(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(history, "LARGEST_JOB_FILE", 3)
    storage = MemoryStorage()
    record_run(storage, start(1), b"1234", b'{"levels": []}')
    (record,) = read_history(storage)
    assert isinstance(record, ActionRecord)
    assert read_run_file(storage, record.text("job_file_sha256")) is None
    assert read_run_file(storage, record.text("graph_sha256")) == b'{"levels": []}'


def test_a_changed_file_is_not_read() -> None:
    storage, name = MemoryStorage(), hashlib.sha256(b"a").hexdigest()
    storage.put_new(f"{RUN_FILES}{name}", b"b")
    assert read_run_file(storage, name) is None


class LongBatches(LocalExecutor):
    """Each batch takes a minute, and ends once the run has reported its progress."""

    def __init__(self, clock: ManualClock, root: Path) -> None:
        super().__init__()
        self.clock = clock
        self.root = str(root)
        self.seen: list[RunProgress] = []

    def execute(self, rows: Any, work: Any) -> Any:
        before = len(self.seen)
        self.clock.sleep(timedelta(minutes=1))
        wait_for(lambda: self._look(before), lambda: str(self.seen))
        return super().execute(rows, work)

    def _look(self, before: int) -> bool:
        progress = describe(self.root).progress
        # Before its first report, the report of the batch before is still there.
        self.seen += [progress] if progress and progress.ordinal == before + 1 else []
        return len(self.seen) > before


def test_a_long_batch_reports_the_progress_of_its_run(tmp_path: Path) -> None:
    clock = ManualClock()
    jobs = LocalJobs(tmp_path / "job", clock)

    def build(env: StreamExecutionEnvironment) -> None:
        rows = env.from_collection([Row("a", n, 0.0) for n in range(4)], Row, uid="rows").key_by("key")
        rows.reduce(lambda a, b: b, uid="last").sink_to(jobs.sink("out"), uid="out")

    executor = LongBatches(clock, tmp_path / "job" / "root")
    run = jobs.prepare(build, executor, requests__fence_interval="10ms")
    run.start("nightly")
    for number in range(2):
        run.run_batch({"rows": [Row("a", number, 0.0)]}, lambda _: Positions([]))
    run.finish()
    run.abandon()
    found = [(p.ordinal, p.batches, p.rows_in, p.reason) for p in executor.seen]
    assert found == [(1, 0, 0, "nightly"), (2, 1, 1, "nightly")]
    assert jobs.storage.list(PROGRESS) == []
    assert describe(executor.root).progress is None
