"""The driver's client of Kafka: how it connects, asks for partitions and offsets, and describes topics."""

from __future__ import annotations

import json
import logging
import os
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import cached_property
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from stateflow.api.datasets import Dataset
from stateflow.clock import SystemClock, epoch_milliseconds
from stateflow.errors import (
    ConfigError,
    EnvironmentUnsupported,
    JobDefinitionError,
    SinkRefused,
    StateflowError,
    StorageError,
)
from stateflow.types.decoders import json_decoder

if TYPE_CHECKING:
    from confluent_kafka import Consumer, KafkaError
    from confluent_kafka.admin import AdminClient, OffsetSpec

log = logging.getLogger(__name__)


_PROTOCOLS = ("SSL", "SASL_PLAINTEXT", "SASL_SSL")
_LOGIN_MODULES = {
    "PLAIN": "org.apache.kafka.common.security.plain.PlainLoginModule",
    "SCRAM-SHA-256": "org.apache.kafka.common.security.scram.ScramLoginModule",
    "SCRAM-SHA-512": "org.apache.kafka.common.security.scram.ScramLoginModule",
}


@dataclass(frozen=True)
class KafkaSecurity:
    """TLS and login of a connection to Kafka. No `repr`, log, plan or stored file contains any of it.

    Read secrets from the environment, as in ``password=os.environ["KAFKA_PASSWORD"]``, and not from the job file.

    Args:
        protocol: ``SSL``, ``SASL_PLAINTEXT`` or ``SASL_SSL``.
        mechanism: for SASL, ``PLAIN``, ``SCRAM-SHA-256`` or ``SCRAM-SHA-512``.
        username: for SASL.
        password: for SASL.
        ca_file: PEM file with the certificates of trusted authorities, at the same path on the driver and on all
            executors; by default the operating system's for the driver, and Java's for Spark.
        key_file: PEM file with the client's certificate and its unencrypted private key in PKCS #8, for mutual TLS; at
            the same path everywhere.
        java_options: further options of Kafka's Java client, such as for OAuth or Kerberos.
        client_options: the same for librdkafka.

    Raises:
        JobDefinitionError: protocol and login do not fit, or a file does not exist.
    """

    protocol: str
    mechanism: str = field(default="", repr=False)
    username: str = field(default="", repr=False)
    password: str = field(default="", repr=False)
    ca_file: str | Path = field(default="", repr=False)
    key_file: str | Path = field(default="", repr=False)
    java_options: Mapping[str, str] = field(default_factory=dict, repr=False)
    client_options: Mapping[str, str] = field(default_factory=dict, repr=False)

    def __post_init__(self) -> None:
        if self.protocol not in _PROTOCOLS:
            raise JobDefinitionError(
                "the security protocol of a Kafka connection is not supported",
                hint=f"use {', '.join(_PROTOCOLS)}",
                protocol=self.protocol,
            )
        if self.mechanism and self.mechanism not in _LOGIN_MODULES:
            raise JobDefinitionError(
                "the login of a Kafka connection is not supported",
                hint=f"use {', '.join(_LOGIN_MODULES)}; or give java_options and client_options",
                mechanism=self.mechanism,
            )
        has_login = bool(self.mechanism and self.username and self.password)
        if self.protocol.startswith("SASL") != has_login and not self.java_options:
            raise JobDefinitionError(
                "the login of a Kafka connection does not match its protocol",
                hint="SASL needs mechanism, username and password, and SSL takes none of them",
                protocol=self.protocol,
            )
        for name, path in (("ca_file", self.ca_file), ("key_file", self.key_file)):
            if path and not os.path.isfile(path):
                raise JobDefinitionError(
                    "a file of a Kafka connection does not exist",
                    hint="give a PEM file that exists on the driver and on all executors",
                    argument=name,
                    path=str(path),
                )

    def for_java(self) -> dict[str, str]:
        """Returns the options of Kafka's Java client."""
        options = {"security.protocol": self.protocol}
        if self.mechanism:
            login = f'username="{_escaped(self.username)}" password="{_escaped(self.password)}"'
            options["sasl.mechanism"] = self.mechanism
            options["sasl.jaas.config"] = f"{_LOGIN_MODULES[self.mechanism]} required {login};"
        if self.ca_file:
            options |= {"ssl.truststore.type": "PEM", "ssl.truststore.location": os.path.abspath(self.ca_file)}
        if self.key_file:
            options |= {"ssl.keystore.type": "PEM", "ssl.keystore.location": os.path.abspath(self.key_file)}
        return {**options, **self.java_options}

    def for_client(self) -> dict[str, str]:
        """Returns the options of librdkafka."""
        options = {"security.protocol": self.protocol}
        if self.mechanism:
            login = {"sasl.username": self.username, "sasl.password": self.password}
            options |= {"sasl.mechanism": self.mechanism, **login}
        if self.ca_file:
            options["ssl.ca.location"] = str(self.ca_file)
        if self.key_file:
            options |= {"ssl.certificate.location": str(self.key_file), "ssl.key.location": str(self.key_file)}
        return {**options, **self.client_options}


