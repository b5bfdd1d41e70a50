"""The Kafka sink: rows of a checkpoint and its token are committed in one transaction of the driver."""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from datetime import timedelta
from functools import cached_property, partial
from importlib.util import find_spec

import pyarrow as pa

from stateflow.api.changelog import Changelog
from stateflow.api.sink import Sink, SinkContext, SinkRewind, SinkTable, Successor, TableChanges
from stateflow.connectors.kafka.client import Connection, KafkaSecurity, Transactions, check_brokers, find_writers
from stateflow.connectors.kafka.formats import JSON, RAW, KafkaRecord, RecordLayout, Value
from stateflow.connectors.staged_output import StagedSink, StagedTable, as_declared
from stateflow.connectors.upserts import UpsertSettings, winning_rows
from stateflow.errors import EnvironmentUnsupported, JobDefinitionError, SinkDiverged, SinkRefused
from stateflow.helpers import check_choice
from stateflow.state.handles import Committable

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
                checkpoint=checkpoint_id,
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
            declared = (as_declared(batch, schema, self._layout.topic) for batch in batches)
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
