"""The protocol with one rule taken out, each by replacing one function of the real code.

A simulator that finds nothing in the real code says something only as far as it finds these.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from stateflow.checkpoint import collector, entries, garbage, log
from stateflow.checkpoint import publish as publishing
from stateflow.checkpoint.documents import EntryRef, LogEntry, PendingOutput, PublishedOutput
from stateflow.checkpoint.envelope import seal
from stateflow.checkpoint.log import Appended, CheckpointLog, Draft, Head, Overtaken
from stateflow.checkpoint.publish import Output, PublishingSink
from stateflow.errors import StorageError
from stateflow.storage import PutResult
from stateflow.storage.paths import DataKey, log_entry
from tests.model import actors
from tests.model.plan import Plan


@dataclass(frozen=True)
class Mutant:
    """A mistake: what is replaced where, and what the history that shows it breaks."""

    what: str
    places: tuple[tuple[Any, str], ...]
    replacement: Callable[..., Any]
    rules: tuple[str, ...]
    """Any of these is the right finding."""
    plan: Plan | None = None
    """A directed search; by default the histories are those that the real code passes."""
    name_by_seq: bool = False

    @contextmanager
    def applied(self) -> Iterator[None]:
        """The real code with the mistake in it."""
        originals = [(place, name, getattr(place, name)) for place, name in self.places]
        for place, name in self.places:
            setattr(place, name, self.replacement)
        try:
            yield
        finally:
            for place, name, original in originals:
                setattr(place, name, original)


def _append_without_list(self: CheckpointLog, parent: Head | None, draft: Draft) -> Appended | Overtaken:
    base = parent
    while True:
        own = self._create(draft(base))
        if own is not None:
            return Appended(own, own)
        head = self._follow(base)
        if head is None or head == base:
            return Overtaken(created=False)
        base = head


def _create_without_read_back(self: CheckpointLog, entry: LogEntry) -> Head | None:
    data, digest = seal(entry)
    result = self.storage.put_new(log_entry(entry.seq), data)
    return None if result is PutResult.EXISTS else Head(entry, digest)


def _conflict_unless_created(self: CheckpointLog, entry: LogEntry) -> Head | None:
    data, digest = seal(entry)
    for _ in range(8):
        result = self.storage.put_new(log_entry(entry.seq), data)
        if result is not PutResult.UNKNOWN:
            return Head(entry, digest) if result is PutResult.CREATED else None
    raise StorageError("no answer")


def _trust_any_hash(found: Head, ref: EntryRef) -> None:
    pass


def _past_by_seq(data: DataKey, head: LogEntry) -> bool:
    return data.generation < head.generation or (data.generation == head.generation and data.ordinal <= head.seq)


def _publish_on_another_handle(sink: PublishingSink, output: Output, log: CheckpointLog, head: Head) -> PublishedOutput:
    table = sink.open_table()
    decision = publishing.decide(table.token, output.known.checkpoint_id, output.checkpoint_id, head.entry.seq)
    if decision is publishing.Decision.ALREADY:
        return publishing._standing(table, table.version, output)
    if decision is not publishing.Decision.PUBLISH:
        raise publishing._refusal(decision, sink.uid, table, log)
    version = None
    while version is None:
        version = sink.open_table().commit(output.checkpoint_id, output.committables)
    return publishing._standing(table, version, output)


def _newest_pending(head: Head) -> list[PendingOutput]:
    pending = entries._named(head, head.entry.pending)
    return [p for p in pending if p.checkpoint_id == head.checkpoint_id]


MUTANTS: dict[str, Mutant] = {
    "no-list": Mutant(
        "an entry is acknowledged without the LIST after its creation",
        ((CheckpointLog, "append"),), _append_without_list, ("I6",),
    ),
    "no-read-back": Mutant(
        "a put whose answer was lost counts as done",
        ((CheckpointLog, "_create"),), _create_without_read_back, ("I6", "I9"),
    ),
    "no-comparison": Mutant(
        "a put that finds its slot taken counts as a conflict, without looking whose bytes are there",
        ((CheckpointLog, "_create"),), _conflict_unless_created, ("I9",),
    ),
    "no-hash": Mutant(
        "a retained checkpoint's entry is believed without comparing its hash",
        ((CheckpointLog, "_check_retained"),), staticmethod(_trust_any_hash), ("I3",),
    ),
    "no-ordinals": Mutant(
        "files are named and collected by sequence number instead of ordinal",
        ((garbage, "is_past"),), _past_by_seq, ("I3", "I4"), name_by_seq=True,
    ),
    "two-handles": Mutant(
        "the sink's token is read from one handle, and another commits",
        ((actors, "publish"),), _publish_on_another_handle, ("S1",),
    ),
    "no-pending": Mutant(
        "only the newest checkpoint's output is pending",
        ((entries, "pending_of"), (actors, "pending_of")), _newest_pending, ("S1", "S2"),
    ),
}  # fmt: skip
