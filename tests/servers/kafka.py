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

from tests.servers.certificates import Certificate
from tests.servers.running import free_port, running
from tests.support.processes import wait_for

_TIMEOUT = 30.0


@dataclass
class Kafka:
    """A running broker.

    Attributes:
        address: as ``bootstrap_servers``.
        secure_address: the same, of the listener with TLS and a login; empty without one.
    """

    address: str
    secure_address: str = ""

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
        # A producer does not send to a partition that the broker does not list yet.
        wait_for(
            lambda: len(self.admin.list_topics(topic, _TIMEOUT).topics[topic].partitions) == total,
            lambda: f"{total} partitions of {topic}",
        )

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
        errors = []
        for record in records:
            given = record if isinstance(record, Mapping) else {"value": record}
            produced = {"partition": partition, "on_delivery": lambda error, _: errors.append(error), **given}
            producer.produce(topic, **produced)  # type: ignore[arg-type]
        assert producer.flush(_TIMEOUT) == 0 and not any(errors), errors

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
def kafka_broker(folder: Path, tls: Certificate | None = None, password: str = "") -> Iterator[Kafka]:
    """An empty broker; the test is skipped if its JARs are not installed.

    Args:
        folder: of its files.
        tls: its certificate, for a second listener with the protocol SASL_SSL.
        password: of the user *me*, for this listener.
    """
    if not BROKER_JARS.exists():
        pytest.skip("no Kafka is installed: make setup downloads it if Maven Central can be reached")
    folder.mkdir(parents=True, exist_ok=True)
    port, controller, secure = free_port(), free_port(), f"127.0.0.1:{free_port()}" if tls else ""
    login = _login_settings((port, controller), secure, tls, password) if tls else {}
    properties = write_settings(folder, port, controller, login)
    subprocess.run(format_command(properties), check=True, capture_output=True, cwd=folder)
    with running(broker_command(properties), port, folder / "broker.log", folder):
        kafka = Kafka(f"127.0.0.1:{port}", secure)
        kafka.admin.list_topics(timeout=_TIMEOUT)
        yield kafka


def _login_settings(ports: tuple[int, int], secure: str, tls: Certificate, password: str) -> dict[str, str]:
    """Returns settings of a second listener, with TLS and a login.

    Args:
        ports: of the first listener and of the controller.
        secure: address of the second listener.
        tls: its certificate.
        password: of the user *me*.
    """
    first, added = f"PLAINTEXT://127.0.0.1:{ports[0]}", f"SASL_SSL://{secure}"
    return {
        "listeners": f"{first},{added},CONTROLLER://127.0.0.1:{ports[1]}",
        "advertised.listeners": f"{first},{added}",
        "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT,SASL_SSL:SASL_SSL",
        "sasl.enabled.mechanisms": "PLAIN",
        "listener.name.sasl_ssl.plain.sasl.jaas.config": (
            "org.apache.kafka.common.security.plain.PlainLoginModule required "
            f'username="broker" password="none" user_me="{password}";'
        ),
        "ssl.keystore.type": "PEM",
        "ssl.keystore.location": str(tls.key_file),
    }
