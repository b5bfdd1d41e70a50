"""The driver's client of Kafka: how it connects, asks for partitions and offsets, and commits transactions.

Transactions of one application commit rows and a token together, or not at all.
"""

from __future__ import annotations

import json
import logging
import os
import queue
import re
import threading
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from functools import cached_property
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from stateflow import failpoints
from stateflow.clock import SystemClock, epoch_milliseconds
from stateflow.connectors.kafka.formats import KafkaRecord
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
    from confluent_kafka import Consumer, KafkaError, KafkaException, Producer
    from confluent_kafka.admin import AdminClient, OffsetSpec


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


log = logging.getLogger(__name__)


_TIMEOUT_SECONDS = 30.0
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


class NotAnswered(Exception):
    """A call of the client did not return although its timeout has elapsed."""


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

    def _listed(self) -> list[Partition]:
        with self._translated_errors():
            topics = self._admin.list_topics(timeout=_TIMEOUT_SECONDS).topics
        return [(name, number) for name, topic in topics.items() for number in topic.partitions]

    def _offsets(
        self, partitions: Sequence[Partition], wanted: OffsetSpec, *, committed: bool = True
    ) -> dict[Partition, int]:
        from confluent_kafka import IsolationLevel, TopicPartition

        if not partitions:
            return {}
        with self._translated_errors():
            asked = {TopicPartition(topic, number): wanted for topic, number in partitions}
            isolation = IsolationLevel.READ_COMMITTED if committed else IsolationLevel.READ_UNCOMMITTED
            futures = self._admin.list_offsets(asked, isolation_level=isolation, request_timeout=_TIMEOUT_SECONDS)
            return {(each.topic, each.partition): future.result().offset for each, future in futures.items()}

    @contextmanager
    def _translated_errors(self) -> Iterator[None]:
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


def within_timeout(call: Callable[[], object], seconds: float) -> None:
    """Makes a call of the client, which may not return although its timeout has elapsed.

    Raises:
        KafkaException: the call raised it.
        NotAnswered: the call did not return within `seconds`. Its thread, and the client, exist until the process ends.
    """
    from confluent_kafka import KafkaException

    answer: queue.SimpleQueue[KafkaException | None] = queue.SimpleQueue()

    def answered() -> None:
        try:
            call()
        except KafkaException as e:
            answer.put(e)
        else:
            answer.put(None)

    threading.Thread(target=answered, name="stateflow-kafka-call", daemon=True).start()
    try:
        failed = answer.get(timeout=seconds)
    except queue.Empty:
        raise NotAnswered from None
    if failed is not None:
        raise failed


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


TIMEOUT_SECONDS = 30.0
_clock = SystemClock()
_POLL = timedelta(milliseconds=20)
_LATE_SECONDS = 2.0
_COMMIT_TRIES = 4
_UNSTABLE_SECONDS = 3.0
"""How long a token is waited for whose transaction is being committed, before that transaction is fenced."""
_SHORTEST_SECONDS = 1.0
"""How long the token of an application is waited for at least."""
_POLL_ROWS = 1024
_NO_SUCCESSOR = ""
_DEFAULTS: Mapping[str, str | int] = {
    "acks": "all",
    "linger.ms": 20,
    "compression.type": "lz4",
    "queue.buffering.max.kbytes": 1 << 16,
    "queue.buffering.max.messages": 1 << 20,
    "batch.num.messages": 100_000,
    # As the partitions that Kafka's Java client chooses.
    "partitioner": "murmur2_random",
    # Consumers of committed records wait that long if the driver's host fails and no run follows.
    "transaction.timeout.ms": 300_000,
}


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
    def translated_errors(self) -> Iterator[None]:
        """Raises StorageError for an error of the client."""
        from confluent_kafka import KafkaException

        try:
            yield
        except KafkaException as e:
            raise self.error(e.args[0]) from e

    def error(self, error: KafkaError) -> StateflowError:
        """Returns the error to raise for one of the client."""
        if error.name() == _TOO_LARGE:
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
        with self.translated_errors():
            (settings,) = admin.describe_configs([resource], request_timeout=TIMEOUT_SECONDS).values()
            found = settings.result()
        return f"{topic} {topic_id}", {name: str(found[name].value) for name in _TOPIC_SETTINGS}

    def groups(self) -> list[str]:
        """Returns the names of the consumer groups. Raises StorageError or SinkRefused."""
        with self.translated_errors():
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
_FENCED = {"_FENCED", "INVALID_PRODUCER_EPOCH", "PRODUCER_FENCED", "INVALID_PRODUCER_ID_MAPPING"}
_TRY_AGAIN = {
    "_TIMED_OUT",
    "_WAIT_COORD",
    "_TRANSPORT",
    "REQUEST_TIMED_OUT",
    "UNSTABLE_OFFSET_COMMIT",
    "NOT_COORDINATOR",
    "COORDINATOR_NOT_AVAILABLE",
    "COORDINATOR_LOAD_IN_PROGRESS",
}
"""Errors of a broker that does not answer, is not responsible for the group, or has an open transaction of it."""
_TOO_LARGE = "MSG_SIZE_TOO_LARGE"