def _escaped(text: str) -> str:
    """Returns a value for a quoted string of a JAAS configuration."""
    return text.replace("\\", "\\\\").replace('"', '\\"')


TIMEOUT_SECONDS = 30.0
_READ_AT_ONCE = 100
"""Partitions of which one record each is read together: a broker returns up to 64 KiB of each."""
_clock = SystemClock()


KEEP_BROKERS = {"metadata.recovery.strategy": "none"}
"""Option of librdkafka. By default, version 2.16 replaces its connections when none is left, and may then neither
answer a call of a transaction nor observe its timeout."""


_BROKER = re.compile(r"([A-Za-z_]+://)?(\[[0-9A-Fa-f:.%]+\]|[0-9A-Za-z._-]+):[0-9]{1,5}")


def check_brokers(bootstrap_servers: str) -> str:
    """Returns the addresses of brokers. Raises ConfigError unless each has a host and a port.

    The clients of Java and C refuse other texts late and differently: an empty one after minutes, as if no broker
    answered.
    """
    wrong = [part.strip() for part in bootstrap_servers.split(",") if not _BROKER.fullmatch(part.strip())]
    if wrong:
        raise ConfigError(
            "an address of a Kafka broker is empty, or has no host or no port",
            hint="pass HOST:PORT, several separated by commas; a variable or parameter that is not set is empty",
            bootstrap_servers=bootstrap_servers,
        )
    return bootstrap_servers


@dataclass(frozen=True)
class Topics:
    """The topics that a source reads: by name, or all whose whole name matches a regular expression."""

    names: tuple[str, ...] = ()
    pattern: str = ""

    def __str__(self) -> str:
        return f"pattern {self.pattern}" if self.pattern else ",".join(self.names)

    def matches(self, topic: str) -> bool:
        """Returns whether the source reads a topic."""
        return bool(re.fullmatch(self.pattern, topic)) if self.pattern else topic in self.names


