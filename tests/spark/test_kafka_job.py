"""A job that reads Kafka through Spark, from a real broker, and keeps the newest count of each name by upsert."""

from __future__ import annotations

import base64
import datetime
import io
import json
import os
import signal
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import fastavro
import pytest

from tests.servers.kafka import Kafka, kafka_broker
from tests.servers.listening import certificate, schema_registry
from tests.servers.running import CANARY, files_with, free_port
from tests.spark.kafka_job import KafkaJob
from tests.support import restores

pytestmark = pytest.mark.spark
_slow = pytest.mark.slow(reason="each run is a driver with Spark, which takes seconds")


@pytest.fixture(scope="module")
def kafka(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Kafka]:
    with kafka_broker(tmp_path_factory.mktemp("kafka")) as broker:
        yield broker


@pytest.fixture
def job(tmp_path: Path, kafka: Kafka) -> Iterator[KafkaJob]:
    job = KafkaJob(tmp_path, kafka)
    job.create()
    yield job
    job.close()


@_slow
def test_rows_come_by_partition_then_offset_whichever_order_kafka_lists_partitions_in(job: KafkaJob) -> None:
    """So a replay sees them in the order of the run, and so does a run with more tasks than partitions."""
    job.kafka.add_partitions(job.topic, 4)
    ordered: list[tuple[str, int]] = []
    for splits in ("1", "9"):
        first = len(job.sent)
        for partition in (2, 0, 3, 1):
            job.send(8, partition=partition)
        assert job.finish(job__splits=splits).result["batches"] == 1
        # A stable sort: the records of a partition were sent in order.
        ordered += [(row["name"], row["id"]) for row in sorted(job.sent[first:], key=lambda row: row["partition"])]
    counted = sorted(job.table_rows("counts"), key=lambda row: row["count"])
    for name in {name for name, _ in ordered}:
        assert [row["last"] for row in counted if row["name"] == name] == [n for own, n in ordered if own == name]


@pytest.mark.matrix
@pytest.mark.slow(reason="starts Kafka, and Spark once for each run")
def test_runs_read_each_record_once_also_after_a_kill_and_none_of_an_aborted_transaction(job: KafkaJob) -> None:
    job.send(30)
    job.kafka.send_aborted(job.topic, b'{"id": 99, "name": "a"}')
    job.send(7, partition=1)
    limited = job.finish(source__max_rows_per_batch=10)
    assert limited.result["batches"] >= 4
    assert limited.result["rows_in"] == 37
    assert "[Stage" not in limited.err
    job.check_rows()
    job.send(25, partition=1)
    # Positions and state of the killed run are those before its batch.
    job.reach("batch.reported")
    job.kafka.add_partitions(job.topic, 3)
    job.send(5, partition=2)
    job.finish()
    job.check_rows()


@_slow
def test_metadata_of_a_record_are_columns(job: KafkaJob) -> None:
    at = datetime.datetime(2026, 1, 2, 3, 4, 5, 678000, tzinfo=datetime.UTC)
    value = b'{"id": 1, "name": "a", "price": 2.5, "more": [1]}'
    headers = [("h", b"1"), ("h", b"\xff"), ("null", None)]
    record = {"value": value, "key": "k\u00e9", "headers": headers, "timestamp": int(at.timestamp() * 1000)}
    job.kafka.send(job.topic, {"value": value}, record, partition=1)
    job.finish()
    first, second = sorted(job.table_rows("orders"), key=lambda row: row["offset"])
    assert (first["key"], first["headers"], first["offset"]) == (None, [], 0)
    assert (second["key"], second["partition"], second["offset"], second["topic"]) == ("k\u00e9", 1, 1, job.topic)
    assert datetime.datetime.fromisoformat(second["sent"]) == at
    assert [header["key"] for header in second["headers"]] == ["h", "h", "null"]


BAD = {
    b"{": "JSON", b"[1]": "JSON object", b'{"id": "x", "name": "a"}': "JSON object", b'{"name": "a"}': "id is null",
    b'{"id": 1, "name": null}': "name is null", b"\xff\xfe": "JSON", None: "id is null",
}  # fmt: skip
"""Values that are not orders, each with a part of the reason."""


