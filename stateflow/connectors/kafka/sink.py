"""The Kafka sink: rows of a checkpoint and its token are committed in one transaction of the driver."""

from __future__ import annotations

import logging
import queue
import threading
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass, field, replace
from datetime import timedelta
from functools import cached_property, partial
from importlib.util import find_spec
from typing import TYPE_CHECKING

import msgspec
import pyarrow as pa

from stateflow import failpoints
from stateflow.api.changelog import Changelog
from stateflow.api.datasets import Dataset
from stateflow.api.sink import Sink, SinkContext, SinkRewind, SinkTable, Successor, TableChanges
from stateflow.clock import SystemClock
from stateflow.connectors.kafka.client import (
    TIMEOUT_SECONDS,
    TOO_LARGE,
    Connection,
    KafkaSecurity,
    check_brokers,
    topic_dataset,
)
from stateflow.connectors.kafka.formats import JSON, RAW, KafkaRecord, RecordLayout, Value
from stateflow.connectors.staged_output import StagedSink, StagedTable, cast_to_declared
from stateflow.connectors.upserts import UpsertSettings, winning_rows
from stateflow.errors import EnvironmentUnsupported, JobDefinitionError, SinkDiverged, SinkRefused, StorageError
from stateflow.helpers import check_choice
from stateflow.state.handles import Committable

if TYPE_CHECKING:
    from confluent_kafka import Consumer, KafkaError, KafkaException, Producer

log = logging.getLogger(__name__)

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
_SUFFIX = "_shadow"
_GROUP = "stateflow-"
"""Begins the name of the group with the token of an application."""
_OWN_OPTIONS = {
    "bootstrap.servers",
    "transactional.id",
    "group.id",
    "enable.idempotence",
    "acks",
    "log_level",
    "message.max.bytes",
    "batch.size",
    "security.protocol",
    "sasl.username",
    "sasl.password",
}
"""Options of the producer that the sink sets itself."""
_LARGEST_BATCH = 1_000_000


@dataclass(frozen=True)
class _Settings:
    """All settings of a sink: its arguments, whether its rows are a changelog, and how rows of a checkpoint cancel."""

    bootstrap_servers: str
    layout: RecordLayout
    security: KafkaSecurity | None
    options: Mapping[str, str] = field(repr=False)
    is_changelog: bool = False
    cancels: UpsertSettings | None = None