class _Metadata(msgspec.Struct, frozen=True):
    """Stored with the offset that is the token."""

    stateflow: int = 1
    successor: str = _NO_SUCCESSOR


class _FencedByAnother(Exception):
    """Another process started a producer of the same transactional id."""


class Transactions:
    """Reads the token of an application and commits transactions with the next one.

    Args:
        connection: the cluster.
        name: consumer group and ``transactional.id``.
        topic: the topic whose partition 0 the token is an offset of.
        options: further options of the producer.

    Attributes:
        successor: the application that has taken over, as of the token that was read last; empty for none.
    """

    def __init__(self, connection: Connection, name: str, topic: str, options: Mapping[str, str | int]) -> None:
        self._connection = connection
        self._options = options
        self._name = name
        self._topic = topic
        self._lock = threading.Lock()
        self._producer: Producer | None = None
        self._token: int | None = None
        """The token, as long as the producer is not fenced."""
        self.successor = _NO_SUCCESSOR

    def read_token(self) -> int | None:
        """Returns the token; None if the group has none. Raises StorageError or SinkRefused.

        A transaction that stays open for a few seconds belongs to a process that was killed, and is fenced.
        """
        is_stable, token, successor = self._read(_UNSTABLE_SECONDS)
        if is_stable:
            self.successor = successor
            return token
        with self._lock:
            self._start_producer()
            return self._token

    def start(self) -> None:
        """Fences all earlier producers. Raises StorageError or SinkRefused."""
        with self._lock:
            if self._producer is None:
                self._start_producer()

    def commit(
        self,
        seen: int | None,
        token: int,
        records: Iterable[KafkaRecord] = (),
        *,
        successor: str = _NO_SUCCESSOR,
        before: str = _NO_SUCCESSOR,
        is_overtaken: Callable[[], bool] = lambda: False,
    ) -> bool:
        """Writes records and the token in one transaction.

        Args:
            seen: the token that the caller has read.
            token: the new token.
            records: the records.
            successor: the application that takes over; this one can commit nothing after that.
            before: the successor that the caller has read.
            is_overtaken: asked when others can see that this application commits; if it returns True, it does not.

        Returns:
            False if the token has changed since it was read, if the application was overtaken, or if it is not known
            whether the transaction was committed: read it again and decide again.

        Raises:
            SinkRefused: Kafka refuses a record for good; nothing is visible then.
            StorageError: Kafka cannot be reached; nothing is visible then.
        """
        with self._lock:
            if self._producer is None:
                self._start_producer()
            assert self._producer is not None
            if (self._token, self.successor) != (seen, before):
                return False
            written = self._written(records, token, successor)
            try:
                is_committed = self._transaction(self._producer, written, is_overtaken)
            except _FencedByAnother:
                is_committed = False
            except NotAnswered:
                log.warning("Kafka's client did not return from a call; its producer is replaced: sink=%s", self._name)
                is_committed = False
            if is_committed:
                self._token, self.successor = token, successor
            else:
                self._producer = None
            return is_committed

    def _written(self, records: Iterable[KafkaRecord], token: int, successor: str) -> Callable[[Producer], None]:
        """Returns what writes the records and the token within a transaction."""

        def write(producer: Producer) -> None:
            self._write(producer, records)
            failpoints.hit("transaction.written")
            self._send_token(producer, token, successor)
            failpoints.hit("transaction.token")

        return write

    def _transaction(
        self, producer: Producer, write: Callable[[Producer], None], is_overtaken: Callable[[], bool]
    ) -> bool:
        from confluent_kafka import KafkaException

        try:
            producer.begin_transaction()
            failpoints.hit("transaction.begun")
            write(producer)
            if is_overtaken():
                self._abort(producer)
                return False
            is_committed = self._commit(producer)
        except KafkaException as e:
            cause = self._cause(producer, e.args[0])
            self._abort(producer)
            if _is_fenced(cause):
                raise _FencedByAnother from e
            raise self._connection.error(cause) from e
        except BaseException:
            self._abort(producer)
            raise
        failpoints.hit("transaction.committed")
        return is_committed

    def _write(self, producer: Producer, records: Iterable[KafkaRecord]) -> None:
        # Without callbacks: the client could call one while the exception of a fatal error is raised. A record that
        # cannot be delivered fails the transaction.
        for number, record in enumerate(records):
            self._produce(producer, record)
            if number % _POLL_ROWS == 0:
                producer.poll(0)
        while len(producer):
            producer.flush(1)

    def _produce(self, producer: Producer, record: KafkaRecord) -> None:
        from confluent_kafka import KafkaException

        while True:
            try:
                producer.produce(
                    record.topic, record.value, record.key, headers=record.headers, timestamp=record.timestamp
                )
            except BufferError:
                producer.poll(0.1)
            except KafkaException as e:
                if e.args[0].name() == _TOO_LARGE:
                    raise self._connection.too_large(topic=record.topic, row_bytes=record.size) from e
                raise
            else:
                return

    def _cause(self, producer: Producer, error: KafkaError) -> KafkaError:
        """Returns the error that failed the transaction; `error` may only say that it has failed."""
        from confluent_kafka import KafkaException

        if error.name() != "_STATE":
            return error
        try:
            self._send_token(producer, 0)
        except KafkaException as e:
            return e.args[0]  # type: ignore[no-any-return]
        return error

    def _send_token(self, producer: Producer, token: int, successor: str = _NO_SUCCESSOR) -> None:
        from confluent_kafka import TopicPartition

        metadata = msgspec.json.encode(_Metadata(successor=successor)).decode()
        offset = TopicPartition(self._topic, 0, token, metadata=metadata)
        group = self._group.consumer_group_metadata()
        within_timeout(
            lambda: producer.send_offsets_to_transaction([offset], group, TIMEOUT_SECONDS),
            TIMEOUT_SECONDS + _LATE_SECONDS,
        )

    def _commit(self, producer: Producer) -> bool:
        """Returns whether the transaction is committed; False if that is not known, because a response was lost."""
        from confluent_kafka import KafkaException

        for _ in range(_COMMIT_TRIES):
            try:
                producer.commit_transaction(TIMEOUT_SECONDS)
                return True
            except KafkaException as e:
                error: KafkaError = e.args[0]
                if error.txn_requires_abort() or _is_fenced(error):
                    raise
                if not error.retriable():
                    break
        log.warning("the response of a transaction's commit was lost: sink=%s", self._name)
        return False

    def _abort(self, producer: Producer) -> None:
        """Aborts the transaction; if that fails, the next producer does it when it starts."""
        from confluent_kafka import KafkaException

        self._producer = None
        with suppress(KafkaException):
            producer.purge()
            producer.abort_transaction(TIMEOUT_SECONDS)

    def _start_producer(self) -> None:
        from confluent_kafka import Producer

        options = {**_DEFAULTS, **self._options, **self._connection.options(), "transactional.id": self._name}
        with self._connection.translated_errors():
            # Without a logger, which the client could call while the exception of a fatal error is raised.
            producer = Producer({**options, "log_level": 0})
            producer.init_transactions(TIMEOUT_SECONDS)
        is_stable, token, successor = self._read(TIMEOUT_SECONDS)
        if not is_stable:
            raise StorageError(
                "the transaction of an earlier run does not end, or its token cannot be read",
                hint="check that all replicas of __transaction_state and __consumer_offsets are available",
                sink=self._name,
            )
        self._producer, self._token, self.successor = producer, token, successor

    def _read(self, seconds: float) -> tuple[bool, int | None, str]:
        return _read(self._connection, self._group, self._topic, seconds)

    @cached_property
    def _group(self) -> Consumer:
        return _group(self._connection, self._name)