class KafkaClient:
    """Answers questions about the offsets of one Kafka cluster.

    Args:
        bootstrap_servers: addresses of brokers, separated by commas.
        options: further options of librdkafka.

    Raises:
        EnvironmentUnsupported: its package is not installed.
    """

    def __init__(self, bootstrap_servers: str, options: Mapping[str, str]) -> None:
        if find_spec("confluent_kafka") is None:
            raise EnvironmentUnsupported(
                "offsets in Kafka cannot be read without confluent-kafka",
                hint="install it on the driver, and in Airflow for plans: pip install 'stateflow[kafka]'",
            )
        from confluent_kafka.admin import AdminClient

        self._address = bootstrap_servers
        self._options = options
        # With a logger, because librdkafka would otherwise print to standard error.
        self._admin = AdminClient({**KEEP_BROKERS, "bootstrap.servers": bootstrap_servers, **options}, logger=log)

    def partitions(self, topics: Topics) -> list[Partition]:
        """Returns the existing partitions of topics.

        Raises:
            StorageError: no broker answered.
            ConfigError: a topic that was named does not exist.
        """
        found = [partition for partition in self._listed() if topics.matches(partition[0])]
        missing = sorted(set(topics.names) - {name for name, _ in found})
        if missing:
            raise ConfigError(
                "a topic does not exist",
                hint="create it, or correct its name; a pattern may match no topic yet",
                topics=missing,
                brokers=self._address,
            )
        return sorted(found)

    def existing(self, partitions: Collection[Partition]) -> list[Partition]:
        """Returns those of the partitions that exist. Raises StorageError."""
        return sorted(set(self._listed()) & set(partitions))

    def earliest(self, partitions: Sequence[Partition]) -> dict[Partition, int]:
        """Returns the first offset of each partition. Raises StorageError."""
        from confluent_kafka.admin import OffsetSpec

        return self._offsets(partitions, OffsetSpec.earliest())

    def ends(self, partitions: Sequence[Partition], *, committed: bool = True) -> dict[Partition, int]:
        """Returns the offset after the last record of each partition. Raises StorageError.

        Args:
            committed: whether records of open transactions, and what follows them, do not count.
        """
        from confluent_kafka.admin import OffsetSpec

        return self._offsets(partitions, OffsetSpec.latest(), committed=committed)

    def at(self, partitions: Sequence[Partition], time: datetime) -> dict[Partition, int]:
        """Returns the offset of the first record of each partition that is not older; its end if there is none.

        Raises StorageError.
        """
        from confluent_kafka.admin import OffsetSpec

        found = self._offsets(partitions, OffsetSpec.for_timestamp(epoch_milliseconds(time)))
        later = [partition for partition, offset in found.items() if offset < 0]
        return {**found, **(self.ends(later) if later else {})}

    def oldest_time(self, offsets: Offsets, *, committed: bool, seconds: float) -> tuple[datetime | None, bool]:
        """Returns the earliest timestamp of the first records after offsets, and whether all partitions answered.

        Reads one record of each partition.

        Args:
            offsets: one offset per partition, with a record at or after it.
            committed: as for `ends`.
            seconds: how long all of it may take.

        Raises StorageError.
        """
        from confluent_kafka import Consumer

        isolation = "read_committed" if committed else "read_uncommitted"
        # A group is required, and never joined: partitions are assigned, and no offset is committed.
        own = {"group.id": "stateflow-backlog", "enable.auto.commit": False, "isolation.level": isolation}
        limits = {"fetch.message.max.bytes": 1 << 16, "fetch.wait.max.ms": 100, "enable.partition.eof": True}
        given = {**KEEP_BROKERS, "bootstrap.servers": self._address, **self._options, **own, **limits}
        until, found = _clock.monotonic() + seconds, list[datetime]()
        with self._translate_errors():
            consumer = Consumer(given, logger=log)
            try:
                ordered = sorted(offsets.items())
                for at in range(0, len(ordered), _READ_AT_ONCE):
                    times = self._first_times(consumer, dict(ordered[at : at + _READ_AT_ONCE]), until)
                    if times is None:
                        return None, False
                    found += times
            finally:
                consumer.close()
        return min(found, default=None), True

    def _first_times(self, consumer: Consumer, offsets: Offsets, until: float) -> list[datetime] | None:
        """Returns the timestamps of the first records of partitions; None if not all answered in time."""
        from confluent_kafka import KafkaException, TopicPartition

        consumer.assign([TopicPartition(topic, number, offset) for (topic, number), offset in offsets.items()])
        missing, found = set(offsets), list[datetime]()
        while missing:
            if (left := until - _clock.monotonic()) <= 0:
                return None
            for message in consumer.consume(len(missing), min(left, 0.2)):
                error = message.error()
                if error is not None and error.name() != "_PARTITION_EOF":
                    raise KafkaException(error)
                partition = (str(message.topic()), int(message.partition() or 0))
                if partition not in missing:
                    continue
                missing.discard(partition)
                consumer.incremental_unassign([TopicPartition(*partition)])
                if error is None and message.timestamp()[0]:
                    found.append(datetime.fromtimestamp(message.timestamp()[1] / 1000, UTC))
        return found

    def _listed(self) -> list[Partition]:
        with self._translate_errors():
            topics = self._admin.list_topics(timeout=TIMEOUT_SECONDS).topics
        return [(name, number) for name, topic in topics.items() for number in topic.partitions]

    def _offsets(
        self, partitions: Sequence[Partition], wanted: OffsetSpec, *, committed: bool = True
    ) -> dict[Partition, int]:
        from confluent_kafka import IsolationLevel, TopicPartition

        if not partitions:
            return {}
        with self._translate_errors():
            asked = {TopicPartition(topic, number): wanted for topic, number in partitions}
            isolation = IsolationLevel.READ_COMMITTED if committed else IsolationLevel.READ_UNCOMMITTED
            futures = self._admin.list_offsets(asked, isolation_level=isolation, request_timeout=TIMEOUT_SECONDS)
            return {(each.topic, each.partition): future.result().offset for each, future in futures.items()}

    @contextmanager
    def _translate_errors(self) -> Iterator[None]:
        from confluent_kafka import KafkaException

        try:
            yield
        except KafkaException as e:
            raise StorageError(
                "Kafka did not respond to a request for offsets",
                hint="check the addresses, the network and the login; a new run continues from the last checkpoint",
                brokers=self._address,
                reason=str(e)[:500],
            ) from e