class KafkaSink(StagedSink):
    """Writes a stream's rows to Kafka topics, exactly once for consumers with ``isolation.level=read_committed``.

    Tasks stage rows in the job root. After the COMMIT of a checkpoint, the driver writes all of them in one
    transaction, which also commits the checkpoint's id as an offset of the consumer group ``stateflow-JOB/UID``: the
    token. The topic must exist. It can be shared with other producers; records cannot be removed from it by a restore.

    Of a changelog, the record of a row that is retracted has no value.

    Args:
        bootstrap_servers: addresses of brokers, separated by commas.
        topic: the topic. With `topic_column`, that of rows whose topic is null; its first partition identifies the
            token in any case.
        topic_column: str column with the topic of each row; it is not part of the value.
        key: columns of the record's key: one column of type str or bytes as it is, any others as JSON. Records of the
            same key go to the same partition, the one that Kafka's Java client chooses as well.
        value: ``"json"``, an object with all columns except `topic_column` and `headers`; or ``"raw"``, the bytes or
            str of the only column that is not key, topic, headers or timestamp.
        headers: column of type ``list[KafkaHeader]``.
        timestamp: datetime column, or int column in milliseconds since 1970; by default the time when a record is sent.
        security: TLS and login.
        options: further options of librdkafka's producer, such as ``compression.type`` or ``transaction.timeout.ms``.

    Raises:
        ConfigError: `value` is not one of its values.
        JobDefinitionError: an option is one that the sink sets itself, or `topic` is empty.
    """

    def __init__(
        self,
        bootstrap_servers: str,
        *,
        topic: str,
        topic_column: str = "",
        key: str | Sequence[str] = (),
        value: Value = "json",
        headers: str = "",
        timestamp: str = "",
        security: KafkaSecurity | None = None,
        options: Mapping[str, str] | None = None,
    ) -> None:
        check_choice("value", value, (JSON, RAW))
        if not topic:
            raise JobDefinitionError("a Kafka sink needs a topic", hint="pass topic=…, also with topic_column")
        given = sorted(_OWN_OPTIONS & (options or {}).keys())
        if given:
            raise JobDefinitionError(
                "the Kafka sink sets an option of the producer itself",
                hint="leave it out; use security=KafkaSecurity(…) for TLS and login",
                options=given,
            )
        names = (key,) if isinstance(key, str) and key else tuple(key)
        layout = RecordLayout(topic, value, names, topic_column, headers, timestamp)
        self._settings = _Settings(check_brokers(bootstrap_servers), layout, security, dict(options or {}))
        self._transactions: dict[str, Transactions] = {}

    def __repr__(self) -> str:
        return f"KafkaSink({self._settings.layout.topic!r})"

    def __getstate__(self) -> _Settings:
        # Tasks do not need connections.
        return self._settings

    def __setstate__(self, settings: _Settings) -> None:
        self._settings = settings
        self._transactions = {}

    @property
    def location(self) -> str:
        return f"topic {self._settings.layout.topic} of {self._settings.bootstrap_servers}"

    def datasets(self) -> Sequence[Dataset]:
        return (topic_dataset(self._settings.bootstrap_servers, self._settings.layout.topic),)

    @property
    def ordering_key(self) -> tuple[str, ...]:
        return self._settings.layout.key if self._settings.is_changelog else ()

    @property
    def required_columns(self) -> tuple[str, ...]:
        return self._settings.layout.key if self._settings.is_changelog else ()

    def for_changelog(self, changelog: Changelog) -> Sink:
        layout = self._settings.layout
        if not layout.key:
            return super().for_changelog(changelog)
        changelog.check_sink_keys(layout.key)
        layout = replace(layout, row_kind=changelog.row_kind)
        keys = (*layout.key, layout.topic_column) if layout.topic_column else layout.key
        cancels = UpsertSettings(keys).for_changelog(changelog) if changelog.compares_content(layout.key) else None
        return _sink(replace(self._settings, layout=layout, is_changelog=True, cancels=cancels))

    def check(self, context: SinkContext) -> str | None:
        _require_client()
        self._settings.layout.check(context.schema)
        topic_id, limits = self._topic()
        if "compact" in limits["cleanup.policy"].split(",") and not self._settings.layout.key:
            raise SinkRefused(
                "a compacted topic refuses records without a key", hint="pass key=…", topic=self._settings.layout.topic
            )
        return topic_id

    def other_jobs(self, context: SinkContext) -> frozenset[str]:
        return frozenset(application.partition("/")[0] for application in self._others(context, False))

    def prepare(self, context: SinkContext) -> str:
        table_id = self.check(context)
        assert table_id is not None
        # Shows before the first batch whether transactions are allowed.
        self._transactions_of(context.application).start()
        return table_id

    def open_table(self, context: SinkContext) -> SinkTable:
        try:
            table_id, _ = self._topic()
        except SinkRefused as e:
            raise SinkDiverged(
                "the topic of a sink no longer exists", hint="restore it, or give the sink a new uid", sink=context.uid
            ) from e
        return KafkaTable(
            context,
            table_id,
            layout=self._settings.layout,
            cancels=self._settings.cancels,
            transactions=self._transactions_of,
            others=partial(self._others, context),
        )

    def shadow(self) -> KafkaSink:
        layout = self._settings.layout
        shadow = replace(layout, topic=layout.topic + _SUFFIX, suffix=layout.suffix + _SUFFIX)
        return _sink(replace(self._settings, layout=shadow))

    def _others(self, context: SinkContext, only_published: bool) -> frozenset[str]:
        """Returns the applications of other jobs with a sink of the same uid that write to the topic."""
        own = f"{_GROUP}{context.application}"
        names = (g for g in self._connection.groups() if g.startswith(_GROUP) and g != own)
        named = [name for name in names if name.partition("/")[2] == context.uid]
        topic = self._settings.layout.topic
        found = find_writers(self._connection, topic, named, own=own, only_published=only_published)
        return frozenset(name.removeprefix(_GROUP) for name in found)

    def _transactions_of(self, application: str) -> Transactions:
        found = self._transactions.get(application)
        if found is None:
            _, limits = self._topic()
            largest = int(limits["max.message.bytes"])
            sizes = {"message.max.bytes": largest, "batch.size": min(_LARGEST_BATCH, largest)}
            options: dict[str, str | int] = {**self._settings.options, **sizes}
            name = f"{_GROUP}{application}"
            found = Transactions(self._connection, name, self._settings.layout.topic, options)
            self._transactions[application] = found
        return found

    @cached_property
    def _connection(self) -> Connection:
        security = self._settings.security
        return Connection(self._settings.bootstrap_servers, security.for_client() if security else {})

    def _topic(self) -> tuple[str, dict[str, str]]:
        """Returns id and settings of the topic. Raises SinkRefused if it does not exist, StorageError."""
        return self._connection.describe_topic(self._settings.layout.topic)


def _sink(settings: _Settings) -> KafkaSink:
    sink = KafkaSink.__new__(KafkaSink)
    sink.__setstate__(settings)
    return sink


def _require_client() -> None:
    if find_spec("confluent_kafka") is None:
        raise EnvironmentUnsupported(
            "a package for Kafka is not installed",
            hint="install it on the driver: pip install 'stateflow[kafka]'",
            package="confluent-kafka",
        )


_KEEP_HINT = "keep the topic as it is with --keep-table UID: records after the checkpoint are then written again"


_SHORTEST_RETENTION = timedelta(hours=12)
"""Age of pending output up to which a token cannot have expired since its publication."""