def find_writers(
    connection: Connection, topic: str, names: Iterable[str], *, own: str = "", only_published: bool = False
) -> frozenset[str]:
    """Returns those that have published, or are publishing, and have no successor; fences none of them.

    Args:
        connection: the cluster.
        topic: as for `Transactions`.
        names: names of `Transactions`.
        own: of the application that asks. It waits for others with a greater name, whose transaction is open, and
            those do not wait for it: so of two that ask at once, one can commit.
        only_published: whether open transactions do not count.

    Raises StorageError or SinkRefused.
    """
    began, found = _clock.monotonic(), set()
    # With one client at a time, which is closed: there may be many jobs, and clients have threads. All together wait as
    # long as one, because a token is read in milliseconds unless a transaction is open.
    for name in sorted(names):
        left = began + _UNSTABLE_SECONDS - _clock.monotonic() if name > own else 0.0
        with closing(_group(connection, name, "read_uncommitted")) as group:
            is_read, token, successor = _read(connection, group, topic, TIMEOUT_SECONDS)
        if not is_read:
            raise StorageError(
                "the token of another job's sink could not be read",
                hint="check that all replicas of __consumer_offsets are available",
                sink=name,
            )
        if not token and not successor and not only_published:
            with closing(_group(connection, name)) as group:
                is_stable, token, successor = _read(connection, group, topic, max(left, _SHORTEST_SECONDS))
            token = token if is_stable else 1
        if token and not successor:
            found.add(name)
    return frozenset(found)


