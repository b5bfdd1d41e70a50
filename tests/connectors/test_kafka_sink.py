"""The Kafka sink against a broker: consumers of committed records see each row once."""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any
from uuid import uuid4

import msgspec
import pyarrow as pa
import pytest
from confluent_kafka import KafkaError, KafkaException, Producer
from deltalake import DeltaTable

from stateflow.api.schema import RowSchema
from stateflow.api.sink import Sink, SinkContext, SinkTable, Writing
from stateflow.connectors.kafka.client import Connection
from stateflow.connectors.kafka.sink import KafkaSink, NotAnswered, Transactions, within_timeout
from stateflow.errors import SinkDiverged, SinkRefused
from stateflow.state.handles import Committable
from stateflow.storage import MemoryStorage
from stateflow.testing.conformance.sink import SinkConformance
from stateflow.testing.conformance.sink_table import TableUnderTest
from tests.servers.kafka import Kafka, kafka_broker, kafka_cluster
from tests.support.job_fixture import KILLED, JobFixture, events
from tests.support.restores import begin, execute, go_back, plan
from tests.support.table_jobs import committed

_ADDRESS = "TEST_KAFKA_SINK"
"""Environment variable with the broker's address, for processes that the tests start."""


@pytest.fixture(scope="module")
def kafka(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Kafka]:
    with kafka_broker(tmp_path_factory.mktemp("broker")) as broker, pytest.MonkeyPatch.context() as patch:
        patch.setenv(_ADDRESS, broker.address)
        yield broker


@pytest.fixture
def topic(kafka: Kafka) -> str:
    name = f"t-{uuid4().hex[:8]}"
    for each in (name, f"{name}_shadow"):
        kafka.create(each)
    return name


def kafka_sink(address: str) -> Sink:
    return KafkaSink(os.environ[_ADDRESS], topic=address, key="id")


@pytest.mark.slow(reason="starts a Kafka broker")
class TestContract(SinkConformance):
    """The contract of sinks; one without a token yet may also have lost it."""

    factory = staticmethod(kafka_sink)
    checks_columns = False
    rewinds = False
    sweeps = False
    steps = 4

    @pytest.fixture
    def address(self, topic: str) -> str:
        return topic

    def read(self, sink: Sink) -> Iterable[Mapping[str, Any]]:
        name = sink.location.split()[1]
        return [json.loads(m.value() or b"") for m in committed(os.environ[_ADDRESS], name)]

    def test_each_sink_of_a_table_has_its_own_token(self, table: TableUnderTest) -> None:
        other = table.with_uid("other")
        table.put(5, [1])
        assert other.open().token is None
        other.put(3, [2])
        table.put(6, [3])
        assert (table.open().token, other.open().token) == (6, 3)
        assert table.ids() == [1, 2, 3]


class _Job(JobFixture):
    job_name = "kafka_events"

    @property
    def job_file(self) -> str:
        return str(Path(__file__).with_name("kafka_events.py"))

    def deliver(self, rows: int) -> None:
        (self.folder / "events.jsonl").write_text("".join(json.dumps(e) + "\n" for e in events(rows)))


@pytest.fixture
def job(kafka: Kafka, topic: str, tmp_path: Path) -> Iterator[_Job]:
    made = _Job(tmp_path / "job", {"job__topic": topic, "job__brokers": kafka.address, "parallelism": 2})
    yield made
    made.end_all()


def numbers(job: _Job) -> list[int]:
    messages = committed(job.settings["job__brokers"], str(job.settings["job__topic"]))  # type: ignore[arg-type]
    return sorted(json.loads(m.value() or b"")["number"] for m in messages)


@pytest.mark.long(reason="runs a job over Kafka several times")
def test_a_restore_is_refused_in_the_plan_unless_the_topic_is_kept(job: _Job) -> None:
    job.deliver(20)
    job.finish()
    checkpoint = str(job.commits[0].seq)
    plan = ("restore", job.job_file, "--plan", checkpoint)
    refused = job.command(*plan, "--out", str(job.folder / "plan"), with_job=True)
    assert refused.error.code == "sink-refused"
    job.command(*plan, "--keep-table", "out", "--out", str(job.folder / "plan"), with_job=True).check()


