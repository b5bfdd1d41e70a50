"""Measures a continuous run from Kafka to Kafka: the time from a record's sending until its output can be consumed.

A consumer of committed records receives the output in the process that sends the input, so both use one clock.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import msgspec
import numpy as np
from confluent_kafka import KafkaException, Producer

from benchmarks.jobs.latency import Counted, Sent
from benchmarks.kafka_server import PARTITIONS, SPARK_JARS, Broker, kafka_broker
from benchmarks.results import write_result

JOB = Path(__file__).parent / "jobs" / "latency.py"
_PROJECT = Path(__file__).parent.parent
_INPUT, _OUTPUT = "sent", "counted"
_STARTS_WITHIN = 120.0
_ENDS_WITHIN = 60.0
_decode = msgspec.json.Decoder(Counted).decode
_encode = msgspec.json.encode


@dataclass(frozen=True)
class Size:
    """How much is sent.

    Attributes:
        warm_up_seconds: before the records that are measured.
        keys: how many different ones the records have.
    """

    rows_per_s: int = 1_000
    warm_up_seconds: int = 30
    seconds: int = 60
    keys: int = 1_000

    @property
    def rows(self) -> int:
        """All records."""
        return self.rows_per_s * (self.warm_up_seconds + self.seconds)


@dataclass
class _Received:
    """The latencies of records in ms by number, as they arrive in a thread."""

    latencies: dict[int, float] = field(default_factory=dict)
    error: BaseException | None = None
    _ended: threading.Event = field(default_factory=threading.Event)

    @contextmanager
    def receiving(self, broker: Broker) -> Iterator[None]:
        """Receives in a thread until the end of the block."""
        thread = threading.Thread(target=self._receive, args=(broker,), name="consumer")
        thread.start()
        try:
            yield
        finally:
            self._ended.set()
            thread.join()

    def wait_for(self, rows: int, run: subprocess.Popen[bytes], seconds: float) -> None:
        """Waits until so many records have arrived."""
        deadline = time.monotonic() + seconds
        while len(self.latencies) < rows:
            assert self.error is None, f"the consumer failed: {self.error}"
            assert run.poll() is None, f"the run ended with {run.returncode}"
            assert time.monotonic() < deadline, f"{len(self.latencies)} of {rows} records arrived in {seconds:.0f} s"
            time.sleep(0.05)

    def _receive(self, broker: Broker) -> None:
        # The default of 500 ms is how long a broker may hold back an answer without records.
        consumer = broker.consumer(_OUTPUT, fetch_wait_max_ms=20)
        try:
            while not self._ended.is_set():
                message = consumer.poll(0.1)
                if message is None:
                    continue
                now = time.monotonic_ns()
                if error := message.error():
                    raise KafkaException(error)
                row = _decode(message.value() or b"")
                self.latencies.setdefault(row.number, (now - row.sent) / 1e6)
        except BaseException as e:
            self.error = e
        finally:
            consumer.close()


def run(folder: Path, size: Size = Size()) -> Path:
    """Measures and writes ``latency.json``."""
    received = _Received()
    with kafka_broker(folder / "broker") as broker:
        broker.create(_INPUT, _OUTPUT)
        with _continuous_run(folder, broker) as process, received.receiving(broker):
            # The first record arrives when Spark has started.
            _send(broker, 1, size, 0)
            received.wait_for(1, process, _STARTS_WITHIN)
            lag = _send(broker, size.rows, size, 1)
            received.wait_for(1 + size.rows, process, _ENDS_WITHIN)
            result = _stop(process, folder / "result.json")
        lost, doubled = _check(broker, 1 + size.rows, size.keys)
    first = 1 + size.warm_up_seconds * size.rows_per_s
    latencies = np.array([latency for number, latency in received.latencies.items() if number >= first])
    p50, p90, p99, largest = np.percentile(latencies, [50, 90, 99, 100]).round(1).tolist()
    figures = {
        "p50_ms": p50,
        "p90_ms": p90,
        "p99_ms": p99,
        "max_ms": largest,
        "rows": len(latencies),
        "rows_per_s": size.rows_per_s,
        "rows_lost": lost,
        "rows_doubled": doubled,
        "rows_per_batch": round((1 + size.rows) / result["batches"], 1),
        "largest_delay_of_producer_ms": round(lag * 1000, 1),
    }
    path = write_result("latency", figures)
    assert (lost, doubled) == (0, 0), figures
    return path


def _send(broker: Broker, rows: int, size: Size, first: int) -> float:
    """Sends records at a constant rate. Returns the largest delay of a record, in seconds."""
    producer = Producer({"bootstrap.servers": broker.address, "linger.ms": 1})
    began, largest = time.monotonic(), 0.0
    for number in range(first, first + rows):
        due = began + (number - first) / size.rows_per_s
        early = due - time.monotonic()
        if early > 0:
            time.sleep(early)
        largest = max(largest, -early)
        row = Sent(number, number % size.keys, time.monotonic_ns())
        producer.produce(_INPUT, _encode(row), partition=number % PARTITIONS)
        producer.poll(0)
    assert producer.flush(_ENDS_WITHIN) == 0, "records were not stored"
    return largest


@contextmanager
def _continuous_run(folder: Path, broker: Broker) -> Iterator[subprocess.Popen[bytes]]:
    """The job, running until it is stopped; it is killed if the block does not stop it."""
    settings = {
        "job.brokers": broker.address,
        "job.input": _INPUT,
        "job.output": _OUTPUT,
        "run.until": "stopped",
        "parallelism": "2",
        "local_dir": str(folder / "local"),
        "spark.conf.spark.jars": ",".join(SPARK_JARS),
    }
    assignments = [word for key, value in settings.items() for word in ("--set", f"{key}={value}")]
    program = [sys.executable, "-m", "stateflow", "run", str(JOB), "--job-root", str(folder / "root"), *assignments]
    command = [*program, "--result-file", str(folder / "result.json")]
    paths = [str(_PROJECT), *filter(None, [os.environ.get("PYTHONPATH")])]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}
    log = folder / "run.log"
    with log.open("wb") as output:
        process = subprocess.Popen(
            command, env=environment, stdout=output, stderr=subprocess.STDOUT, start_new_session=True
        )
    try:
        yield process
    except Exception as e:
        e.add_note(log.read_text(errors="replace")[-4000:])
        raise
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def _stop(process: subprocess.Popen[bytes], result: Path) -> dict[str, int]:
    """Stops the run as its supervisor would, and returns its result."""
    process.send_signal(signal.SIGTERM)
    code = process.wait(_ENDS_WITHIN)
    assert code == 0, f"the run ended with {code}"
    found: dict[str, int] = json.loads(result.read_text())["result"]
    return found


def _check(broker: Broker, rows: int, keys: int) -> tuple[int, int]:
    """Reads the output again from its begin. Returns how many records are lost, and how many there are twice.

    Raises AssertionError if the counts of a key are not 1, 2, 3 and so on.
    """
    found = [_decode(value) for value in broker.committed(_OUTPUT)]
    times = Counter(row.number for row in found)
    lost = sum(1 for number in range(rows) if number not in times)
    assert all(row.key == row.number % keys for row in found), "a record has the key of another one"
    if lost or len(found) != rows:
        return lost, len(found) - len(times)
    counts: dict[int, set[int]] = {}
    for row in found:
        counts.setdefault(row.key, set()).add(row.count)
    sizes = Counter(number % keys for number in range(rows))
    assert all(counts[key] == set(range(1, size + 1)) for key, size in sizes.items()), "a count is wrong"
    return lost, 0
