"""A topic as the table of a sink: publishes staged rows, and cannot be rewound."""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping
from contextlib import closing
from datetime import timedelta

import pyarrow as pa

from stateflow.api.sink import SinkContext, SinkRewind, Successor, TableChanges
from stateflow.connectors.kafka.records import Record, RecordLayout
from stateflow.connectors.kafka.transactions import Transactions
from stateflow.connectors.staged_output import StagedTable, as_declared
from stateflow.connectors.upserts import UpsertSettings, winning_rows
from stateflow.errors import SinkDiverged, SinkRefused
from stateflow.state.handles import Committable

_KEEP_HINT = "keep the topic as it is with --keep-table UID: records after the checkpoint are then written again"

_SHORTEST_RETENTION = timedelta(hours=12)
"""Age of pending output up to which a token cannot have expired since its publication."""


class KafkaTable(StagedTable):
    """A handle of a sink's topic, with the token that was read when it was created.

    Kafka has no versions of a topic, so the token is the version.

    Args:
        context: the sink.
        table_id: id of the topic.
        output: how rows become records; and how rows of a checkpoint cancel, or None if they do not.
        transactions: returns the transactions of an application.
        others: returns the applications of other jobs that write to the topic with a sink of the same uid; with True,
            only those that have published.
    """

    def __init__(
        self,
        context: SinkContext,
        table_id: str,
        output: tuple[RecordLayout, UpsertSettings | None],
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
        self._layout, self._cancels = output
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

    def _records(self, committables: list[Committable]) -> Generator[Record, None, None]:
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
