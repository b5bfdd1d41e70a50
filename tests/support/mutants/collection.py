"""Bugs of the collector, which deletes what no checkpoint needs."""

from __future__ import annotations

from stateflow.checkpoint.gc import reachability
from stateflow.checkpoint.gc.collector import Collector
from stateflow.checkpoint.log.admin_entries import AdminEntries
from stateflow.checkpoint.log.checkpoint_log import Head
from stateflow.checkpoint.log.documents import LogEntry
from stateflow.storage import BlobInfo
from stateflow.storage.paths import LOG, DataKey
from tests.support.mutants.registry import Mutant, Mutants

MUTANTS = Mutants()


@MUTANTS.plant("own-objects", (Collector, "_needed_by_entry"), rules="I3")
def _without_own_objects(self: Collector, head: Head) -> dict[str, frozenset[str]]:
    """A collection ignores what the log entry itself names."""
    return {}


@MUTANTS.plant("no-ordinals", (reachability, "is_past"), rules="I3 I4")
def _past_by_seq(data: DataKey, head: LogEntry) -> bool:
    """Files are named and collected by sequence number instead of ordinal."""
    # The simulator names them (`Site.name_by_seq`).
    return data.generation < head.generation or (data.generation == head.generation and data.ordinal <= head.seq)


@MUTANTS.plant("collected-once", (Collector, "_live_at_head"), rules="I3", plan="busy")
def _live_at_first_head(self: Collector) -> tuple[Head, frozenset[str]]:
    """A collector takes what another one released and collected meanwhile for damage."""
    head = self.root.head()
    return head, self.live(head)


_delete = Collector._delete


def _delete_data_only(self: Collector, garbage: tuple[BlobInfo, ...]) -> None:
    _delete(self, tuple(blob for blob in garbage if not blob.key.startswith(LOG)))


MUTANTS.add(
    Mutant(
        "kept-entries",
        "A collection leaves log entries that nothing needs.",
        ((Collector, "_delete", _delete_data_only), (AdminEntries, "_delete_replaced", lambda *_: None)),
    )
)
