"""The Kafka source, which reads topics through Spark's own Kafka source."""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Literal

from stateflow.api.datasets import Dataset
from stateflow.api.dead_letters import FAIL, DeadLetters, check_policy
from stateflow.api.schema import REJECTED, RejectedRecord, RowSchema, failing_filter
from stateflow.api.source import FROM_START, Backlog, InitialPosition, Source, StartKind, StartPosition
from stateflow.clock import epoch_milliseconds
from stateflow.config.settings import SourceSettings
from stateflow.config.spark_versions import kafka_package
from stateflow.connectors.kafka.client import (
    KafkaClient,
    KafkaSecurity,
    Partition,
    Topics,
    check_brokers,
    format_offsets,
    parse_offsets,
    topic_dataset,
)
from stateflow.connectors.kafka.formats import GUARD, Json, Raw, RecordColumns, ValueFormat
from stateflow.connectors.partition_offsets import (
    Gap,
    count_waiting,
    gaps_after,
    gaps_between,
    has_new_rows,
    position_error,
    shorten_texts,
)
from stateflow.connectors.spark import load_frame
from stateflow.errors import (
    ConfigError,
    EnvironmentUnsupported,
    InputLost,
    JobDefinitionError,
    StateflowError,
    StorageError,
)
from stateflow.helpers import check_choice

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

log = logging.getLogger(__name__)

CONTINUE = "continue"
_FORMATS: Mapping[str, ValueFormat] = {"json": Json(), "raw": Raw()}
_OWN_OPTIONS = {
    "subscribe",
    "subscribepattern",
    "assign",
    "startingoffsets",
    "startingtimestamp",
    "startingoffsetsbytimestamp",
    "endingoffsets",
    "failondataloss",
    "includeheaders",
    "maxoffsetspertrigger",
    "kafka.bootstrap.servers",
}
"""Options of Spark's source that the source sets itself."""
_FIRST = "0"
"""Name of the only file of the log of Spark's Kafka source."""
_PARTITIONS_DIFFER = re.compile(
    r"you must specify all TopicPartitions.*?Specified: Set\((?P<given>[^)]*)\) Assigned: Set\((?P<existing>[^)]*)\)",
    re.S,
)
"""Spark's message about the offsets of a start."""
_ISOLATION = "kafka.isolation.level"
_OLDEST_SECONDS = 5.0
"""How long the first records after a position may take to arrive."""

OnDataLoss = Literal["fail", "continue"]
Start = str | datetime | Mapping[str, Mapping[int, int]]
"""``earliest``, ``latest``, a time, or the offset of each partition by topic and number."""