@_slow
def test_records_that_cannot_be_decoded_end_the_run_with_their_position_or_become_dead_letters(job: KafkaJob) -> None:
    job.send(4)
    job.kafka.send(job.topic, *BAD, partition=0)
    job.send(4)
    job.run().check_error(4, "corrupt-input", topic=job.topic, partition=0, offset=4)
    assert job.table_rows("orders") == []
    ended = job.finish(job__budget=len(BAD))
    assert ended.result["rows_in"] == 8 + len(BAD)
    job.check_rows()
    letters = job.table_rows("letters")
    assert [letter["operator"] for letter in letters] == ["orders"] * len(BAD)
    assert {letter["where"] for letter in letters} == {""}
    records = {(record := json.loads(letter["row"]))["offset"]: (record, letter["error"]) for letter in letters}
    assert sorted(records) == list(range(4, 4 + len(BAD)))
    for offset, (value, reason) in enumerate(BAD.items(), 4):
        record, error = records[offset]
        assert (record["topic"], record["partition"]) == (job.topic, 0)
        assert reason in error
        if value is not None and value.isascii():
            assert record["value"] == value.decode()


@_slow
def test_lost_records_end_the_run_with_the_exact_gap_or_are_skipped(job: KafkaJob) -> None:
    job.send(10)
    job.finish()
    job.send(20)
    job.kafka.delete_records(job.topic, 0, 17)
    ended = job.run()
    ended.check_error(4, "input-lost")
    lost = [f"{job.topic}-0: 7 records [10, 17)"]
    assert ended.failure["facts"]["lost"] == lost
    job.finish(job__on_data_loss="continue")
    del job.sent[10:17]
    assert sorted(row["id"] for row in job.table_rows("orders")) == [order["id"] for order in job.sent]


DAY = 86_400.0


@_slow
def test_the_watermark_is_the_lowest_of_the_partitions(job: KafkaJob) -> None:
    timed = {"job__idle_s": DAY, "job__budget": 5}
    job.send_at(0, 1000, 900)
    job.kafka.send(job.topic, {"value": b"{", "timestamp": 5_000_000})
    job.finish(**timed)
    assert job.watermarks() == (None, {"0": 999_999, "1": None})
    job.send_at(1, 500)
    job.finish(**timed)
    assert job.watermarks() == (499_999, {"0": 999_999, "1": 499_999})
    job.send_at(0, 2000)
    job.send_at(1, 700)
    job.finish(**timed)
    assert job.watermarks() == (699_999, {"0": 1_999_999, "1": 699_999})
    job.check_rows()


@_slow
def test_topics_and_partitions_that_are_added_while_a_run_waits_for_input_are_read(job: KafkaJob) -> None:
    job.send(5)
    job.send(4, partition=1)
    start = json.dumps({job.topic: {"0": 2, "1": 1}})
    given: dict[str, Any] = {"job__topics": "", "job__pattern": f"{job.topic}.*", "job__start": start}
    del job.sent[5], job.sent[:2]
    run = job.start(run__until="stopped", requests__interval="100ms", **given)
    job.wait_for_rows(run)
    job.kafka.add_partitions(job.topic, 3)
    job.sent.extend(job.numbered(100, partition=2))
    job.wait_for_rows(run)
    job.create(f"{job.topic}-more")
    job.sent.extend(job.numbered(200, topic=f"{job.topic}-more"))
    job.wait_for_rows(run)
    os.kill(run.pid, signal.SIGTERM)
    run.wait().check()
    job.check_rows()


@_slow
def test_a_restore_sets_positions_by_time_and_by_offset(job: KafkaJob) -> None:
    job.send(10)
    job.finish()
    ends = json.dumps({job.topic: {"0": 8, "1": 0}})
    for start, expected in ((ends, 2), ("earliest", 10), ("latest", 0), ("timestamp:2020-01-01", 10)):
        before = len(job.table_rows("orders"))
        restores.go_back(job, "latest", "--source", f"orders={start}")
        job.finish()
        assert len(job.table_rows("orders")) - before == expected, start
    restores.ask(job, "latest", "--source", "orders=position:x").check_error(2, "config", uid="orders")


_FIELDS: list[dict[str, Any]] = [{"name": "id", "type": "long"}, {"name": "name", "type": "string"}]
_PRICE: dict[str, Any] = {"name": "price", "type": ["null", "double"]}


