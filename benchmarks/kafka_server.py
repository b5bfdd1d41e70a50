"""A Kafka broker for benchmarks: one process on loopback, with the JARs that the set-up downloads."""

from __future__ import annotations

import contextlib
import subprocess
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic
from kafka_broker import BROKER_JARS, CLIENT_JARS, broker_command, format_command, write_settings

from benchmarks.competitors import free_port

PARTITIONS = 2
"""Of each topic: one for each core."""
SPARK_JARS = tuple(sorted(map(str, CLIENT_JARS.glob("*.jar"))))
"""JARs of Spark's Kafka source."""
_JAVA_OPTIONS = ("-Xmx1g",)
_TIMEOUT = 60.0
_MANY = 10_000


@dataclass(frozen=True)
class Broker:
    """A running broker; `address` is its ``bootstrap.servers``."""

    address: str

    def create(self, *topics: str) -> None:
        """Creates topics of `PARTITIONS` partitions."""
        admin = AdminClient({"bootstrap.servers": self.address, "log_level": 3})
        for future in admin.create_topics([NewTopic(topic, PARTITIONS, 1) for topic in topics]).values():
            future.result(_TIMEOUT)

    def send(self, topic: str, values: Iterable[bytes]) -> None:
        """Sends values to the partitions in turn; returns when all are stored."""
        producer = Producer({"bootstrap.servers": self.address, "linger.ms": 20, "batch.size": 1_000_000})
        for number, value in enumerate(values):
            while True:
                try:
                    producer.produce(topic, value, partition=number % PARTITIONS)
                    break
                except BufferError:
                    producer.poll(0.1)
        unsent = producer.flush(_TIMEOUT)
        assert unsent == 0, f"{unsent} records were not stored in {_TIMEOUT:.0f} s"

    def consumer(self, topic: str, **options: str | int | bool) -> Consumer:
        """Returns a consumer of a topic's committed records from the first one; underscores in `options` are dots."""
        given = {name.replace("_", "."): value for name, value in options.items()}
        consumer = Consumer(
            {
                "bootstrap.servers": self.address,
                "group.id": f"benchmark-{topic}",
                "isolation.level": "read_committed",
                "enable.auto.commit": False,
                **given,
            }
        )
        consumer.assign([TopicPartition(topic, number, 0) for number in range(PARTITIONS)])
        return consumer

    def committed(self, topic: str) -> Iterator[bytes]:
        """Yields the values of all committed records of a topic."""
        consumer = self.consumer(topic, enable_partition_eof=True)
        ended: set[int | None] = set()
        deadline = time.monotonic() + _TIMEOUT
        try:
            while len(ended) < PARTITIONS:
                messages = consumer.consume(_MANY, timeout=0.5)
                if messages:
                    deadline = time.monotonic() + _TIMEOUT
                assert time.monotonic() < deadline, f"no record of {topic} was received for {_TIMEOUT:.0f} s"
                for message in messages:
                    error = message.error()
                    if error is None:
                        yield message.value() or b""
                    elif error.code() == KafkaError._PARTITION_EOF:  # noqa: SLF001 - the client's name of the code
                        ended.add(message.partition())
                    else:
                        raise KafkaException(error)
        finally:
            consumer.close()


@contextlib.contextmanager
def kafka_broker(folder: Path) -> Iterator[Broker]:
    """An empty broker with its data in a folder; its process ends with the block."""
    assert BROKER_JARS.exists(), "no Kafka is installed: make setup downloads it if Maven Central can be reached"
    folder.mkdir(parents=True)
    port = free_port()
    properties = write_settings(folder, port, free_port())
    subprocess.run(format_command(properties), check=True, capture_output=True, cwd=folder)
    log = folder / "broker.log"
    with log.open("wb") as output:
        command = broker_command(properties, _JAVA_OPTIONS)
        process = subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT, cwd=folder)
    try:
        broker = Broker(f"127.0.0.1:{port}")
        try:
            AdminClient({"bootstrap.servers": broker.address, "log_level": 0}).list_topics(timeout=_TIMEOUT)
        except KafkaException as e:
            raise AssertionError(f"the broker did not start:\n{log.read_text(errors='replace')[-3000:]}") from e
        yield broker
    finally:
        process.kill()
        process.wait()
