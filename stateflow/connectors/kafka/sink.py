"""The Kafka sink: rows of a checkpoint and its token are committed in one transaction of the driver."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from importlib.util import find_spec

from stateflow.api.changelog import Changelog
from stateflow.api.sink import Sink, SinkContext, SinkTable
from stateflow.connectors.arguments import check_choice
from stateflow.connectors.kafka.client import check_brokers
from stateflow.connectors.kafka.records import JSON, RAW, RecordLayout, Value
from stateflow.connectors.kafka.security import KafkaSecurity
from stateflow.connectors.kafka.sink_table import KafkaTable
from stateflow.connectors.kafka.transactions import Connection, Transactions, writers
from stateflow.connectors.staged_output import StagedSink
from stateflow.connectors.upserts import UpsertSettings
from stateflow.errors import EnvironmentUnsupported, JobDefinitionError, SinkDiverged, SinkRefused

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
            raise JobDefinitionError("a Kafka sink has no topic", hint="pass topic=…, also with topic_column")
        given = sorted(_OWN_OPTIONS & (options or {}).keys())
        if given:
            raise JobDefinitionError(
                "an option of the producer is set by the Kafka sink itself",
                hint="leave it out; use security=KafkaSecurity(…) for TLS and login",
                options=given,
            )
        names = (key,) if isinstance(key, str) and key else tuple(key)
        layout = RecordLayout(topic, value, names, topic_column, headers, timestamp)
        self._settings = _Settings(check_brokers(bootstrap_servers), layout, security, dict(options or {}))
        self._transactions: dict[str, Transactions] = {}

    def __repr__(self) -> str:
        return f"KafkaSink({self._settings.layout.topic!r})"

    def __reduce__(self) -> tuple[Callable[..., KafkaSink], tuple[_Settings]]:
        # Tasks do not need connections.
        return _sink, (self._settings,)

    @property
    def location(self) -> str:
        return f"topic {self._settings.layout.topic} of {self._settings.bootstrap_servers}"

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
        settings = self._settings
        output, others = (settings.layout, settings.cancels), partial(self._others, context)
        return KafkaTable(context, table_id, output, self._transactions_of, others)

    def shadow(self) -> KafkaSink:
        layout = self._settings.layout
        shadow = replace(layout, topic=layout.topic + _SUFFIX, suffix=layout.suffix + _SUFFIX)
        return _sink(replace(self._settings, layout=shadow))

    def with_settings(self, settings: _Settings) -> KafkaSink:
        """Returns this sink with all settings, also those that are no arguments."""
        self._settings = settings
        return self

    def _others(self, context: SinkContext, only_published: bool) -> frozenset[str]:
        """Returns the applications of other jobs with a sink of the same uid that write to the topic."""
        own = f"{_GROUP}{context.application}"
        names = (g for g in self._connection.groups() if g.startswith(_GROUP) and g != own)
        named = [name for name in names if name.partition("/")[2] == context.uid]
        topic = self._settings.layout.topic
        found = writers(self._connection, topic, named, own=own, only_published=only_published)
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
    layout = settings.layout
    sink = KafkaSink(
        settings.bootstrap_servers,
        topic=layout.topic,
        topic_column=layout.topic_column,
        key=layout.key,
        value=layout.value,
        headers=layout.headers,
        timestamp=layout.timestamp,
        security=settings.security,
        options=settings.options,
    )
    return sink.with_settings(settings)


def _require_client() -> None:
    if find_spec("confluent_kafka") is None:
        raise EnvironmentUnsupported(
            "a package for Kafka is not installed",
            hint="install it on the driver: pip install 'stateflow[kafka]'",
            package="confluent-kafka",
        )