@pytest.mark.long(reason="runs a job over Kafka several times")
def test_a_restore_keeps_the_topic_and_rewinds_the_table_of_the_same_rows(job: _Job) -> None:
    job.settings = {**job.settings, "job__copy": "yes", "checkpoints__retained": 100}
    job.deliver(30)
    job.finish()
    planned = plan(job, str(job.commit_at(10).seq), "--keep-table", "out")
    assert {s["uid"]: s["mode"] for s in planned["sinks"]} == {"copy": "restore", "out": "keep"}
    assert planned["checkpoints_after"] == 2
    assert execute(job, failpoint="rewind.table:2").code == KILLED
    job.deliver(40)
    job.finish()
    assert numbers(job) == sorted([*range(40), *range(10, 30)])
    assert sorted(DeltaTable(job.table("copy")).to_pyarrow_table()["number"].to_pylist()) == list(range(40))


@pytest.mark.slow(reason="several drivers in processes; the restore that is refused and kept is fast")
def test_a_restore_that_a_topic_blocks_is_replaced_by_one_that_keeps_the_topic(job: _Job) -> None:
    """Nothing was to be removed from the topic; then a paused driver published to it."""
    job.deliver(40)
    paused = job.start("commit.after:3:stop").wait_stopped()
    target = str(job.commit_at(20).seq)
    plan(job, target)
    restoring = begin(job, failpoint="rewind.table:1:stop").wait_stopped()
    assert paused.resume().wait().error.code == "fenced"
    assert restoring.resume().wait().error.code == "sink-refused"
    assert job.run().error.code == "sink-refused"
    go_back(job, "latest", "--keep-table", "out")
    job.finish()
    assert numbers(job) == sorted([*range(40), *range(20, 30)])


def staged(table: SinkTable, rows: int = 3, text: str = "x", ordinal: int = 1) -> list[Committable]:
    """Staged rows of a handle's sink."""
    context: SinkContext = table.context  # type: ignore[attr-defined]
    writer = KafkaSink("unused:1", topic="unused").writer(context, Writing(1, ordinal, 0, f"a{uuid4().hex}"))
    columns = [pa.array(range(rows)), pa.array([text] * rows)]
    writer.write(pa.record_batch(columns, schema=context.schema.arrow))
    return writer.close()


class _Row(msgspec.Struct):
    number: int
    text: str


@pytest.fixture
def context() -> SinkContext:
    return SinkContext(uuid4().hex, "out", RowSchema.of(_Row), MemoryStorage("memory://kafka-sink"))


@pytest.fixture
def sink(kafka: Kafka, topic: str) -> KafkaSink:
    return KafkaSink(kafka.address, topic=topic)


