"""Records of input files that were skipped because they are corrupt; they count from the next checkpoint on."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypedDict

from stateflow.api.input_files import UnreadableFile
from stateflow.checkpoint.log.documents import Manifest, QuarantinedFile

MAX_QUARANTINE_RECORDS = 200
"""Records that a manifest keeps. Older ones are dropped; the number of skipped files counts them all."""


@dataclass(frozen=True)
class SkippedFile:
    """A file of one source that a batch skips.

    Attributes:
        source: uid of the source.
        file: the file that could not be read, and the reason.
    """

    source: str
    file: UnreadableFile


class QuarantineFields(TypedDict):
    """The fields of a manifest about skipped files."""

    quarantined: list[QuarantinedFile]
    quarantined_count: int


def quarantine_records(skipped: Sequence[SkippedFile], at: str, generation: int) -> tuple[QuarantinedFile, ...]:
    """Returns the records of skipped files for a manifest.

    Args:
        at: timestamp in ISO 8601.
        generation: the generation of the run that skips the files.
    """
    return tuple(
        QuarantinedFile(source=s.source, file=s.file.path, error=s.file.reason, at=at, generation=generation)
        for s in skipped
    )


def quarantine_fields(before: Manifest | None, more: Sequence[QuarantinedFile]) -> QuarantineFields:
    """Returns the fields of a manifest about skipped files, after a batch that skipped `more`.

    Args:
        before: manifest of the barrier before; None for the first one.
    """
    known, count = (before.quarantined, before.quarantined_count) if before else ([], 0)
    return {"quarantined": [*known, *more][-MAX_QUARANTINE_RECORDS:], "quarantined_count": count + len(more)}