def _wire(number: int, fields: Sequence[dict[str, Any]], order: Mapping[str, Any]) -> bytes:
    """An order in the wire format of Confluent."""
    stream = io.BytesIO(b"\0" + number.to_bytes(4, "big"))
    stream.seek(5)
    fastavro.schemaless_writer(stream, {"type": "record", "name": "Order", "fields": list(fields)}, order)
    return stream.getvalue()


@_slow
def test_values_in_avro_are_read_with_the_schemas_of_a_registry(job: KafkaJob, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("REGISTRY_PASSWORD", CANARY)
    older, newer = [_FIELDS[1], _FIELDS[0]], [*_FIELDS, _PRICE]
    orders: list[dict[str, Any]] = [{"id": n, "name": f"n{n % 3}", "price": None} for n in range(20)]
    orders += [{"id": n, "name": f"n{n % 3}", "price": n / 4} for n in range(20, 30)]
    job.kafka.send(job.topic, *[_wire(3, older, order) for order in orders[:20]])
    job.kafka.send(job.topic, *[_wire(4, newer, order) for order in orders[20:]], partition=1)
    job.kafka.send(job.topic, _wire(5, newer, orders[0]), b"{}", _wire(4, newer, orders[0])[:-1], partition=1)
    job.sent = [{**order, "topic": job.topic, "partition": int(order["id"] >= 20)} for order in orders]
    with schema_registry() as registry:
        settings = {"job__registry": registry.address, "job__budget": 3}
        registry.register(4, {"type": "record", "name": "Order", "fields": newer})
        # A registry that does not answer is not a reason to reject records.
        job.run(job__registry=f"http://127.0.0.1:{free_port()}", job__budget=3).check_error(5, "storage")
        registry.register(3, {"type": "record", "name": "Order", "fields": older})
        job.finish(**settings)
        assert {login for _, login in registry.asked} == {"Basic " + base64.b64encode(f"me:{CANARY}".encode()).decode()}
    job.check_rows()
    letters = [json.loads(letter["row"]) for letter in job.table_rows("letters")]
    rejected = sorted((letter["partition"], letter["offset"]) for letter in letters)
    assert rejected == [(1, 10), (1, 11), (1, 12)]
    assert files_with(CANARY, job.folder) == []


@_slow
def test_the_login_of_a_broker_with_tls_is_in_no_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # Not the secret that no test writes to a file: the broker has it in one.
    password = "password-of-the-broker"
    monkeypatch.setenv("KAFKA_PASSWORD", password)
    (tmp_path / "broker").mkdir()
    tls = certificate(tmp_path / "broker")
    with kafka_broker(tmp_path / "broker", tls, password) as broker:
        settings = {"job__brokers": broker.secure_address, "job__ca_file": tls.ca_file}
        (tmp_path / "job").mkdir()
        job = KafkaJob(tmp_path / "job", broker, **settings)
        try:
            job.create()
            job.send(20)
            shown = [job.finish()]
            job.check_rows()
            shown += [job.command("status"), job.command("status", "--json")]
            shown.append(job.command("explain", job.job_file, "--no-spark", with_job=True))
            monkeypatch.setenv("KAFKA_PASSWORD", wrong := password + "-of-last-year")
            shown.append(refused := job.run())
            refused.check_error(5, "storage")
            assert [ended for ended in shown if password in ended.out + ended.err] == []
            assert files_with(password, job.folder) == files_with(wrong, job.folder) == []
        finally:
            job.close()


@_slow
def test_the_backlog_is_measured_without_spark_after_a_run(job: KafkaJob) -> None:
    job.send_at(0, *range(1_000, 1_008))
    assert job.finish().result["backlog"]["rows"] == 0
    job.send_at(1, *range(2_000, 2_005))
    shown = job.command("status", "--job", job.job_file, "--json", with_job=True)
    backlog = shown.check().document["backlog"]
    (source,) = backlog["sources"]
    assert (source["rows"], source["unknown"]) == (5, None)
    assert datetime.datetime.fromisoformat(source["oldest_at"]).timestamp() == 2_000
    assert backlog["catch_up_ms"] == pytest.approx(5000 / backlog["rows_per_second"], rel=0.01)
