"""Transactions of one application: rows and a token are committed together, or not at all.

The token is an offset that the transaction commits for a consumer group without members. A producer of the same
``transactional.id`` fences all earlier ones when it starts. So after a producer has started and the token was read, no
other process can have committed before this producer's next transaction succeeds.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, field
from datetime import timedelta
from functools import cached_property
from typing import TYPE_CHECKING

import msgspec

from stateflow import failpoints
from stateflow.clock import SystemClock
from stateflow.connectors.kafka.client import KEEP_BROKERS, NotAnswered, within_timeout
from stateflow.connectors.kafka.records import Record
from stateflow.errors import SinkRefused, StateflowError, StorageError

if TYPE_CHECKING:
    from confluent_kafka import Consumer, KafkaError, Producer
    from confluent_kafka.admin import AdminClient

log = logging.getLogger(__name__)

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
        records: Iterable[Record] = (),
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

    def _written(self, records: Iterable[Record], token: int, successor: str) -> Callable[[Producer], None]:
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

    def _write(self, producer: Producer, records: Iterable[Record]) -> None:
        # Without callbacks: the client could call one while the exception of a fatal error is raised. A record that
        # cannot be delivered fails the transaction.
        for number, record in enumerate(records):
            self._produce(producer, record)
            if number % _POLL_ROWS == 0:
                producer.poll(0)
        while len(producer):
            producer.flush(1)

    def _produce(self, producer: Producer, record: Record) -> None:
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


def writers(
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