Partition = tuple[str, int]
"""Topic and number of a partition."""
Offsets = Mapping[Partition, int]
"""The offset of the next record, by partition."""


_decoder = json_decoder(dict[str, dict[str, int]])


def parse_offsets(text: str) -> dict[Partition, int]:
    """Returns the offsets in a line of Spark's offset log. Raises ValueError if it is not a position in Kafka."""
    try:
        topics = _decoder.decode(text)
    except (msgspec.DecodeError, RecursionError) as e:
        raise ValueError(f"not of the form {{topic: {{partition: offset}}}}: {e}") from e
    found = {}
    for topic, partitions in topics.items():
        for number, offset in partitions.items():
            if not (number.isascii() and number.isdigit()) or offset < 0:
                raise ValueError(f"partition {number!r} of topic {topic!r} has the offset {offset}")
            found[topic, int(number)] = offset
    return found


def format_offsets(offsets: Offsets) -> str:
    """Returns offsets as Spark writes them."""
    topics: dict[str, dict[str, int]] = {}
    for (topic, number), offset in sorted(offsets.items()):
        topics.setdefault(topic, {})[str(number)] = offset
    return json.dumps(topics, separators=(",", ":"))


@dataclass(frozen=True)
class Connection:
    """How the driver connects to a cluster.

    Attributes:
        bootstrap_servers: addresses of brokers.
        client: further options of librdkafka, with secrets.
    """

    bootstrap_servers: str
    client: Mapping[str, str] = field(repr=False)

    @contextmanager
    def translate_errors(self) -> Iterator[None]:
        """Raises StorageError for an error of the client."""
        from confluent_kafka import KafkaException

        try:
            yield
        except KafkaException as e:
            raise self.error(e.args[0]) from e

    def error(self, error: KafkaError) -> StateflowError:
        """Returns the error to raise for one of the client."""
        if error.name() == TOO_LARGE:
            return self.too_large(reason=error.str())
        if error.name() in _REFUSED:
            return SinkRefused(
                "Kafka does not allow the sink to write",
                hint="check the topic, and the rights on the topic, the group and the transactional id",
                brokers=self.bootstrap_servers,
                reason=error.str(),
            )
        return StorageError(
            "records could not be written to Kafka, or a token could not be read",
            hint="check the addresses, the network and the login; the next run publishes pending output",
            brokers=self.bootstrap_servers,
            reason=error.str()[:500],
        )

    def too_large(self, **facts: object) -> SinkRefused:
        """Returns the error for a row that is larger than its topic allows."""
        return SinkRefused(
            "a row is larger than its topic allows",
            hint="raise max.message.bytes of the topic, or drop such rows in the job after restoring an older "
            "checkpoint; nothing of this checkpoint is published yet",
            brokers=self.bootstrap_servers,
            **facts,
        )

    def describe_topic(self, topic: str) -> tuple[str, dict[str, str]]:
        """Returns the id of a topic, and its settings ``cleanup.policy`` and ``max.message.bytes``.

        Raises:
            SinkRefused: the topic does not exist, or may not be described.
            StorageError: no broker answered.
        """
        from confluent_kafka import KafkaException, TopicCollection
        from confluent_kafka.admin import ConfigResource

        admin = self.admin
        described = admin.describe_topics(TopicCollection([topic]), request_timeout=TIMEOUT_SECONDS)[topic]
        try:
            topic_id = str(described.result().topic_id)
        except KafkaException as e:
            if e.args[0].name() != "UNKNOWN_TOPIC_OR_PART":
                raise self.error(e.args[0]) from e
            raise SinkRefused(
                "the topic of a sink does not exist",
                hint="create it, with as many partitions as its consumers need",
                topic=topic,
                brokers=self.bootstrap_servers,
            ) from e
        resource = ConfigResource(ConfigResource.Type.TOPIC, topic)
        with self.translate_errors():
            (settings,) = admin.describe_configs([resource], request_timeout=TIMEOUT_SECONDS).values()
            found = settings.result()
        return f"{topic} {topic_id}", {name: str(found[name].value) for name in _TOPIC_SETTINGS}

    def groups(self) -> list[str]:
        """Returns the names of the consumer groups. Raises StorageError or SinkRefused."""
        with self.translate_errors():
            found = self.admin.list_consumer_groups(request_timeout=TIMEOUT_SECONDS).result()
        if found.errors:
            raise self.error(found.errors[0].args[0])
        return [group.group_id for group in found.valid]

    @cached_property
    def admin(self) -> AdminClient:
        """The client for questions; one for each connection, because its threads outlive a question."""
        from confluent_kafka.admin import AdminClient

        # With a logger, because librdkafka would otherwise print to standard error.
        return AdminClient(self.options(), logger=log)

    def options(self) -> dict[str, str | int | float | bool]:
        """Returns the options of every client."""
        return {**KEEP_BROKERS, **self.client, "bootstrap.servers": self.bootstrap_servers}


_REFUSED = {
    "TOPIC_AUTHORIZATION_FAILED",
    "GROUP_AUTHORIZATION_FAILED",
    "CLUSTER_AUTHORIZATION_FAILED",
    "TRANSACTIONAL_ID_AUTHORIZATION_FAILED",
    "UNKNOWN_TOPIC_OR_PART",
    "_UNKNOWN_TOPIC",
    "_UNKNOWN_PARTITION",
    "TOPIC_EXCEPTION",
    "INVALID_TRANSACTION_TIMEOUT",
    "INVALID_RECORD",
}
_TOPIC_SETTINGS = ("cleanup.policy", "max.message.bytes")
TOO_LARGE = "MSG_SIZE_TOO_LARGE"


def topic_dataset(bootstrap_servers: str, topic: str) -> Dataset:
    """Returns a topic as lineage events name it, by the first of the brokers."""
    return Dataset(f"kafka://{bootstrap_servers.split(',')[0].strip()}", topic, kind="TOPIC")
