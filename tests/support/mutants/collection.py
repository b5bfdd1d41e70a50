"""Bugs of the collector, which deletes unreferenced objects."""

from __future__ import annotations

from msgspec.structs import replace

from stateflow.checkpoint import garbage_collector as garbage
from stateflow.checkpoint.garbage_collector import Collector
from stateflow.checkpoint.log.checkpoint_log import Head
from stateflow.checkpoint.log.completed_checkpoints import AdminEntries
from stateflow.checkpoint.log.documents import LogEntry
from stateflow.checkpoint.log.transitions import drop_expired
from stateflow.storage import BlobInfo
from stateflow.storage.paths import LOG, DataKey
from tests.support.mutants.registry import Mutant, Mutants

MUTANTS = Mutants()


@MUTANTS.plant("own-objects", (Collector, "_needed_by_entry"), rules="I3")
def _without_own_objects(self: Collector, head: Head) -> dict[str, frozenset[str]]:
    """A collection ignores the objects that the log entry itself refers to."""
    return {}


@MUTANTS.plant("no-ordinals", (garbage, "is_past"), rules="I3 I4")
def _past_by_seq(data: DataKey, head: LogEntry) -> bool:
    """Files are named and collected by sequence number instead of ordinal."""
    # The simulator names them (`Site.name_by_seq`).
    return data.generation < head.generation or (data.generation == head.generation and data.ordinal <= head.seq)


@MUTANTS.plant("collected-once", (Collector, "_live_at_head"), rules="I3", plan="busy")
def _live_at_first_head(self: Collector) -> tuple[Head, frozenset[str]]:
    """A collector reports objects as missing that another collector deleted after they were released."""
    head = self.root.head()
    return head, self.live(head)


_live = Collector.live


@MUTANTS.plant("lease-by-clock", (Collector, "live"), rules="I3", plan="leases")
def _live_by_clock(self: Collector, head: Head) -> frozenset[str]:
    """A collector decides by its own clock that a pin is over, before an entry of the log drops the pin."""
    pins = drop_expired(head.entry.pinned, self.root.clock.now().isoformat())
    return _live(self, Head(replace(head.entry, pinned=pins), head.sha256))


_delete = Collector._delete


def _delete_data_only(self: Collector, garbage: tuple[BlobInfo, ...]) -> None:
    _delete(self, tuple(blob for blob in garbage if not blob.key.startswith(LOG)))


MUTANTS.add(
    Mutant(
        "kept-entries",
        "A collection does not delete unreferenced log entries.",
        ((Collector, "_delete", _delete_data_only), (AdminEntries, "_delete_replaced", lambda *_: None)),
    )
)
