"""Measures the Kafka sink with small rows: staging, publishing, a whole job on Spark; and a plain producer."""

from __future__ import annotations

import json
import statistics
import sys
import uuid
from dataclasses import dataclass
from pathlib import Path

import msgspec
import numpy as np
import pyarrow as pa
from confluent_kafka import Producer
from pyarrow import parquet

from benchmarks.competitors import Timed
from benchmarks.jobs.publish import Reading
from benchmarks.kafka_server import Broker, kafka_broker
from benchmarks.large_state import timed
from benchmarks.processes import run_program
from benchmarks.results import write_result
from stateflow.api.schema import RowSchema
from stateflow.api.sink import SinkContext, Writing
from stateflow.connectors.kafka.sink import KafkaSink
from stateflow.state.handles import Committable
from stateflow.storage import open_storage

JOB = Path(__file__).parent / "jobs" / "publish.py"
_PROJECT = Path(__file__).parent.parent
_SINK, _PEER, _JOB = "sink", "peer", "job"
_SUBTASKS = 2
_LIMIT_SECONDS = 300.0
_POLL_ROWS = 1024
_SCHEMA = RowSchema.of(Reading)
_encode = msgspec.json.encode
_decode = msgspec.json.Decoder(Reading).decode


@dataclass(frozen=True)
class Size:
    """How much is written.

    Attributes:
        rows: in a large checkpoint.
        large: how many large checkpoints are timed, after one that is not.
        small_rows: in a small checkpoint.
        small: how many small ones are timed.
        job_batches: batches of `rows` rows that the job writes, the first of which is not timed; 0 for no job.
    """

    rows: int = 400_000
    large: int = 3
    small_rows: int = 100
    small: int = 50
    job_batches: int = 4


def run(folder: Path, size: Size = Size()) -> Path:
    """Measures and writes ``kafka-sink.json``.

    ``publish_rows_per_s`` is the driver's part of a checkpoint, ``stage_rows_per_s`` that of one task; the peer encodes
    the same rows and writes them in one transaction. All are medians; the broker runs on the same cores.
    """
    folder.mkdir(parents=True, exist_ok=True)
    with kafka_broker(folder / "broker") as broker:
        broker.create(_SINK, _PEER, _JOB)
        ours = _measure(_OurSink(broker, folder / "root"), size)
        peer = _measure(_PlainProducer(broker), size)
        for topic in (_SINK, _PEER):
            _check(broker, topic, size.rows * (1 + size.large) + size.small_rows * size.small)
        job = _job(broker, folder, size) if size.job_batches else {}
    figures = {
        "publish_rows_per_s": _rate(size.rows, ours.large),
        "stage_rows_per_s": _rate(size.rows, ours.large_before),
        "peer_rows_per_s": _rate(size.rows, peer.large),
        "publish_vs_peer": round(statistics.median(peer.large) / statistics.median(ours.large), 2),
        "small_checkpoint_ms": _median_ms(ours.small),
        "small_stage_ms": _median_ms(ours.small_before),
        "peer_small_transaction_ms": _median_ms(peer.small),
        "row_bytes": len(_encode(_rows(size.rows, 1).to_pylist()[0])),
        **job,
        "size": vars(size),
    }
    return write_result("kafka-sink", figures)


@dataclass(frozen=True)
class _Seconds:
    """How long each large and small write took, and what was before it and is not part of it."""

    large: list[float]
    large_before: list[float]
    small: list[float]
    small_before: list[float]