@pytest.mark.long(reason="waits until Kafka has aborted the transaction")
def test_a_lost_response_of_a_commit_is_resolved_by_the_token(
    kafka: Kafka, topic: str, sink: KafkaSink, context: SinkContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The transaction is committed, but the client reports a timeout that cannot be retried."""

    class Losing(Producer):
        def commit_transaction(self, *timeout: float) -> None:
            super().commit_transaction(*timeout)
            raise KafkaException(KafkaError(KafkaError._TIMED_OUT, "lost", False, False, False))

    with monkeypatch.context() as patch:
        patch.setattr("confluent_kafka.Producer", Losing)
        table = sink.open_table(context)
        assert table.commit(5, staged(table)) is None
    assert sink.open_table(context).token == 5
    assert len(committed(kafka.address, topic)) == 3
    table = sink.open_table(context)
    assert table.commit(6, staged(table)) == 6
    assert len(committed(kafka.address, topic)) == 6


@pytest.mark.long(reason="a broker fences and settles transactions")
def test_records_of_a_key_keep_the_order_of_their_rows(kafka: Kafka, topic: str, context: SinkContext) -> None:
    table = KafkaSink(kafka.address, topic=topic, key="text").open_table(context)
    assert table.commit(1, staged(table, rows=5000)) == 1
    assert [json.loads(m.value() or b"")["number"] for m in committed(kafka.address, topic)] == [*range(5000)]


@pytest.mark.long(reason="a broker fences and settles transactions")
def test_a_driver_that_another_one_overtook_publishes_nothing(
    kafka: Kafka, topic: str, sink: KafkaSink, context: SinkContext
) -> None:
    slow = sink.open_table(context)
    assert slow.commit(1, staged(slow)) == 1
    slow = sink.open_table(context)
    newer = KafkaSink(kafka.address, topic=topic)
    table = newer.open_table(context)
    assert table.commit(2, staged(table, rows=4)) == 2
    assert slow.commit(2, staged(slow)) is None
    assert len(committed(kafka.address, topic)) == 7
    assert sink.open_table(context).token == 2


@pytest.mark.long(reason="waits for Kafka's transactions")
def test_a_row_that_is_too_large_is_named_and_nothing_of_its_checkpoint_is_published(
    kafka: Kafka, sink: KafkaSink, context: SinkContext, topic: str
) -> None:
    table = sink.open_table(context)
    files = [*staged(table), *staged(table, rows=1, text="x" * 1_200_000)]
    with pytest.raises(SinkRefused) as caught:
        table.commit(1, files)
    assert (caught.value.facts["row_bytes"], caught.value.facts["topic"]) == (1_200_022, topic)
    assert (sink.open_table(context).token, committed(kafka.address, topic)) == (None, [])
    table = sink.open_table(context)
    assert table.commit(1, files[:1]) == 1
    assert len(committed(kafka.address, topic)) == 3


@pytest.mark.long(reason="waits for Kafka's transactions")
def test_a_missing_token_lets_only_new_output_be_published(
    kafka: Kafka, sink: KafkaSink, context: SinkContext, topic: str
) -> None:
    table = sink.open_table(context)
    assert table.commit(1, staged(table)) == 1
    delete_group(kafka, context)
    table = KafkaSink(kafka.address, topic=topic).open_table(context)
    assert table.token is None
    with pytest.raises(SinkRefused):
        table.plan_rewind(5)
    old = [msgspec.structs.replace(c, stats="2020-01-01T00:00:00+00:00") for c in staged(table)]
    for files in (old, [msgspec.structs.replace(c, stats="") for c in old]):
        with pytest.raises(SinkDiverged):
            table.commit(2, files)
    assert table.commit(2, staged(table)) == 2
    assert len(committed(kafka.address, topic)) == 6


def delete_group(kafka: Kafka, context: SinkContext) -> None:
    """Removes the group with the token, as Kafka does after the retention of offsets."""
    (deleted,) = kafka.admin.delete_consumer_groups([f"stateflow-{context.application}"]).values()
    deleted.result(30)


def test_topics_that_do_not_fit_are_refused(kafka: Kafka, sink: KafkaSink, context: SinkContext) -> None:
    with pytest.raises(SinkRefused):
        KafkaSink(kafka.address, topic="missing").check(context)
    with pytest.raises(SinkDiverged):
        KafkaSink(kafka.address, topic="missing").open_table(context)
    compacted = f"c-{uuid4().hex[:8]}"
    kafka.create(compacted, cleanup_policy="compact")
    with pytest.raises(SinkRefused):
        KafkaSink(kafka.address, topic=compacted).check(context)
    assert KafkaSink(kafka.address, topic=compacted, key="number").check(context)


@pytest.mark.long(reason="a broker fences and settles transactions")
def test_of_two_handles_one_commits(kafka: Kafka, sink: KafkaSink, context: SinkContext, topic: str) -> None:
    first, second = sink.open_table(context), sink.open_table(context)
    files = staged(first)
    assert (first.commit(1, files), second.commit(1, files)) == (1, None)
    assert len(committed(kafka.address, topic)) == 3


def test_a_topic_that_was_created_again_is_another_table(kafka: Kafka, sink: KafkaSink, context: SinkContext) -> None:
    name = f"d-{uuid4().hex[:8]}"
    ids = set()
    for _ in range(2):
        kafka.create(name)
        ids.add(KafkaSink(kafka.address, topic=name).check(context))
        kafka.delete(name)
    assert len(ids) == 2


def test_a_call_of_the_client_that_does_not_return_is_given_up() -> None:
    returned = threading.Event()
    with pytest.raises(NotAnswered):
        within_timeout(returned.wait, 0.05)
    returned.set()


# -- another broker becomes responsible for a group -------------------------------------------------------------------

_GROUPS = 6
"""So many that both brokers have some of them."""


@pytest.mark.slow(reason="starts a Kafka broker")
def test_a_token_is_read_and_committed_after_its_group_has_moved_to_another_broker(tmp_path: Path) -> None:
    with kafka_cluster(tmp_path, brokers=2) as cluster:
        cluster.create("t")
        connection = Connection(cluster.address, {})
        sinks = [Transactions(connection, f"group-{n}", "t", {}) for n in range(_GROUPS)]
        assert [sink.commit(sink.read_token(), 1, ()) for sink in sinks] == [True] * _GROUPS
        cluster.nodes[1].kill()
        cluster.wait_led(by_second=False)
        assert [sink.read_token() for sink in sinks] == [1] * _GROUPS
        cluster.start()
        cluster.wait_led(by_second=True)
        assert [sink.read_token() for sink in sinks] == [1] * _GROUPS
        for sink in sinks:
            # As the driver: a producer whose call does not return is replaced.
            while not sink.commit(1, 2, ()):
                assert sink.read_token() == 1
        assert [sink.read_token() for sink in sinks] == [2] * _GROUPS
