"""The protocol with one rule taken out, each by replacing one function of the real code.

A simulator that finds nothing in the real code says something only as far as it finds these.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from stateflow.checkpoint import entries, garbage, jobroot
from stateflow.checkpoint import publish as publishing
from stateflow.checkpoint.collector import Collector
from stateflow.checkpoint.documents import EntryRef, LogEntry, PendingOutput, Pin, PublishedOutput
from stateflow.checkpoint.envelope import seal
from stateflow.checkpoint.jobroot import JobRoot, kept
from stateflow.checkpoint.log import Appended, CheckpointLog, Draft, Head, Overtaken
from stateflow.checkpoint.publish import Output, PublishingSink
from stateflow.errors import DataError, StorageError
from stateflow.runtime import publishing as runtime
from stateflow.storage import PutResult
from stateflow.storage.paths import DataKey, log_entry


@dataclass(frozen=True)
class Mutant:
    """A mistake: what is replaced where, and what the history that shows it breaks."""

    what: str
    places: tuple[tuple[Any, str], ...]
    replacement: Callable[..., Any]
    rules: tuple[str, ...]
    """Any of these is the right finding."""
    plan: str = ""
    """A directed search; by default the histories are those of the code as it is."""
    name_by_seq: bool = False

    @contextmanager
    def applied(self) -> Iterator[None]:
        """The real code with the mistake in it."""
        originals = [(place, name, vars(place)[name]) for place, name in self.places]
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
    return data.generation < head.generation or (
        data.generation == head.generation and data.ordinal <= head.seq
    )


def _publish_on_another_handle(
    sink: PublishingSink, output: Output, log: CheckpointLog, head: Head
) -> PublishedOutput:
    table = sink.open_table()
    decision = publishing.decide(
        table.token, output.known.checkpoint_id, output.checkpoint_id, head.entry.seq
    )
    if decision is publishing.Decision.ALREADY:
        return publishing._standing(table, table.version, output)
    if decision is not publishing.Decision.PUBLISH:
        raise publishing._refusal(decision, sink.uid, table, log)
    version = None
    while version is None:
        version = sink.open_table().commit(output.checkpoint_id, output.committables)
    return publishing._standing(table, version, output)


_pending_of = entries.pending_of


def _newest_pending(head: Head) -> list[PendingOutput]:
    return [p for p in _pending_of(head) if p.checkpoint_id == head.checkpoint_id]


def _create_with_two_reads(self: CheckpointLog, entry: LogEntry) -> Head | None:
    key = log_entry(entry.seq)
    data, digest = seal(entry)
    for _ in range(4):
        result = self.storage.put_new(key, data)
        if result is PutResult.CREATED or self._bytes_of(key) == data:
            return Head(entry, digest)
        if result is PutResult.EXISTS or self.storage.size(key) is not None:
            return None
    raise StorageError("no answer")


def _pin_checked_once(self: JobRoot, ref: EntryRef, owner: str, reason: str) -> Pin:
    new = Pin(id=self.clock.new_id(), checkpoint=ref, owner=owner, reason=reason, since="")
    while True:
        head = self.head()
        if new in head.entry.pinned:
            return new
        if ref not in kept(head):
            raise DataError("the checkpoint is not retained any more")
        if self._admin(head, lambda b: entries.pin(self.job, b, self._author(reason), new)):
            return new


def _claim_checked_once(
    self: JobRoot, base: Head | None, note: str, adopt: EntryRef | None
) -> Appended | Overtaken:
    jobroot._check_adoptable(base, adopt)
    adopted = (adopt, self.log.read_checkpoint(adopt)) if adopt else None
    return self.log.append(base, lambda b: entries.claim(self.job, b, self._author(note), adopted))


def _live_at_first_head(self: Collector) -> tuple[Head, frozenset[str]]:
    head = self.root.head()
    return head, self.live(head)


def _go_back_on_top_of_anything(self: JobRoot, head: Head, ref: EntryRef, note: str = "") -> Head:
    return self.claim(note, adopt=ref)


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
        ((CheckpointLog, "_check_retained"),), staticmethod(_trust_any_hash), ("I3",), plan="held",
    ),
    "no-ordinals": Mutant(
        "files are named and collected by sequence number instead of ordinal",
        ((garbage, "is_past"),), _past_by_seq, ("I3", "I4"), name_by_seq=True,
    ),
    "two-handles": Mutant(
        "the sink's token is read from one handle, and another commits",
        ((runtime, "publish"),), _publish_on_another_handle, ("S1",),
    ),
    "no-pending": Mutant(
        "only the newest checkpoint's output is pending",
        ((entries, "pending_of"), (runtime, "pending_of")), _newest_pending, ("S1", "S2"),
    ),
    # Mistakes that the simulator found in the code itself.
    "two-reads": Mutant(
        "a put is read back twice, and one's own late write arrives in between",
        ((CheckpointLog, "_create"),), _create_with_two_reads, ("I9",),
    ),
    "pin-checked-once": Mutant(
        "a pin is not checked again when it comes to stand on another ADMIN",
        ((JobRoot, "pin"),), _pin_checked_once, ("I3",), plan="commands",
    ),
    "adoption-checked-once": Mutant(
        "a checkpoint to go back to is not checked again when the CLAIM comes to stand on an ADMIN",
        ((JobRoot, "_append_claim"),), _claim_checked_once, ("I3",), plan="commands",
    ),
    "collected-once": Mutant(
        "a collector takes what another let go and collected meanwhile for damage",
        ((Collector, "_live_at_head"),), _live_at_first_head, ("I3",), plan="busy",
    ),
    "go-back-anyway": Mutant(
        "a run goes back on top of whatever a newer run has done since",
        ((JobRoot, "go_back"),), _go_back_on_top_of_anything, ("S1",), plan="vacuum",
    ),
}  # fmt: skip
