"""How long pages take for 20 users of a job with 10,000 checkpoints and 500 subtasks, on disk and in a bucket.

The bucket is in an S3 server that waits 20 ms before it reads each request. Meanwhile the job makes a checkpoint each
second, so that no answer stays valid for long.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import re
import signal
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from unittest import mock

import httpx
from msgspec.structs import replace

from benchmarks.results import write_result
from stateflow.checkpoint.history import RUN_START, record_run, write_action, write_records
from stateflow.checkpoint.log.checkpoint_log import Appended, Head
from stateflow.checkpoint.log.completed_checkpoints import RetentionLimits
from stateflow.checkpoint.log.documents import (
    ActionRecord,
    CheckpointRecord,
    Manifest,
    OperatorMetrics,
    OperatorState,
    Origin,
    Savepoint,
    SinkMetrics,
    SourcePosition,
    Spread,
)
from stateflow.checkpoint.log.job_root import JobRoot, NewJob
from stateflow.checkpoint.log.manifest_files import seal, write_manifest
from stateflow.checkpoint.log.transitions import Commit
from stateflow.checkpoint.savepoints.catalog import VERSION
from stateflow.clock import SystemClock
from stateflow.environment import StreamExecutionEnvironment, declare
from stateflow.outputs import encode_json
from stateflow.runtime.planning.explain import explain_job
from stateflow.state.handles import FileHandle, StateFile, SubtaskState
from stateflow.storage import MemoryStorage, Storage, open_storage
from stateflow.storage.paths import (
    DATA,
    FORMAT,
    HISTORY,
    RUN_FILES,
    SAVEPOINT,
    SAVEPOINTS,
    data_folder,
    log_entry,
    savepoint_folder,
)
from stateflow.testing.sinks import FolderSink
from tests.servers.running import s3_server
from tests.support.local_jobs import Growing
from tests.ui.pages_job import Row, Sum

OPERATORS, RETAINED, PENDING = 5, 40, 10
SAVED = ("before", "after")
"""The names of the savepoints."""
_START = datetime(2026, 1, 1, tzinfo=UTC)


@dataclass(frozen=True)
class Size:
    """How much there is.

    Attributes:
        checkpoints: of the job.
        subtasks: of its operators together.
        users: that look at pages.
        seconds: how long they do.
        pause: time of a user between two requests, on average.
        delay_ms: of the S3 server.
        checkpoints_of_run: after which another run begins; 0 for one run.
    """

    checkpoints: int = 10_000
    subtasks: int = 500
    users: int = 20
    seconds: float = 20.0
    pause: float = 0.5
    delay_ms: int = 20
    checkpoints_of_run: int = 0


def run(folder: Path, size: Size = Size()) -> Path:
    """Measures and writes ``pages.json``."""
    job = SyntheticJob(MemoryStorage(), size)
    job.fill()
    figures: dict[str, object] = {"users": size.users, "checkpoints": size.checkpoints, "subtasks": size.subtasks}
    disk = folder / "disk" / "job"
    figures["disk"] = _measured(job, open_storage(str(disk)), str(disk), size)
    bucket = folder / "bucket"
    bucket.mkdir()
    with s3_server(bucket, "bucket", size.delay_ms) as variables, mock.patch.dict("os.environ", variables):
        # The server's files, and not 1,000 requests.
        job.copy_to(open_storage(str(bucket / "data" / "bucket" / "job")))
        figures["bucket"] = _measured(job, open_storage("s3://bucket/job"), "s3://bucket/job", size)
    return write_result("pages", figures)


# -- the job ----------------------------------------------------------------------------------------------------------


class SyntheticJob:
    """A job root with many checkpoints, whose records are as those of a job with several operators and a sink."""

    def __init__(self, storage: Storage, size: Size) -> None:
        self.root = JobRoot.create_or_open(storage, SystemClock(), NewJob("flights", 1024, {}), "benchmark:1")
        self.size, self.graph = size, _graph()
        self.pending: list[CheckpointRecord] = []
        self._begin_run()

    def _begin_run(self) -> None:
        self.head = self.root.claim()
        record_run(self.root.storage, _start(self.head), Path(__file__).read_bytes(), self.graph)

    def fill(self) -> None:
        """Makes all checkpoints, those before the retained ones without subtasks, and savepoints of the last two."""
        for number in range(self.size.checkpoints):
            self.commit(0 if number < self.size.checkpoints - RETAINED else self.size.subtasks // OPERATORS)
            if number % 250 == 0:
                write_action(self.root.storage, _savepoint(self.head.entry.seq), self.root.clock.new_id())
        for name, ref in zip(SAVED, self.root.checkpoints.list_kept(self.head)[-2:], strict=True):
            data, _ = seal(_savepoint_of(name, ref.id, self.root.checkpoints.manifest_of(ref)))
            self.root.storage.put_new(f"{savepoint_folder(name)}{SAVEPOINT}", data)

    def commit(self, parallelism: int) -> None:
        """Makes a checkpoint; stores the records of ten at once, as a run does."""
        root, of_run = self.root, self.size.checkpoints_of_run
        ordinal = self.head.entry.ordinal + 1
        if of_run and ordinal % of_run == 0:
            self._begin_run()
        entry = self.head.entry
        record = _record(entry.generation, ordinal, self.size.subtasks // OPERATORS)
        if of_run:
            record = replace(record, run=1 + ordinal // of_run)
        manifest = Manifest(
            job_uuid=root.job.job_uuid,
            generation=entry.generation,
            ordinal=ordinal,
            operators=[_operator(number, parallelism) for number in range(OPERATORS if parallelism else 0)],
            sources=[
                SourcePosition(uid="flights", description="CollectionSource[Row]", offset=f'{{"logOffset":{ordinal}}}')
            ],
            full_bytes=record.full_bytes,
            record=record,
            history=self.pending,
        )
        handle = write_manifest(root.storage, data_folder(entry.generation, ordinal, "driver"), manifest)
        outcome = root.commit(self.head, Commit(ordinal, handle, []), RetentionLimits(RETAINED))
        assert isinstance(outcome, Appended)
        self.head = outcome.head
        self.pending = [*self.pending, replace(record, checkpoint_id=self.head.checkpoint_id)]
        if len(self.pending) >= PENDING:
            write_records(root.storage, self.pending, handle.sha256)
            self.pending = []

    def copy_to(self, storage: Storage) -> None:
        """Stores what a job root has after its collections: the newest entry, the retained checkpoints, the history."""
        source = self.root.storage
        kept = {ref.manifest.key for ref in self.root.checkpoints.list_kept(self.head)}
        keys = [FORMAT, log_entry(self.head.entry.seq), *sorted(kept)]
        # The lists of retained checkpoints are beside the manifests.
        lists = [blob.key for blob in source.list(DATA) if "/retained-" in blob.key][-10 * RETAINED :]
        described = [blob.key for area in (HISTORY, RUN_FILES, SAVEPOINTS) for blob in source.list(area)]
        for key in (*keys, *lists, *described):
            storage.put_new(key, source.get(key))

    def at(self, storage: Storage) -> SyntheticJob:
        """Returns the same job in another storage, which has a copy."""
        other = SyntheticJob.__new__(SyntheticJob)
        other.root, other.size = JobRoot.open(storage, SystemClock(), "benchmark:1"), self.size
        other.head, other.pending, other.graph = other.root.head(), list(self.pending), self.graph
        return other


def _build(env: StreamExecutionEnvironment) -> None:
    stream = env.from_source(Growing([], Row), uid="flights")
    for number in range(OPERATORS):
        stream = stream.key_by("key").process(Sum(), output=Row, uid=f"operator-{number}")
    stream.sink_to(FolderSink("/data/totals"), uid="totals")


def _graph() -> bytes:
    """Returns the graph of the job, as its runs store it."""
    env, settings = declare(_build, "flights", ())
    return encode_json(explain_job(env.graph, settings, on_spark=False, with_states=False)).encode()


def _operator(number: int, parallelism: int) -> OperatorState:
    groups = 1024 // parallelism
    subtasks = [
        SubtaskState(
            subtask=at,
            first_group=at * groups,
            last_group=(at + 1) * groups - 1,
            snapshot=f"{number}-{at}",
            files=[
                StateFile(
                    local_name=f"00000{file}.sst",
                    handle=FileHandle(
                        key=f"data/{1:020d}/{at:010d}-{number}/00000{file}.sst", size=100_000, sha256="a" * 64
                    ),
                )
                for file in range(3)
            ],
            entries=10_000,
        )
        for at in range(parallelism)
    ]
    return OperatorState(
        uid=f"operator-{number}",
        parallelism=parallelism,
        key_types=["string"],
        key_names=["carrier"],
        states=[],
        subtasks=subtasks,
    )


def _record(generation: int, ordinal: int, subtasks: int) -> CheckpointRecord:
    ended = (_START + timedelta(seconds=60 * ordinal)).isoformat(timespec="milliseconds")
    metrics = OperatorMetrics(
        subtasks=subtasks, rows_in=10_000 + ordinal, rows_out=500, state_bytes=3_000_000 + ordinal, state_entries=9_000,
        function_ms=12.5, state_ms=3.25, store_ms=8.125, cpu_ms=25.75, busiest_subtask_rows=600, skew_ratio=1.5,
        watermark_at=1_767_225_600_000 + ordinal, watermark_lag_ms=1200,
    )  # fmt: skip
    spread = Spread(min=0.5, avg=1.25, max=3.125)
    return CheckpointRecord(
        checkpoint_id=0, generation=generation, ordinal=ordinal, run=1, ended_at=ended, triggered_at=ended,
        duration_ms=1234.5, increment_bytes=100_000 + ordinal, full_bytes=15_000_000 + 1000 * ordinal, files=1500,
        rows_in=10_000, rows_out={"totals": 500}, driver="host-1:12345", reason="scheduled__2026-01-01T00:00:00",
        subtasks={"sync_ms": spread, "increment_bytes": spread, "full_bytes": spread},
        operators={f"operator-{number}": metrics for number in range(OPERATORS)},
        sinks={"totals": SinkMetrics(rows=500, written_bytes=50_000, files=4, publish_ms=31.5)},
        cpu_ms=2500.5, storage_requests=120, storage_read_bytes=1_000_000, storage_written_bytes=2_000_000,
    )  # fmt: skip


def _start(head: Head) -> ActionRecord:
    return ActionRecord(
        seq=head.entry.generation,
        kind=RUN_START,
        ended_at=_START.isoformat(timespec="milliseconds"),
        by="airflow-user:uma",
        reason="scheduled__2026-01-01T00:00:00",
        duration_ms=1234.5,
        facts={
            "run": head.entry.runs,
            "checkpoint_id": head.checkpoint_id or None,
            "driver": "host-1:12345",
            "parallelism": 100,
            "job_file": "pages.py",
        },
    )


def _savepoint_of(name: str, checkpoint: int, manifest: Manifest) -> Savepoint:
    at = _START.isoformat(timespec="milliseconds")
    return Savepoint(
        version=VERSION,
        id=f"{checkpoint:032x}",
        name=name,
        origin=Origin.MANUAL,
        made_at=at,
        committed_at=at,
        by="airflow-user:uma",
        job="flights",
        job_uuid=manifest.job_uuid,
        max_parallelism=1024,
        checkpoint_id=checkpoint,
        manifest=manifest,
        sinks={},
    )


def _savepoint(seq: int) -> ActionRecord:
    return ActionRecord(
        seq=seq,
        kind="savepoint",
        ended_at=(_START + timedelta(seconds=60 * seq)).isoformat(timespec="milliseconds"),
        by="airflow-user:uma",
        reason="before the upgrade",
        size_bytes=15_000_000,
        facts={"savepoint": f"before-{seq}", "savepoint_id": f"{seq:032x}", "origin": "manual"},
    )


# -- users ------------------------------------------------------------------------------------------------------------


@dataclass
class Samples:
    """What users have seen.

    Attributes:
        milliseconds: of each request, by page.
        sizes: bytes of the newest answer, by page.
    """

    milliseconds: dict[str, list[float]] = field(default_factory=dict)
    sizes: dict[str, int] = field(default_factory=dict)


def _measured(job: SyntheticJob, storage: Storage, address: str, size: Size) -> dict[str, object]:
    if storage.size(FORMAT) is None:
        job.copy_to(storage)
    running = job.at(storage)
    with served(address) as (url, process):
        with httpx.Client(base_url=url, timeout=60) as client:
            began = time.perf_counter()
            (row,) = client.get("api/v1/jobs").json()["jobs"]
            listed = time.perf_counter() - began
            one = f"api/v1/jobs/{row['id']}"
            while not client.get(one).json()["history_complete"]:
                time.sleep(0.05)
            whole = time.perf_counter() - began
        pages = _pages(one, running.head)
        worked = _cpu_seconds(process.pid)
        with _committing(running) as commits:
            samples = asyncio.run(_users(url, pages, size))
        worked = _cpu_seconds(process.pid) - worked
        memory = int(re.findall(r"VmHWM:\s+(\d+)", Path(f"/proc/{process.pid}/status").read_text())[0])
    every = [each for found in samples.milliseconds.values() for each in found]
    return {
        "requests": len(every),
        "requests_per_second": round(len(every) / size.seconds, 1),
        "p50_ms": _percentile(every, 50),
        "p95_ms": _percentile(every, 95),
        "p99_ms": _percentile(every, 99),
        # Of the server, with its looks at the job root; other programs on the machine do not change it much.
        "cpu_ms_per_request": round(1000 * worked / len(every), 2),
        "load_1m": round(os.getloadavg()[0], 1),
        "pages": {
            name: {"p50_ms": _percentile(found, 50), "p95_ms": _percentile(found, 95), "bytes": samples.sizes[name]}
            for name, found in samples.milliseconds.items()
        },
        "first_list_ms": round(listed * 1000, 1),
        "whole_history_ms": round(whole * 1000, 1),
        "memory_mb": round(memory / 1000, 1),
        "checkpoints_meanwhile": len(commits),
    }


def _cpu_seconds(process: int) -> float:
    fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _percentile(values: Sequence[float], percent: int) -> float:
    return round(statistics.quantiles(values, n=100)[percent - 1] if len(values) > 1 else values[0], 1)


def _pages(one: str, newest: Head) -> dict[str, str]:
    at = newest.checkpoint_id
    return {
        "jobs": "api/v1/jobs",
        "state": one,
        "points": f"{one}/points",
        "points-filtered": f"{one}/points?retained=true",
        "timeline": f"{one}/timeline",
        "checkpoint": f"{one}/checkpoints/{at - 2}",
        "old-checkpoint": f"{one}/checkpoints/{at // 2}",
        "graph": f"{one}/graph",
        "run": f"{one}/runs/{newest.entry.generation}",
        "restore-plan": f"{one}/restore-plan?target={at - 2}",
        "savepoints": f"{one}/savepoints",
        "savepoint-diff": f"{one}/savepoint-diff?from={SAVED[0]}&to={SAVED[1]}",
        "retention-preview": f"{one}/retention-preview?retain=10&savepoints=1",
        "journal": "api/v1/journal",
        "journal-of-job": f"{one}/journal",
    }


async def _users(url: str, pages: dict[str, str], size: Size) -> Samples:
    samples = Samples()
    limits = httpx.Limits(max_connections=size.users, max_keepalive_connections=size.users)
    async with httpx.AsyncClient(base_url=url, timeout=60, limits=limits) as client:
        ends = time.perf_counter() + size.seconds
        await asyncio.gather(
            *(_user(client, pages, size, random.Random(seed), samples=samples, ends=ends) for seed in range(size.users))
        )
    return samples


async def _user(
    client: httpx.AsyncClient, pages: dict[str, str], size: Size, rng: random.Random, *, samples: Samples, ends: float
) -> None:
    names, tags = sorted(pages), dict[str, str]()
    await asyncio.sleep(rng.random() * size.pause)
    while time.perf_counter() < ends:
        name = rng.choice(names)
        headers = {"if-none-match": tags[name]} if name in tags else {}
        began = time.perf_counter()
        answer = await client.get(pages[name], headers=headers)
        samples.milliseconds.setdefault(name, []).append((time.perf_counter() - began) * 1000)
        assert answer.status_code in (200, 304), answer.text
        tags[name] = answer.headers["etag"]
        if answer.status_code == 200:
            samples.sizes[name] = len(answer.content)
        await asyncio.sleep(2 * rng.random() * size.pause)


@contextlib.contextmanager
def served(address: str) -> Iterator[tuple[str, subprocess.Popen[str]]]:
    """The URL of the pages of a job root, and the process that serves them."""
    command = [sys.executable, "-m", "stateflow", "ui", "--job-root", address, "--port", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            yield process.stdout.readline().split()[-1], process
        finally:
            process.send_signal(signal.SIGTERM)


@contextlib.contextmanager
def _committing(job: SyntheticJob) -> Iterator[list[Head]]:
    """Makes a checkpoint each second in a thread."""
    done, made = threading.Event(), list[Head]()

    def commit() -> None:
        while not done.wait(1):
            job.commit(job.size.subtasks // OPERATORS)
            made.append(job.head)

    thread = threading.Thread(target=commit)
    thread.start()
    try:
        yield made
    finally:
        done.set()
        thread.join()
