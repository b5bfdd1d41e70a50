"""Builds the content of CLAIM, COMMIT and ADMIN entries from the previous entry. Pure functions."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime

from msgspec.structs import replace

from stateflow.checkpoint.log.checkpoint_log import Head
from stateflow.checkpoint.log.documents import (
    Ancestry,
    ClaimedSavepoint,
    EntryKind,
    EntryRef,
    JobFormat,
    LogEntry,
    PendingOutput,
    Pin,
    PublishedOutput,
    RestoreFacts,
    RestoreStep,
    RetainedLink,
    Rewind,
    SinkIntent,
    SourcePosition,
)
from stateflow.checkpoint.log.entry_lists import cut_after, list_inline_refs
from stateflow.clock import Clock
from stateflow.state.handles import FileHandle

Published = dict[str, PublishedOutput]
Settled = frozenset[tuple[int, str]]
"""(checkpoint id, sink) of output that was published."""


@dataclass(frozen=True)
class Author:
    """The writer of an entry, for display.

    Attributes:
        writer: name of the process.
        nonce: unique id of this attempt to write an entry.
        at: timestamp, ISO 8601.
        note: text of the entry.
        request: id of the restore request that a CLAIM is for.
    """

    writer: str
    nonce: str
    at: str
    note: str = ""
    request: str = ""

    @classmethod
    def now(cls, clock: Clock, writer: str, note: str = "", request: str = "") -> Author:
        """Returns the author of an entry that is written now, with a new nonce."""
        at = clock.now().isoformat(timespec="milliseconds")
        return cls(writer, clock.new_id(), at, note, request)


@dataclass(frozen=True)
class Commit:
    """The content that a checkpoint adds to the log.

    Attributes:
        ordinal: number of its barrier in the run.
        manifest: its manifest.
        sources: its source positions.
        output: its output, not published yet.
        published: position of each sink's table that is known by now, by uid.
        settled: output that is no longer pending.
        collected: the newest entry when all data was last looked through for garbage; 0 when unchanged.
        history: the newest index of the history; None when unchanged.
    """

    ordinal: int
    manifest: FileHandle
    sources: list[SourcePosition]
    output: list[PendingOutput] = field(default_factory=list)
    published: Published = field(default_factory=dict)
    settled: Settled = frozenset()
    collected: int = 0
    history: FileHandle | None = None


@dataclass(frozen=True)
class Settlement:
    """The output that a run has published since its last COMMIT when it ends. The attributes are as for `Commit`."""

    published: Published = field(default_factory=dict)
    settled: Settled = frozenset()
    collected: int = 0
    history: FileHandle | None = None


@dataclass(frozen=True)
class Kept:
    """The older checkpoints that a COMMIT keeps.

    Attributes:
        oldest: id of the first of them; the COMMIT's own number, or more, when it keeps none.
        segment: the segment that lists them, when there are too many for the entry.
    """

    oldest: int = 0
    segment: RetainedLink | None = None


@dataclass(frozen=True)
class Adoption:
    """The checkpoint that a CLAIM continues from, instead of the current checkpoint of the entry before it.

    Attributes:
        upto: id of the last checkpoint whose output counts. Pending output after it is dropped, because its batches
            will be replayed; checkpoints after it are not retained.
        manifest: manifest of the checkpoint.
        sources: source positions of the checkpoint.
        checkpoint: the kept checkpoint; None for imported state, with which the CLAIM becomes a checkpoint itself:
            no later loss of a checkpoint may lead back to before it.
        savepoint: label of the savepoint; empty for a checkpoint.
        restore: the restore request that this carries out.
        sinks: what happens to each table, by uid of the sink; None when tables are not affected.
        claimed: the savepoint, if the job claims it.
        watermark: `Manifest.output_watermark` of the checkpoint.
    """

    upto: int
    manifest: FileHandle
    sources: list[SourcePosition]
    checkpoint: EntryRef | None = None
    savepoint: str = ""
    restore: RestoreFacts | None = None
    sinks: dict[str, SinkIntent] | None = None
    claimed: ClaimedSavepoint | None = None
    watermark: int | None = None


def claim(
    job: JobFormat, base: Head | None, author: Author, adopt: Adoption | None, announced: ClaimedSavepoint | None = None
) -> LogEntry:
    """Returns the CLAIM of a run, after `base`.

    Args:
        job: the job.
        base: the entry before it; None in an empty log.
        author: the process that claims the job.
        adopt: the state to continue from; None continues from the current checkpoint of `base`.
        announced: a savepoint that the process will claim, so that a later start undoes it if the process is killed.
    """
    entry = _successor(job, base, author, EntryKind.CLAIM)
    # The CLAIMs of a restore command are not runs, and a run that restores by itself has claimed the job before.
    starts_run = adopt is None and not author.request
    # An older run's unfinished savepoint is abandoned: without its pin, it cannot be completed.
    pinned = [p for p in entry.pinned if not p.generation]
    entry = replace(
        entry,
        generation=entry.seq,
        ordinal=0,
        pinned=pinned,
        ended=False,
        claimed_for=author.request,
        run=author.nonce,
        runs=entry.runs + starts_run,
    )
    if announced is not None:
        entry = _with_claimed(entry, replace(announced, generation=entry.seq))
    if adopt is None:
        return entry
    if adopt.claimed is not None:
        entry = _with_claimed(entry, replace(adopt.claimed, checkpoint=entry.seq))
    newest = adopt.upto - 1 if adopt.checkpoint else adopt.upto
    entry = replace(
        entry,
        checkpoint=adopt.checkpoint,
        manifest=adopt.manifest,
        sources=adopt.sources,
        retained=[r for r in _older(base) if r.id <= newest],
        retained_before=cut_after(entry.retained_before, newest),
        pending=[p for p in entry.pending if p.checkpoint_id <= adopt.upto],
        requests=[*entry.requests, *_request(adopt)],
        savepoint=adopt.savepoint,
        ancestry=_with_restore(entry, adopt) if base else entry.ancestry,
    )
    if adopt.sinks is None:
        return entry
    # The pending output of the target is published: a restore does that first.
    return _with_intent(replace(entry, pending=[]), adopt.sinks, adopt.restore)


def _with_claimed(entry: LogEntry, claimed: ClaimedSavepoint) -> LogEntry:
    others = [c for c in entry.claimed_savepoints if c.folder != claimed.folder]
    return replace(entry, claimed_savepoints=[*others, claimed])


def _request(adopt: Adoption) -> list[str]:
    return [adopt.restore.request] if adopt.restore and adopt.restore.request else []


def _with_restore(entry: LogEntry, adopt: Adoption) -> Ancestry:
    base = adopt.restore.base if adopt.restore else adopt.checkpoint.id if adopt.checkpoint else 0
    step = RestoreStep(seq=entry.seq, base=base, watermark=adopt.watermark)
    return Ancestry(restores=[*entry.ancestry.restores, step])


def _with_intent(entry: LogEntry, sinks: dict[str, SinkIntent], restore: RestoreFacts | None) -> LogEntry:
    # From here on the tables' position is this entry's number, whatever it was before: what a paused driver publishes
    # before they are rewound is undone, and what it tries after that finds a higher token.
    positions = {
        uid: PublishedOutput(table_id=intent.table_id, version=-1, checkpoint_id=entry.seq)
        for uid, intent in sinks.items()
    }
    rewind = Rewind(seq=entry.seq, sinks=sinks, restore=restore)
    return replace(entry, published={**entry.published, **positions}, rewind=rewind)


def _older(base: Head | None) -> list[EntryRef]:
    """Returns what a checkpoint after `base` retains, without what is in segments."""
    if base is None:
        return []
    return [*list_inline_refs(base.entry), *([base.checkpoint] if base.checkpoint else [])]


def commit(job: JobFormat, base: Head, author: Author, new: Commit, kept: Kept) -> LogEntry:
    """Returns the COMMIT by which a checkpoint exists, after `base`.

    Args:
        job: the job.
        base: the entry before it.
        author: the run.
        new: the checkpoint.
        kept: which other checkpoints stay restorable; determined at `base`, or at an entry before `base` with only
            ADMIN entries in between.
    """
    entry = _successor(job, base, author, EntryKind.COMMIT)
    unsettled = [p for p in entry.pending if (p.checkpoint_id, p.sink) not in new.settled]
    oldest, before = max(kept.oldest, entry.oldest_retained), kept.segment or entry.retained_before
    # This is the bound of the segment; a retention that a command has shortened since is in `oldest`.
    in_segment = kept.segment.newest if kept.segment else 0
    return _bounded(
        replace(
            entry,
            ordinal=new.ordinal,
            checkpoint=None,
            manifest=new.manifest,
            sources=new.sources,
            savepoint="",
            claimed_for="",
            retained=[ref for ref in _older(base) if ref.id > in_segment],
            retained_before=before,
            pending=[*unsettled, *new.output],
            published={**entry.published, **new.published},
            collected=new.collected or entry.collected,
            history=new.history or entry.history,
        ),
        oldest,
    )


def _bounded(entry: LogEntry, oldest: int) -> LogEntry:
    """Returns the entry without retained checkpoints before `oldest`."""
    link = entry.retained_before
    before = link if link and link.newest >= oldest else None
    return replace(
        entry,
        oldest_retained=oldest,
        retained=[ref for ref in entry.retained if ref.id >= oldest],
        retained_before=before,
    )


def pin(job: JobFormat, base: Head, author: Author, new: Pin) -> LogEntry:
    """Returns the ADMIN that pins a checkpoint while a reader uses it."""
    entry = _successor(job, base, author, EntryKind.ADMIN)
    # The pin may be in `base` already: it is appended again where it is not known whether the first entry counts.
    return replace(entry, pinned=[*(p for p in entry.pinned if p.id != new.id), new])


def renew(job: JobFormat, base: Head, author: Author, pin_id: str, until: str) -> LogEntry:
    """Returns the ADMIN that gives a leased pin another end; it has the pin only if `base` has it."""
    entry = _successor(job, base, author, EntryKind.ADMIN)
    # The end may be over, but while an entry has the pin, no collection has deleted what it keeps.
    renewed = [replace(p, until=until) for p in base.entry.pinned if p.id == pin_id]
    return replace(entry, pinned=[*(p for p in entry.pinned if p.id != pin_id), *renewed])


def end_leases(job: JobFormat, base: Head, author: Author) -> LogEntry:
    """Returns the ADMIN that only drops the pins whose lease is over, as every entry does."""
    return _successor(job, base, author, EntryKind.ADMIN)


def unpin(job: JobFormat, base: Head, author: Author, pin_id: str) -> LogEntry:
    """Returns the ADMIN that removes a pin."""
    entry = _successor(job, base, author, EntryKind.ADMIN)
    return replace(entry, pinned=[p for p in entry.pinned if p.id != pin_id])


def end_claim(job: JobFormat, base: Head, author: Author, ended: ClaimedSavepoint) -> LogEntry:
    """Returns the ADMIN by which the log forgets a claimed savepoint that is deleted, or whose claim is undone."""
    entry = _successor(job, base, author, EntryKind.ADMIN)
    return replace(entry, claimed_savepoints=[c for c in entry.claimed_savepoints if c != ended])


def retain(job: JobFormat, base: Head, author: Author, oldest: int) -> LogEntry:
    """Returns the ADMIN that releases the checkpoints before `oldest`, except for the current one."""
    entry = _successor(job, base, author, EntryKind.ADMIN)
    return _bounded(entry, max(oldest, entry.oldest_retained))


def settle(job: JobFormat, base: Head, author: Author, done: Settlement) -> LogEntry:
    """Returns the ADMIN by which a run ends, with what it has published since its last COMMIT."""
    entry = _successor(job, base, author, EntryKind.ADMIN)
    left = [p for p in entry.pending if (p.checkpoint_id, p.sink) not in done.settled]
    return replace(
        entry,
        pending=left,
        published={**entry.published, **done.published},
        ended=True,
        collected=done.collected or entry.collected,
        history=done.history or entry.history,
    )


def finish_rewind(job: JobFormat, base: Head, author: Author, published: Published) -> LogEntry:
    """Returns the ADMIN by which a start records that every table of a restore is rewound."""
    entry = _successor(job, base, author, EntryKind.ADMIN)
    return replace(entry, rewind=None, published={**entry.published, **published})


def pending_of(head: Head) -> list[PendingOutput]:
    """Returns the pending output as of `head`, oldest first, each with the id of its checkpoint.

    A COMMIT stores its own id as 0, because the id is not known before it is appended.
    """
    own = head.entry.seq
    return [p if p.checkpoint_id else replace(p, checkpoint_id=own) for p in head.entry.pending]


def drop_expired(pins: list[Pin], at: str) -> list[Pin]:
    """Returns the pins without those whose lease is over at a time."""
    return [p for p in pins if not p.until or datetime.fromisoformat(p.until) > datetime.fromisoformat(at)]


def _successor(job: JobFormat, base: Head | None, author: Author, kind: EntryKind) -> LogEntry:
    """Returns the entry after `base`, with everything copied from `base`, except for pins whose lease is over."""
    if base is None:
        return LogEntry(
            job_uuid=job.job_uuid,
            seq=1,
            kind=kind,
            generation=1,
            ordinal=0,
            writer=author.writer,
            nonce=author.nonce,
            parent="",
            at=author.at,
            note=author.note,
            run=author.nonce,
            ancestry=Ancestry(),
            runs=0,
        )
    return _bounded(
        replace(
            base.entry,
            seq=base.entry.seq + 1,
            kind=kind,
            writer=author.writer,
            nonce=author.nonce,
            parent=base.sha256,
            at=author.at,
            note=author.note,
            checkpoint=base.checkpoint,
            pending=pending_of(base),
            retained=list_inline_refs(base.entry),
            pinned=drop_expired(base.entry.pinned, author.at),
        ),
        base.entry.oldest_retained,
    )
