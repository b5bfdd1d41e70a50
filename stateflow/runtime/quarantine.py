"""The records of input files that were skipped because they are corrupt; a checkpoint makes them count."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from stateflow.api.input_files import UnreadableFile
from stateflow.checkpoint.documents import Manifest, QuarantinedFile

KEPT = 200
"""Records that a manifest has; their number is counted beyond that."""


@dataclass(frozen=True)
class SkippedFile:
    """A file of one source that a batch does without."""

    source: str
    file: UnreadableFile


def records_of(skipped: Sequence[SkippedFile], at: str, generation: int) -> tuple[QuarantinedFile, ...]:
    """What a checkpoint records of skipped files."""
    return tuple(
        QuarantinedFile(source=s.source, file=s.file.path, error=s.file.reason, at=at, generation=generation)
        for s in skipped
    )


def quarantine_after(before: Manifest | None, more: Sequence[QuarantinedFile]) -> dict[str, Any]:
    """The fields of a manifest about skipped files, after a batch that skipped `more`."""
    known, count = (before.quarantined, before.quarantined_count) if before else ([], 0)
    return {"quarantined": [*known, *more][-KEPT:], "quarantined_count": count + len(more)}