class KafkaSource(Source):
    """Records of Kafka topics.

    Spark reads them: its JARs ``org.apache.spark:spark-sql-kafka-0-10_2.13`` must be given to the session. Positions
    are restored exactly. Only committed records of transactions are read.

    Args:
        bootstrap_servers: addresses of brokers, separated by commas.
        schema: row class of the rows.
        topics: the topics; or give `pattern`.
        pattern: regular expression of the names of topics. Topics that are created later are read from their start.
        value: format of the values: ``"json"``, ``"raw"``, or an object such as `Json` or `AvroFormat`. It has the
            fields of `schema` that are not in `metadata`.
        metadata: the fields that take a record's metadata: ``{"sent": "timestamp"}``. Metadata are ``topic``,
            ``partition``, ``offset``, ``timestamp``, ``key`` (bytes or str) and ``headers`` (``list[KafkaHeader]``).
        start: where a job begins that has no position yet: ``"earliest"``, ``"latest"``, a time (UTC, unless it has a
            time zone), or offsets such as ``{"flights": {0: 1200, 1: 1150}}`` for all partitions.
        on_error: what happens to records that cannot be decoded: ``"fail"``, or `DeadLetters`; `get_dead_letters` of
            the stream then has them, with topic, partition and offset.
        on_data_loss: what happens if Kafka has removed records before they were read: ``"fail"``, or ``"continue"``
            with a warning. The message has the exact offsets either way.
        security: TLS and login.
        options: further options of Spark's Kafka source, such as ``minPartitions`` or ``kafka.fetch.max.bytes``.

    Raises:
        ConfigError: `start` or `on_data_loss` is not one of its values.
        JobDefinitionError: the arguments do not fit each other, or the row class.
    """

    start_kinds = frozenset(StartKind)
    has_splits = True
    limited_by = frozenset({"max_rows_per_batch"})

    def __init__(
        self,
        bootstrap_servers: str,
        *,
        schema: type[object],
        topics: str | Sequence[str] = (),
        pattern: str = "",
        value: str | ValueFormat = "json",
        metadata: Mapping[str, str] | None = None,
        start: Start = StartKind.EARLIEST,
        on_error: str | DeadLetters = FAIL,
        on_data_loss: OnDataLoss = "fail",
        security: KafkaSecurity | None = None,
        options: Mapping[str, str] | None = None,
    ) -> None:
        self.bootstrap_servers = check_brokers(bootstrap_servers)
        self.schema = RowSchema.of(schema)
        self.topics = _topics(topics, pattern)
        self.value = _format(value)
        self.on_error = check_policy(on_error)
        self._columns = RecordColumns(self.schema, dict(metadata or {}))
        self._columns.check()
        self.value.check(self._columns.of_value)
        self._start = _checked_start(start)
        check_choice("on_data_loss", on_data_loss, (FAIL, CONTINUE))
        self._continues = on_data_loss == CONTINUE
        self._security = security
        self._options = _checked_options(options or {})

    def __repr__(self) -> str:
        return self.description

    @property
    def description(self) -> str:
        return f"KafkaSource[{self.topics}]"

    def datasets(self, offset: str) -> Sequence[Dataset]:
        # Only positions name the topics of a pattern.
        names = self.topics.names or sorted({topic for topic, _ in (self._parsed(offset) if offset else ())})
        return [topic_dataset(self.bootstrap_servers, name) for name in names]

    def check(self, spark: SparkSession) -> None:
        """Raises ConfigError if a topic does not exist, and StorageError if no broker answers."""
        if self.topics.names:
            self._client().partitions(self.topics)

    def stream(self, spark: SparkSession, limits: SourceSettings) -> DataFrame:
        import pyspark

        reader = spark.readStream.format("kafka").options(**self._reader_options(limits))
        return self.rows(load_frame(reader, "kafka", jars=kafka_package(pyspark.__version__)))

    def rows(self, records: DataFrame) -> DataFrame:
        """Returns the rows of records, as `stream` returns them.

        Args:
            records: the columns of Spark's Kafka source.
        """
        decoded = self.value.decode(records, self._columns.of_value)
        rows = decoded.selectExpr(*self._columns.select_decoded())
        checked = rows.selectExpr("*", f"{self._columns.reason()} AS _sf_reason").selectExpr(
            *self._columns.select_checked()
        )
        if self.on_error is None:
            checked = checked.where(failing_filter(f"{GUARD} >= 0")).drop(REJECTED)
        return checked.drop(GUARD)

    def reason(self, record: RejectedRecord) -> str:
        return self.value.reason(record)

    def splits(self, offset: str) -> list[str]:
        return [f"{topic}-{number}" for topic, number in sorted(self._parsed(offset))]

    def check_position(self, offset: str) -> None:
        """See `Source.check_position`."""
        lost = shorten_texts([_describe(gap) for gap in self._gaps(offset)])
        if lost and not self._continues:
            raise InputLost(
                "Kafka has removed records before they were read",
                hint='to continue without them, set on_data_loss="continue" of the source, or restore with --source '
                "UID=earliest or another position; to keep records longer, raise retention.ms of the topic",
                source=self.description,
                lost=lost,
            )
        if lost:
            log.warning("continuing after lost records: source=%s lost=%s", self.description, lost)

    def explain_failure(self, reason: str) -> StateflowError | None:
        """See `Source.explain_failure`: Spark compares the offsets of `start` with the partitions that exist."""
        found = _PARTITIONS_DIFFER.search(reason)
        if found is None:
            return None
        return ConfigError(
            "start must have an offset for each partition of the topics, and for no other",
            hint="give the offsets of all partitions; or begin at earliest, latest or a time",
            source=self.description,
            given=found["given"],
            existing=found["existing"],
        )

    def first_offset(self, logs: Mapping[str, bytes]) -> str:
        """See `Source.first_offset`: the offsets that Spark has determined for the end, or for a time."""
        if self._start == StartKind.EARLIEST or _FIRST not in logs:
            return ""
        return format_offsets(self._first_in(logs))

    def _first_in(self, logs: Mapping[str, bytes]) -> dict[Partition, int]:
        """Returns the offsets at which Spark began."""
        # A zero byte for old versions of Spark, the format's version and the offsets.
        _, _, offsets = logs[_FIRST].partition(b"v1\n")
        return self._parsed(offsets.decode())

    def initial_position(self, start: StartPosition) -> InitialPosition:
        """See `Source.initial_position`: asks Kafka for the offsets of a time."""
        if start.kind is StartKind.POSITION:
            return InitialPosition(format_offsets(self._own(self._parsed(start.position))))
        client = self._client()
        partitions = client.partitions(self.topics)
        if start.kind is StartKind.LATEST:
            return InitialPosition(format_offsets(client.ends(partitions)))
        assert start.timestamp is not None
        return InitialPosition(format_offsets(client.at(partitions, start.timestamp)))

    def earliest_position(self) -> InitialPosition:
        """See `Source.earliest_position`: asks Kafka for the first offsets, unless a new job begins there."""
        if self._start == StartKind.EARLIEST:
            return super().earliest_position()
        client = self._client()
        return InitialPosition(format_offsets(client.earliest(client.partitions(self.topics))))

    def can_keep(self, description: str) -> bool:
        """Returns whether the source reads all topics that it read before: Spark needs a partition per position."""
        before = description.removeprefix("KafkaSource[").removesuffix("]")
        if not description.startswith("KafkaSource[") or before.startswith("pattern "):
            return description == self.description
        return all(map(self.topics.matches, before.split(",")))

    def holds(self, offset: str, logs: Sequence[bytes]) -> bool | None:
        """Returns whether Kafka still has all records after a position; None if it does not answer."""
        try:
            return not self._gaps(offset)
        except (StorageError, EnvironmentUnsupported):
            # A restore must be possible while Kafka is not.
            return None

    def lost_between(self, start: str, end: str, logs: Mapping[str, bytes]) -> Sequence[str]:
        """See `Source.lost_between`: compares the positions with the offsets that Kafka has now."""
        if start == FROM_START and _FIRST not in logs:
            return ()
        before, after = self._first_in(logs) if start == FROM_START else self._parsed(start), self._parsed(end)
        client = self._client()
        existing = client.existing(after)
        gaps = gaps_between(before, after, client.earliest(existing), client.ends(existing, committed=False))
        return shorten_texts([_describe(gap) for gap in gaps])

    def has_new_input(self, offset: str, logs: Sequence[bytes]) -> bool | None:
        """See `Source.has_new_input`: compares the position with the ends of all partitions."""
        client = self._client()
        ends = client.ends(client.partitions(self.topics), committed=self._reads_committed)
        position = self._parsed(offset)
        return has_new_rows(position, ends) if position else None

    def backlog(self, offset: str, logs: Sequence[bytes]) -> Backlog:
        """See `Source.backlog`: the offsets between the position and the ends, and the time of one record of each.

        Offsets also count the marks that end transactions, and records that compaction has removed.
        """
        client = self._client()
        partitions = client.partitions(self.topics)
        earliest = client.earliest(partitions)
        # After the first ones: retention must not remove all that the ends have seen.
        ends = client.ends(partitions, committed=self._reads_committed)
        position = self._start_offsets(client, partitions) if offset == FROM_START else self._parsed(offset)
        rows = count_waiting(position, earliest, ends)
        firsts = {p: max(position.get(p, 0), earliest[p]) for p in partitions}
        waiting = {p: first for p, first in firsts.items() if first < ends[p]}
        oldest, complete = client.oldest_time(waiting, committed=self._reads_committed, seconds=_OLDEST_SECONDS)
        unknown = "" if complete else "Kafka did not return the oldest records in time"
        return Backlog(rows=rows, oldest_at=oldest, exact=False, unknown=unknown)

    def _start_offsets(self, client: KafkaClient, partitions: list[Partition]) -> Mapping[Partition, int]:
        """Returns the offsets at which a new job begins, as of now."""
        if isinstance(self._start, datetime):
            return client.at(partitions, self._start)
        if isinstance(self._start, Mapping):
            return {(topic, n): offset for topic, given in self._start.items() for n, offset in given.items()}
        return {} if self._start == StartKind.EARLIEST else client.ends(partitions)

    @property
    def _reads_committed(self) -> bool:
        """Whether Spark reads up to the first open transaction, as it does unless an option says otherwise."""
        isolation = next((v for k, v in self._options.items() if k.lower() == _ISOLATION), "read_committed")
        return isolation == "read_committed"

    def _gaps(self, offset: str) -> list[Gap[Partition]]:
        position, client = self._parsed(offset), self._client()
        existing = client.existing(position)
        return list(gaps_after(position, client.earliest(existing), client.ends(existing, committed=False)))

    def _parsed(self, offset: str) -> dict[Partition, int]:
        try:
            return parse_offsets(offset)
        except ValueError as e:
            hint = 'such as {"flights":{"0":1200,"1":1150}}, with all partitions'
            raise position_error("a Kafka source", hint, self.description, offset, e) from e

    def _own(self, position: dict[Partition, int]) -> dict[Partition, int]:
        """Returns a position; raises ConfigError if it has topics that the source does not read."""
        others = sorted({topic for topic, _ in position if not self.topics.matches(topic)})
        if others:
            raise ConfigError(
                "a position has topics that the source does not read",
                hint="give the offsets of the source's own topics",
                source=self.description,
                topics=others[:10],
            )
        return position

    def _client(self) -> KafkaClient:
        return KafkaClient(self.bootstrap_servers, self._security.for_client() if self._security else {})

    def _reader_options(self, limits: SourceSettings) -> dict[str, str]:
        """Returns the options of Spark's source."""
        connection = self._security.for_java() if self._security else {}
        options = {
            # Without it, Spark would return the records of aborted transactions as well.
            _ISOLATION: "read_committed",
            **self._options,
            **{f"kafka.{name}": value for name, value in connection.items()},
            **_start_options(self._start),
            "kafka.bootstrap.servers": self.bootstrap_servers,
            "includeHeaders": str(self._columns.needs_headers).lower(),
            "failOnDataLoss": str(not self._continues).lower(),
        }
        if self.topics.pattern:
            options["subscribePattern"] = self.topics.pattern
        else:
            options["subscribe"] = ",".join(self.topics.names)
        if limits.max_rows_per_batch is not None:
            options["maxOffsetsPerTrigger"] = str(limits.max_rows_per_batch)
        return options


