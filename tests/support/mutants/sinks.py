"""Bugs of publishing output, and of what Spark is given to read."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa

from stateflow.checkpoint import sink_commit
from stateflow.checkpoint.log import transitions
from stateflow.checkpoint.log.checkpoint_log import CheckpointLog, Head
from stateflow.checkpoint.log.documents import PendingOutput, PublishedOutput
from stateflow.checkpoint.sink_commit import Decision, PublishingSink, SinkOutput
from stateflow.connectors.delta.sink import DeltaSinkTable
from stateflow.connectors.staged_output import StagedTable
from stateflow.runtime import publisher
from stateflow.runtime.spark.checkpoint_location import SparkLocation
from stateflow.state.handles import Committable
from stateflow.storage import Storage
from stateflow.storage.paths import data_prefixes, parse_data
from tests.support.mutants.registry import Mutants

MUTANTS = Mutants()


@MUTANTS.plant("no-token", (sink_commit, "decide"))
def _always_publish(*_: object) -> Decision:
    """Output is published without a check of the table's token."""
    return Decision.PUBLISH


@MUTANTS.plant("two-handles", (publisher, "publish"), rules="S1")
def _publish_on_another_handle(
    sink: PublishingSink, output: SinkOutput, log: CheckpointLog, head: Head
) -> PublishedOutput:
    """The sink's token is read from one handle of the table, and committed with another."""
    table = sink.open_table()
    token = sink_commit._token(table, output.known)
    decision = sink_commit.decide(token, output.known.checkpoint_id, output.checkpoint_id, head.entry.seq)
    if decision is Decision.ALREADY:
        return sink_commit._position(table, table.version, output)
    if decision is not Decision.PUBLISH:
        raise sink_commit._refusal(decision, sink, table, log)
    version = None
    while version is None:
        version = sink.open_table().commit(output.checkpoint_id, output.committables)
    return sink_commit._position(table, version, output)


_pending_of = transitions.pending_of


@MUTANTS.plant("no-pending", (transitions, "pending_of"), (publisher, "pending_of"), rules="S1 S2")
def _newest_pending(head: Head) -> list[PendingOutput]:
    """Only the newest checkpoint's output is treated as pending."""
    return [p for p in _pending_of(head) if p.checkpoint_id == head.checkpoint_id]


_commit, _staged_rows = DeltaSinkTable.commit, StagedTable.staged_rows


@MUTANTS.plant("all-there-is", (DeltaSinkTable, "commit"))
def _commit_all_there_is(self: DeltaSinkTable, token: int, committables: list[Committable]) -> int | None:
    """A commit publishes every file of its batch, those of killed task attempts included."""
    if not committables:
        return _commit(self, token, committables)
    named = {c.path for c in committables}
    like = committables[0]
    stem = like.path.split("-s")[0]
    others = [p for p in self._root.glob(f"{stem}-s*.parquet") if p.name not in named]
    return _commit(self, token, [*committables, *(_as_committable(like, path) for path in others)])


def _as_committable(like: Committable, path: Path) -> Committable:
    return Committable(path=path.name, size=path.stat().st_size, rows=like.rows)


_seed = SparkLocation.create


@MUTANTS.plant("no-seed", (SparkLocation, "create"))
def _seed_nothing(self: SparkLocation, _: Any, query_id: str, sources: Any) -> None:
    """A start does not restore the sources' positions in Spark."""
    _seed(self, None, query_id, sources)


@MUTANTS.plant("all-staged", (StagedTable, "staged_rows"))
def _all_staged_rows(self: StagedTable, committables: list[Committable]) -> Iterator[pa.RecordBatch]:
    """A publication has every staged file of its checkpoint, those of killed task attempts included."""
    storage, found = self.context.storage, {c.path: c for c in committables}
    assert storage is not None
    for key in map(parse_data, tuple(found)):
        assert key is not None
        for prefix in data_prefixes(key.generation, [key.ordinal]):
            for blob in storage.list(prefix):
                if blob.key.endswith(f"/{key.name}") and blob.key not in found:
                    found[blob.key] = Committable(path=blob.key, size=blob.size, rows=_rows_of(storage, blob.key))
    yield from _staged_rows(self, list(found.values()))


def _rows_of(storage: Storage, key: str) -> int:
    with storage.local_copy(key) as path, pa.OSFile(str(path)) as source, pa.ipc.open_file(source) as file:
        return sum(file.get_batch(number).num_rows for number in range(file.num_record_batches))