def _group(connection: Connection, name: str, isolation: str = "read_committed") -> Consumer:
    """Returns a client for the group with a token, which it never joins."""
    from confluent_kafka import Consumer

    options = {"group.id": name, "isolation.level": isolation, "enable.auto.commit": False}
    return Consumer({**connection.options(), **options}, logger=log)


def _read(connection: Connection, group: Consumer, topic: str, seconds: float) -> tuple[bool, int | None, str]:
    """Returns whether the token was read within some seconds; the token, None without one; and the successor.

    It is not read while a transaction with a token is open, unless the client also reads uncommitted records: then
    it is the token before.
    """
    from confluent_kafka import KafkaException, TopicPartition

    deadline = _clock.monotonic() + seconds
    while (left := deadline - _clock.monotonic()) > 0:
        try:
            # Not by the admin client, which crashes the process when the group has moved to another broker.
            (found,) = group.committed([TopicPartition(topic, 0)], left)
        except KafkaException as e:
            if e.args[0].name() not in _TRY_AGAIN:
                raise connection.error(e.args[0]) from e
            _clock.sleep(_POLL)
            continue
        if found.error is not None:
            raise connection.error(found.error)
        return True, found.offset if found.offset >= 0 else None, _successor_in(found.metadata)
    return False, None, _NO_SUCCESSOR


def _successor_in(metadata: str | None) -> str:
    """Returns the successor in the metadata of an offset, which other tools can set to any text."""
    try:
        return msgspec.json.decode(metadata or "", type=_Metadata).successor
    except msgspec.DecodeError:
        return _NO_SUCCESSOR


def _is_fenced(error: KafkaError) -> bool:
    return error.name() in _FENCED or error.fatal()