class _OurSink:
    """The sink as a run uses it: tasks stage rows, and the driver publishes them."""

    def __init__(self, broker: Broker, root: Path) -> None:
        self._context = SinkContext(uuid.uuid4().hex, "out", _SCHEMA, open_storage(str(root)))
        self._sink = KafkaSink(broker.address, topic=_SINK, key="sensor")
        self._sink.prepare(self._context)
        self._token = 0

    def write(self, rows: pa.RecordBatch) -> tuple[float, float]:
        """Returns the seconds of staging, and those of publishing."""
        self._token += 1
        staged, before = timed(lambda: self._stage(rows))
        published, took = timed(lambda: self._sink.open_table(self._context).commit(self._token, staged))
        assert published == self._token, "the checkpoint was not published"
        return before, took

    def _stage(self, rows: pa.RecordBatch) -> list[Committable]:
        part = -(-len(rows) // _SUBTASKS)
        files: list[Committable] = []
        for subtask in range(_SUBTASKS):
            writer = self._sink.writer(self._context, Writing(1, self._token, subtask, "a"))
            writer.write(rows.slice(subtask * part, part))
            files += writer.close()
        return files


class _PlainProducer:
    """A transactional producer as written by hand, with the sink's options."""

    def __init__(self, broker: Broker) -> None:
        self._producer = Producer(
            {
                "bootstrap.servers": broker.address,
                "transactional.id": "peer",
                "linger.ms": 20,
                "compression.type": "lz4",
                "batch.size": 1_000_000,
                "batch.num.messages": 100_000,
                "queue.buffering.max.messages": 1 << 20,
                "partitioner": "murmur2_random",
            }
        )
        self._producer.init_transactions(30)

    def write(self, rows: pa.RecordBatch) -> tuple[float, float]:
        """Returns the seconds of converting the rows to objects, and those of writing them."""
        objects, before = timed(lambda: [Reading(**row) for row in rows.to_pylist()])
        _, took = timed(lambda: self._write(objects))
        return before, took

    def _write(self, objects: list[Reading]) -> None:
        producer = self._producer
        producer.begin_transaction()
        for number, row in enumerate(objects):
            while True:
                try:
                    producer.produce(_PEER, _encode(row), row.sensor)
                    break
                except BufferError:
                    producer.poll(0.1)
            if number % _POLL_ROWS == 0:
                producer.poll(0)
        producer.commit_transaction(60)


def _measure(writer: _OurSink | _PlainProducer, size: Size) -> _Seconds:
    large = [writer.write(_rows(n * size.rows, size.rows)) for n in range(1 + size.large)]
    first = (1 + size.large) * size.rows
    small = [writer.write(_rows(first + n * size.small_rows, size.small_rows)) for n in range(size.small)]
    return _Seconds(
        [took for _, took in large[1:]],
        [before for before, _ in large[1:]],
        [took for _, took in small],
        [before for before, _ in small],
    )


def _job(broker: Broker, folder: Path, size: Size) -> dict[str, int | float]:
    """A job on Spark, from Parquet files to the topic."""
    rows = folder / "rows"
    rows.mkdir()
    half = size.rows // _SUBTASKS
    for number in range(size.job_batches * _SUBTASKS):
        table = pa.Table.from_batches([_rows(number * half, half)])
        parquet.write_table(table, rows / f"{number:03}.parquet")
    settings = {"job.brokers": broker.address, "job.topic": _JOB, "job.rows": str(rows), "parallelism": str(_SUBTASKS)}
    order = {"job": str(JOB), "folder": str(folder / "job"), "heap": "2g", "settings": settings}
    given, answered = folder / "order.json", folder / "answer.json"
    given.write_text(json.dumps(order))
    command = [sys.executable, "-m", "benchmarks.peers.kafka_ours", str(given), str(answered)]
    usage = run_program(command, {"PYTHONPATH": str(_PROJECT)}, folder / "output.txt", _LIMIT_SECONDS)
    answer = json.loads(answered.read_text())
    total = half * _SUBTASKS * size.job_batches
    _check(broker, _JOB, total)
    between = Timed(answer["began"], answer["ends"][0], answer["ends"][-1], total - half * _SUBTASKS, usage)
    figures = between.figures()
    return {"job_rows_per_s": figures["events_per_s"], "job_cpu_s_per_million": figures["cpu_s_per_million"]}


def _rows(first: int, count: int) -> pa.RecordBatch:
    """Rows with the numbers from `first`."""
    numbers = np.arange(first, first + count)
    sensors = [f"s{number % 1000}" for number in numbers.tolist()]
    return pa.record_batch([pa.array(numbers), pa.array(sensors), pa.array(numbers % 1000 / 8)], schema=_SCHEMA.arrow)


def _check(broker: Broker, topic: str, rows: int) -> None:
    """Raises AssertionError unless a consumer of committed records sees each row once."""
    times = np.zeros(rows, int)
    for value in broker.committed(topic):
        row = _decode(value)
        assert row.sensor == f"s{row.number % 1000}" and row.value == row.number % 1000 / 8, f"{row} is wrong"
        times[row.number] += 1
    assert (times == 1).all(), f"of {rows} rows in {topic}, {(times == 0).sum()} are lost, {(times > 1).sum()} doubled"


def _rate(rows: int, seconds: list[float]) -> int:
    return round(rows / statistics.median(seconds))


def _median_ms(seconds: list[float]) -> float:
    return round(statistics.median(seconds) * 1000, 1)
