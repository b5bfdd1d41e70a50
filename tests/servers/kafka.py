"""A Kafka broker: one process on loopback in KRaft mode, from the JARs of the set-up."""

from __future__ import annotations

import contextlib
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import pytest
from confluent_kafka import Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewPartitions, NewTopic, OffsetSpec
from kafka_broker import BROKER_JARS, broker_command, format_command, write_settings

from tests.servers.running import free_port, running

_TIMEOUT = 30.0


@dataclass
class Kafka:
    """A running broker.

    Attributes:
        address: as ``bootstrap_servers``.
    """

    address: str

    @cached_property
    def admin(self) -> AdminClient:
        return AdminClient({"bootstrap.servers": self.address})

    def create(self, topic: str, partitions: int = 2, **config: str) -> None:
        """Creates a topic; underscores in `config` are dots."""
        settings = {name.replace("_", "."): value for name, value in config.items()}
        (future,) = self.admin.create_topics([NewTopic(topic, partitions, 1, config=settings)]).values()
        future.result(_TIMEOUT)

    def add_partitions(self, topic: str, total: int) -> None:
        (future,) = self.admin.create_partitions([NewPartitions(topic, total)]).values()
        future.result(_TIMEOUT)

    def delete(self, topic: str) -> None:
        (future,) = self.admin.delete_topics([topic]).values()
        future.result(_TIMEOUT)

    def delete_records(self, topic: str, partition: int, before: int) -> None:
        """Deletes the records of a partition before an offset, as retention does."""
        (future,) = self.admin.delete_records([TopicPartition(topic, partition, before)]).values()
        future.result(_TIMEOUT)

    def send(self, topic: str, *records: bytes | Mapping[str, object] | None, partition: int = 0) -> None:
        """Sends records: values, or keyword arguments of `Producer.produce`; returns when they are stored."""
        producer = Producer({"bootstrap.servers": self.address, "linger.ms": 0})
        for record in records:
            given = record if isinstance(record, Mapping) else {"value": record}
            producer.produce(topic, **{"partition": partition, **given})  # type: ignore[arg-type]
        assert producer.flush(_TIMEOUT) == 0

    def send_aborted(self, topic: str, value: bytes, partition: int = 0) -> None:
        """Sends a record in a transaction that is aborted."""
        producer = Producer({"bootstrap.servers": self.address, "transactional.id": f"aborted-{topic}"})
        producer.init_transactions(_TIMEOUT)
        producer.begin_transaction()
        producer.produce(topic, value, partition=partition)
        producer.flush(_TIMEOUT)
        producer.abort_transaction(_TIMEOUT)

    def ends(self, topic: str, partitions: Sequence[int]) -> list[int]:
        """The offset after the last record of each partition."""
        asked = {TopicPartition(topic, number): OffsetSpec.latest() for number in partitions}
        return [future.result().offset for future in self.admin.list_offsets(asked).values()]


@contextlib.contextmanager
def kafka_broker(folder: Path) -> Iterator[Kafka]:
    """An empty broker; the test is skipped if its JARs are not installed."""
    if not BROKER_JARS.exists():
        pytest.skip("no Kafka is installed: make setup downloads it if Maven Central can be reached")
    folder.mkdir(parents=True, exist_ok=True)
    port = free_port()
    properties = write_settings(folder, port, free_port())
    subprocess.run(format_command(properties), check=True, capture_output=True, cwd=folder)
    with running(broker_command(properties), port, folder / "broker.log", folder):
        kafka = Kafka(f"127.0.0.1:{port}")
        kafka.admin.list_topics(timeout=_TIMEOUT)
        yield kafka