class KafkaTable(StagedTable):
    """A handle of a sink's topic, with the token that was read when it was created.

    Kafka has no versions of a topic, so the token is the version.

    Args:
        context: the sink.
        table_id: id of the topic.
        layout: how rows become records.
        cancels: how rows of a checkpoint cancel; None if they do not.
        transactions: returns the transactions of an application.
        others: returns the applications of other jobs that write to the topic with a sink of the same uid; with True,
            only those that have published.
    """

    def __init__(
        self,
        context: SinkContext,
        table_id: str,
        *,
        layout: RecordLayout,
        cancels: UpsertSettings | None,
        transactions: Callable[[str], Transactions],
        others: Callable[[bool], frozenset[str]],
    ) -> None:
        super().__init__(context)
        self.table_id = table_id
        self._transactions_of = transactions
        self._transactions = transactions(context.application)
        self.token = self._transactions.read_token()
        successor = self._transactions.successor
        self.successor = Successor.parse(successor) if successor else None
        self.version = self.token or 0
        self._layout, self._cancels = layout, cancels
        self._others = others
        # An open transaction does not count: it may be aborted, and its application commit later.
        self._known = frozenset() if self.token else others(True)

    def commit(self, token: int, committables: list[Committable]) -> int | None:
        if self.token is None:
            self._check_not_expired(committables)
        with closing(self._records(committables)) as records:
            is_committed = self._transactions.commit(self.token, token, records, is_overtaken=self._is_overtaken)
        return token if is_committed else None

    def _is_overtaken(self) -> bool:
        """Returns whether another job root may publish for the first time as well, since this handle was made.

        Transactions of this application do not fence it. Each one asks when the other one can see its open
        transaction, so at least one finds the other.
        """
        return not self.token and not self._others(False) <= self._known

    def plan_rewind(self, checkpoint_id: int) -> SinkRewind:
        if self.token is None:
            raise SinkRefused(
                "the token of a sink is missing in Kafka: it is not known whether records follow the checkpoint",
                hint=_KEEP_HINT,
                sink=self.context.uid,
                topic=self._layout.topic,
                group=f"stateflow-{self.context.application}",
            )
        if self.version > checkpoint_id:
            raise SinkRefused(
                "records cannot be removed from a topic, and some were published after the checkpoint",
                hint=_KEEP_HINT,
                sink=self.context.uid,
                topic=self._layout.topic,
                checkpoint_id=checkpoint_id,
                published=self.version,
            )
        return SinkRewind(self.version, None, 0, 0, ())

    def changes_since(self, version: int) -> TableChanges:
        return TableChanges(self._layout.topic, self.version > version, ())

    def rewind(self, to_version: int | None, token: int) -> int | None:
        if to_version is not None and to_version < self.version:
            raise SinkRefused(
                "records cannot be removed from a topic, and some were published after the restore was planned",
                hint=_KEEP_HINT,
                sink=self.context.uid,
                topic=self._layout.topic,
                published=self.version,
            )
        return token if self._transactions.commit(self.token, token, ()) else None

    def take_over(self, token: int, former: Mapping[str, int], by: Successor) -> int | None:
        # Transactions of the former applications: the start of their producers fences the producers of their drivers.
        found: list[tuple[bool, str, int | None]] = []
        for application, published in former.items():
            transactions = self._transactions_of(application)
            seen = transactions.read_token()
            before = Successor.parse(transactions.successor).application
            if (seen or 0) != published or not (before in ("", by.application) or before in former):
                return None
            found.append((before in former, application, seen))
        # Those that already have a successor among the former ones come last: whenever this ends, the successors lead
        # from each of them to the one that may write.
        for _, application, seen in sorted(found, key=lambda each: each[0]):
            transactions = self._transactions_of(application)
            before = transactions.successor
            if before != by.text and not transactions.commit(
                seen, former[application], successor=by.text, before=before
            ):
                return None
        return self.rewind(None, token)

    def _records(self, committables: list[Committable]) -> Generator[KafkaRecord, None, None]:
        batches = self.staged_rows(committables)
        if self._cancels is not None:
            # In memory: a row and the one that retracts it may be the first and the last of the checkpoint.
            schema = self.context.schema
            declared = (cast_to_declared(batch, schema, self._layout.topic) for batch in batches)
            rows_of_all = pa.Table.from_batches(declared, schema.arrow)
            batches = iter(winning_rows(rows_of_all, self._cancels).to_batches())
        for rows in batches:
            yield from self._layout.records(rows)

    def _check_not_expired(self, committables: list[Committable]) -> None:
        """Raises SinkDiverged if the rows may have been published with a token that Kafka has removed since."""
        old = [c.path for c in committables if (age := self.age(c)) is None or age > _SHORTEST_RETENTION]
        if old:
            raise SinkDiverged(
                "the token of a sink is missing in Kafka, and its pending output is old: it may have been published",
                hint="Kafka removes offsets of a group after offsets.retention.minutes. Compare the end of the topic "
                "with the rows of the files; then restore the newest checkpoint with --keep-table UID, which drops "
                "them, or set the offset of the group by hand to the newest published checkpoint",
                sink=self.context.uid,
                group=f"stateflow-{self.context.application}",
                files=old[:3],
            )


class NotAnswered(Exception):
    """A call of the client did not return although its timeout has elapsed."""


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
                if e.args[0].name() == TOO_LARGE:
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
        with self._connection.translate_errors():
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
