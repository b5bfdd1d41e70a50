"""What a CLAIM, a COMMIT and an ADMIN entry say, given the entry before them. Pure."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from msgspec.structs import replace

from stateflow.checkpoint.documents import (
    Ancestry,
    EntryKind,
    EntryRef,
    JobFormat,
    LogEntry,
    PendingOutput,
    Pin,
    PublishedOutput,
    RestoreFacts,
    RetainedLink,
    Rewind,
    SinkIntent,
    SourcePosition,
    WentBack,
)
from stateflow.checkpoint.log import Head
from stateflow.checkpoint.retained import cut_after, inline_retained
from stateflow.state.handles import FileHandle

Admin = Callable[[Head], LogEntry]
"""Makes an ADMIN entry on top of an existing one."""


Published = dict[str, PublishedOutput]
Settled = frozenset[tuple[int, str]]
"""(checkpoint id, sink) of output that is published by now."""


@dataclass(frozen=True)
class Author:
    """Who writes an entry, for people who read the log; `nonce` tells two tries apart.

    Attributes:
        request: id of the restore request that a CLAIM is for.
    """

    writer: str
    nonce: str
    at: str
    note: str = ""
    request: str = ""


@dataclass(frozen=True)
class Commit:
    """What a checkpoint brings to the log.

    Attributes:
        collected: the newest entry when all data was last looked through for garbage; 0 when that is as before.
    """

    ordinal: int
    manifest: FileHandle
    sources: list[SourcePosition]
    output: list[PendingOutput] = field(default_factory=list)
    published: Published = field(default_factory=dict)
    settled: Settled = frozenset()
    collected: int = 0


@dataclass(frozen=True)
class Settlement:
    """What a run that ends has done since its last COMMIT; `collected` as in `Commit`."""

    published: Published = field(default_factory=dict)
    settled: Settled = frozenset()
    collected: int = 0


@dataclass(frozen=True)
class Kept:
    """Which older checkpoints a COMMIT keeps.

    Attributes:
        oldest: the first of them; the COMMIT's own number, or more, when there is none.
        moved: a segment that has them, when they are too many for the entry.
    """

    oldest: int = 0
    moved: RetainedLink | None = None


@dataclass(frozen=True)
class Adoption:
    """What a CLAIM continues from, instead of from where the entry below it stands.

    Attributes:
        upto: the last checkpoint whose output counts. What is pending behind it is dropped, because its batches will
            be replayed; checkpoints behind it are not retained.
        checkpoint: the kept checkpoint that this is; None for state from elsewhere, with which the CLAIM becomes a
            checkpoint itself: what is lost later must never lead back behind it.
        savepoint: what savepoint this is; empty for a checkpoint.
        restore: the request that is carried out with it.
        sinks: what happens to each table; None when this does not concern the tables.
    """

    upto: int
    manifest: FileHandle
    sources: list[SourcePosition]
    checkpoint: EntryRef | None = None
    savepoint: str = ""
    restore: RestoreFacts | None = None
    sinks: dict[str, SinkIntent] | None = None


def claim(job: JobFormat, base: Head | None, author: Author, adopt: Adoption | None) -> LogEntry:
    """The CLAIM that takes the job over after `base`.

    Args:
        adopt: what to continue from; None continues from where `base` stands.
    """
    entry = _successor(job, base, author, EntryKind.CLAIM)
    # A restore's CLAIMs are no runs, and a run that goes back by itself has claimed the job before.
    starts_run = adopt is None and not author.request
    # An older run's savepoint in the making is given up: once its pin is gone, it cannot be completed.
    pinned = [p for p in entry.pinned if not p.generation]
    entry = replace(
        entry, generation=entry.seq, ordinal=0, pinned=pinned, ended=False, claimed_for=author.request,
        run=author.nonce, runs=entry.runs + starts_run,
    )  # fmt: skip
    if adopt is None:
        return entry
    newest = adopt.upto - 1 if adopt.checkpoint else adopt.upto
    entry = replace(
        entry, checkpoint=adopt.checkpoint, manifest=adopt.manifest, sources=adopt.sources,
        retained=[r for r in _older(base) if r.id <= newest],
        retained_before=cut_after(entry.retained_before, newest),
        pending=[p for p in entry.pending if p.checkpoint_id <= adopt.upto],
        requests=[*entry.requests, *_request(adopt)], savepoint=adopt.savepoint,
        ancestry=_gone_back(entry, adopt) if base else entry.ancestry,
    )  # fmt: skip
    if adopt.sinks is None:
        return entry
    # What belongs to the target is published: a restore does that first.
    return _with_intent(replace(entry, pending=[]), adopt.sinks, adopt.restore)


def _request(adopt: Adoption) -> list[str]:
    return [adopt.restore.request] if adopt.restore and adopt.restore.request else []


def _gone_back(entry: LogEntry, adopt: Adoption) -> Ancestry:
    known = entry.ancestry or Ancestry(since=entry.seq)
    base = adopt.restore.base if adopt.restore else adopt.checkpoint.id if adopt.checkpoint else 0
    return replace(known, restores=[*known.restores, WentBack(seq=entry.seq, base=base)])


def _with_intent(entry: LogEntry, sinks: dict[str, SinkIntent], restore: RestoreFacts | None) -> LogEntry:
    # From here on the tables stand at this entry's number, whatever they stood at: what a paused driver publishes
    # before they are rewound is undone, and what it tries after that finds a higher token.
    standing = {
        uid: PublishedOutput(table_id=intent.table_id, version=-1, checkpoint_id=entry.seq)
        for uid, intent in sinks.items()
    }
    rewind = Rewind(seq=entry.seq, sinks=sinks, restore=restore)
    return replace(entry, published={**entry.published, **standing}, rewind=rewind)


def _older(base: Head | None) -> list[EntryRef]:
    """What a successor of `base` that is a checkpoint itself retains, without what is in segments."""
    if base is None:
        return []
    present = _present(base)
    return [*inline_retained(base.entry), *([present] if present else [])]


def commit(job: JobFormat, base: Head, author: Author, new: Commit, kept: Kept) -> LogEntry:
    """The COMMIT that makes a checkpoint exist after `base`.

    Args:
        kept: which checkpoints stay restorable, besides this one; found out at `base`, or before ADMIN entries below
            it.
    """
    entry = _successor(job, base, author, EntryKind.COMMIT)
    unsettled = [p for p in entry.pending if (p.checkpoint_id, p.sink) not in new.settled]
    oldest, before = max(kept.oldest, entry.oldest_retained), kept.moved or entry.retained_before
    # The bound of `moved` is that of the segment: a retention that was shortened meanwhile is in `oldest`.
    moved = kept.moved.newest if kept.moved else 0
    return _bounded(replace(
        entry, ordinal=new.ordinal, checkpoint=None, manifest=new.manifest, sources=new.sources, savepoint="",
        claimed_for="", retained=[ref for ref in _older(base) if ref.id > moved], retained_before=before,
        pending=[*unsettled, *new.output], published={**entry.published, **new.published},
        collected=new.collected or entry.collected,
    ), oldest)  # fmt: skip


def _bounded(entry: LogEntry, oldest: int) -> LogEntry:
    """The entry without retained checkpoints before `oldest`."""
    link = entry.retained_before
    before = link if link and link.newest >= oldest else None
    return replace(
        entry, oldest_retained=oldest, retained=[ref for ref in entry.retained if ref.id >= oldest],
        retained_before=before, times=None if before else {},
    )  # fmt: skip


def pin(job: JobFormat, base: Head, author: Author, new: Pin) -> LogEntry:
    """The ADMIN that keeps a checkpoint while somebody outside reads it."""
    entry = _successor(job, base, author, EntryKind.ADMIN)
    # Appended again, where it is not known whether it counts.
    return replace(entry, pinned=[*(p for p in entry.pinned if p.id != new.id), new])


def unpin(job: JobFormat, base: Head, author: Author, pin_id: str) -> LogEntry:
    """The ADMIN that lets a pinned checkpoint go."""
    entry = _successor(job, base, author, EntryKind.ADMIN)
    return replace(entry, pinned=[p for p in entry.pinned if p.id != pin_id])


def retain(job: JobFormat, base: Head, author: Author, oldest: int) -> LogEntry:
    """The ADMIN that retains no checkpoint before `oldest` any more, but for the present one."""
    entry = _successor(job, base, author, EntryKind.ADMIN)
    return _bounded(entry, max(oldest, entry.oldest_retained))


def settle(job: JobFormat, base: Head, author: Author, done: Settlement) -> LogEntry:
    """The ADMIN by which a run says that it ends, and what it has published since its last COMMIT."""
    entry = _successor(job, base, author, EntryKind.ADMIN)
    left = [p for p in entry.pending if (p.checkpoint_id, p.sink) not in done.settled]
    return replace(
        entry, pending=left, published={**entry.published, **done.published}, ended=True,
        collected=done.collected or entry.collected,
    )  # fmt: skip


def rewound(job: JobFormat, base: Head, author: Author, published: Published) -> LogEntry:
    """The ADMIN by which a start tells that every table of a restore has gone back."""
    entry = _successor(job, base, author, EntryKind.ADMIN)
    return replace(entry, rewind=None, published={**entry.published, **published})


def pending_of(head: Head) -> list[PendingOutput]:
    """Unpublished output as of `head`, oldest first, each with the id of its checkpoint.

    A COMMIT cannot name its own id before it has one: 0 stands for it there.
    """
    own = head.entry.seq
    return [p if p.checkpoint_id else replace(p, checkpoint_id=own) for p in head.entry.pending]


def _successor(job: JobFormat, base: Head | None, author: Author, kind: EntryKind) -> LogEntry:
    """The entry after `base` that takes over all that `base` says."""
    if base is None:
        return LogEntry(job_uuid=job.job_uuid, seq=1, kind=kind, generation=1, ordinal=0, writer=author.writer,
                        nonce=author.nonce, parent="", at=author.at, note=author.note,
                        ancestry=Ancestry(since=1))  # fmt: skip
    seq = base.entry.seq + 1
    return _bounded(replace(
        base.entry, seq=seq, kind=kind, writer=author.writer, nonce=author.nonce, parent=base.sha256,
        at=author.at, note=author.note, checkpoint=_present(base), pending=pending_of(base),
        ancestry=base.entry.ancestry or Ancestry(since=seq), retained=inline_retained(base.entry),
    ), base.entry.oldest_retained)  # fmt: skip


def _present(base: Head) -> EntryRef | None:
    """The checkpoint of `base`, with its time, which older versions keep apart."""
    ref, times = base.checkpoint, base.entry.times or {}
    return ref if ref is None or ref.at else replace(ref, at=times.get(str(ref.id), ""))