def _topics(topics: str | Sequence[str], pattern: str) -> Topics:
    names = tuple(sorted({topics} if isinstance(topics, str) and topics else set(topics)))
    if bool(names) == bool(pattern):
        raise JobDefinitionError(
            "a Kafka source needs either topics or a pattern",
            hint='pass topics="flights", topics=["flights", "planes"] or pattern="flights-.*"',
            topics=list(names),
            pattern=pattern,
        )
    return Topics(names, pattern)


def _checked_start(start: Start) -> Start:
    if isinstance(start, str) and start not in (StartKind.EARLIEST, StartKind.LATEST):
        raise ConfigError(
            "the value of start is not supported",
            hint='use "earliest", "latest", a datetime, or offsets of all partitions: {"flights": {0: 1200, 1: 1150}}',
            given=start,
        )
    return start


def _format(value: object) -> ValueFormat:
    found = _FORMATS.get(value) if isinstance(value, str) else value
    if not isinstance(found, ValueFormat):
        raise JobDefinitionError(
            "the format of a record's value is not supported",
            hint=f"use {', '.join(map(repr, _FORMATS))}, or an object such as AvroFormat(registry=…)",
            value=repr(value),
        )
    return found


def _checked_options(options: Mapping[str, str]) -> Mapping[str, str]:
    own = sorted(o for o in options if o.lower() in _OWN_OPTIONS)
    if own:
        raise JobDefinitionError(
            "the Kafka source sets an option of Spark's source itself",
            hint="use the arguments of KafkaSource; the limit of a batch is a setting: source.max_rows_per_batch for "
            "all sources, source.of.UID.max_rows_per_batch for this one",
            options=own,
        )
    secret = sorted(o for o in options if o.lower().startswith(("kafka.sasl.", "kafka.ssl.", "kafka.security.")))
    if secret:
        raise JobDefinitionError(
            "a login is not an option of the source",
            hint="pass security=KafkaSecurity(…), which also takes java_options and client_options",
            options=secret,
        )
    return dict(options)


def _start_options(start: Start) -> dict[str, str]:
    """Returns Spark's options for where a source begins without a position."""
    if isinstance(start, str):
        return {"startingOffsets": start}
    if isinstance(start, datetime):
        # A partition without a record of that time or later begins at its end.
        millis = str(epoch_milliseconds(start))
        return {"startingTimestamp": millis, "startingOffsetsByTimestampStrategy": StartKind.LATEST}
    offsets = {topic: {str(number): offset for number, offset in numbers.items()} for topic, numbers in start.items()}
    return {"startingOffsets": json.dumps(offsets)}


def _describe(gap: Gap[Partition]) -> str:
    topic, number = gap.partition
    return gap.describe(f"{topic}-{number}", counted="records")
