"""What a CLAIM, a COMMIT and an ADMIN entry say, given the entry before them. Pure."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import msgspec

from stateflow.checkpoint.documents import (
    EntryKind,
    EntryRef,
    JobFormat,
    LogEntry,
    PendingOutput,
    Pin,
    PublishedOutput,
    SourcePosition,
)
from stateflow.checkpoint.log import Head
from stateflow.state.handles import FileHandle

Admin = Callable[[Head], LogEntry]
"""Makes an ADMIN entry on top of an existing one."""


@dataclass(frozen=True)
class Author:
    """Who writes an entry, for people who read the log; `nonce` tells two tries apart."""

    writer: str
    nonce: str
    at: str
    note: str = ""


@dataclass(frozen=True)
class Commit:
    """What a checkpoint brings to the log."""

    ordinal: int
    manifest: FileHandle
    sources: list[SourcePosition]
    output: list[PendingOutput] = field(default_factory=list)
    published: dict[str, PublishedOutput] = field(default_factory=dict)
    settled: frozenset[tuple[int, str]] = frozenset()
    """(checkpoint id, sink) of earlier output that is published by now."""


def claim(job: JobFormat, base: Head | None, author: Author, adopt: tuple[EntryRef, LogEntry] | None) -> LogEntry:
    """The CLAIM that takes the job over after `base`.

    Args:
        adopt: a retained checkpoint to go back to, with its entry; None continues from where `base` stands. Output
            pending after an adopted checkpoint is dropped, because its batches will be replayed.
    """
    seq = base.entry.seq + 1 if base else 1
    carried = _carried(base)
    if base and adopt:
        carried = _adopted(base, *adopt)
    return LogEntry(
        job_uuid=job.job_uuid, seq=seq, kind=EntryKind.CLAIM, generation=seq, ordinal=0,
        parent=base.sha256 if base else "", **_signed(author), **carried,
    )  # fmt: skip


def commit(job: JobFormat, base: Head, author: Author, new: Commit, retain: int) -> LogEntry:
    """The COMMIT that makes a checkpoint exist after `base`.

    Args:
        retain: how many checkpoints stay restorable, this one included.
    """
    seq = base.entry.seq + 1
    older = [*base.entry.retained, *([base.checkpoint] if base.checkpoint else [])]
    unsettled = [p for p in pending_of(base) if (p.checkpoint_id, p.sink) not in new.settled]
    return LogEntry(
        job_uuid=job.job_uuid, seq=seq, kind=EntryKind.COMMIT, generation=base.entry.generation, ordinal=new.ordinal,
        parent=base.sha256, **_signed(author), checkpoint=None, manifest=new.manifest,
        retained=_newest(older, retain - 1), pinned=base.entry.pinned,
        sources=new.sources, pending=[*unsettled, *new.output],
        published={**base.entry.published, **new.published}, requests=base.entry.requests,
    )  # fmt: skip


def pin(job: JobFormat, base: Head, author: Author, new: Pin) -> LogEntry:
    """The ADMIN that keeps a checkpoint while somebody outside reads it."""
    return msgspec.structs.replace(_admin(job, base, author), pinned=[*base.entry.pinned, new])


def unpin(job: JobFormat, base: Head, author: Author, pin_id: str) -> LogEntry:
    """The ADMIN that lets a pinned checkpoint go."""
    left = [p for p in base.entry.pinned if p.id != pin_id]
    return msgspec.structs.replace(_admin(job, base, author), pinned=left)


def retain(job: JobFormat, base: Head, author: Author, keep: int) -> LogEntry:
    """The ADMIN that keeps only the newest `keep` checkpoints, the present one included."""
    return msgspec.structs.replace(_admin(job, base, author), retained=_newest(base.entry.retained, keep - 1))


def pending_of(head: Head) -> list[PendingOutput]:
    """Unpublished output as of `head`, oldest first, each with the id of its checkpoint."""
    return _named(head, head.entry.pending)


def _admin(job: JobFormat, base: Head, author: Author) -> LogEntry:
    return LogEntry(
        job_uuid=job.job_uuid, seq=base.entry.seq + 1, kind=EntryKind.ADMIN, generation=base.entry.generation,
        ordinal=base.entry.ordinal, parent=base.sha256, **_signed(author), **_carried(base),
    )  # fmt: skip


def _signed(author: Author) -> dict[str, str]:
    return {"writer": author.writer, "nonce": author.nonce, "at": author.at, "note": author.note}


def _carried(base: Head | None) -> dict[str, object]:
    """What an entry that is no checkpoint takes over from the one before it."""
    if base is None:
        return {}
    e = base.entry
    return {
        "checkpoint": base.checkpoint, "manifest": e.manifest, "retained": e.retained, "pinned": e.pinned,
        "sources": e.sources, "pending": pending_of(base), "published": e.published, "requests": e.requests,
    }  # fmt: skip


def _adopted(base: Head, ref: EntryRef, entry: LogEntry) -> dict[str, object]:
    older = [r for r in base.entry.retained if r.id < ref.id]
    still_pending = [p for p in pending_of(base) if p.checkpoint_id <= ref.id]
    return {
        **_carried(base), "checkpoint": ref, "manifest": entry.manifest, "retained": older, "sources": entry.sources,
        "pending": still_pending,
    }  # fmt: skip


def _newest(refs: list[EntryRef], count: int) -> list[EntryRef]:
    return refs[max(0, len(refs) - count) :]


def _named(head: Head, pending: list[PendingOutput]) -> list[PendingOutput]:
    """A COMMIT cannot name its own id before it has one: 0 stands for it."""
    own = head.entry.seq
    return [p if p.checkpoint_id else msgspec.structs.replace(p, checkpoint_id=own) for p in pending]
