"""Resolves restore targets such as ``latest``, ``17``, ``before:2026-01-31T03:00`` or ``before:flights=7``."""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime

from stateflow.checkpoint.log.checkpoint_log import Head, is_ancestor
from stateflow.checkpoint.log.documents import NOT_BEGUN, EntryRef, Manifest, SourcePosition
from stateflow.checkpoint.log.job_root import JobRoot
from stateflow.checkpoint.savepoints.catalog import StoredSavepoint, find_savepoint, list_savepoints, savepoint_at
from stateflow.checkpoint.savepoints.names import LATEST
from stateflow.clock import parse_timestamp
from stateflow.errors import ConfigError, CorruptFile, MissingFile
from stateflow.storage.paths import SAVEPOINTS

log = logging.getLogger(__name__)

BEFORE = "before:"
_CHECKPOINT = re.compile(r"[0-9]{1,18}")
_LONGEST = 4096
"""Length of a target: that of the longest path."""


@dataclass(frozen=True)
class Target:
    """A checkpoint or savepoint that can be restored.

    Attributes:
        checkpoint_id: id of the checkpoint, or of the savepoint's checkpoint.
        at: when that checkpoint was committed; ISO 8601.
        job_uuid: the job that committed it.
        manifest: its manifest.
        ref: reference to a checkpoint that the job keeps; None for a savepoint.
        savepoint: the savepoint; None for a checkpoint.
    """

    checkpoint_id: int
    at: str
    job_uuid: str
    manifest: Manifest
    ref: EntryRef | None = None
    savepoint: StoredSavepoint | None = None

    @property
    def label(self) -> str:
        """Its name, for display."""
        if self.savepoint is None:
            return f"checkpoint {self.checkpoint_id}"
        return self.savepoint.label


@dataclass(frozen=True)
class TargetLimits:
    """What is opened and searched for a target.

    Attributes:
        most: how many checkpoints, and how many savepoints, a condition is compared with at most; None for no limit.
        within: as for `storage.locations.open_location`.
    """

    most: int | None = None
    within: Sequence[str] | None = None


UNLIMITED = TargetLimits()
"""No limit, apart from what the environment allows."""


def resolve_target(root: JobRoot, head: Head, text: str, limits: TargetLimits = UNLIMITED) -> Target:
    """Returns the checkpoint or savepoint that `text` refers to.

    Args:
        root: the job root.
        head: the newest entry.
        text: ``latest``; the id of a retained checkpoint; a savepoint's name, path or URI; ``before:TIME`` in ISO
            8601, by default in UTC; ``before:SOURCE=OFFSET`` with a number or the source's own JSON.
        limits: what is opened and searched.

    Raises:
        ConfigError: the target does not exist; the error lists existing ones. Also for one beyond the limits.
        MissingFile, CorruptFile: the target is damaged.
    """
    if len(text) > _LONGEST:
        raise ConfigError(
            "the target is too long", hint="use a checkpoint's id, or a savepoint's name or path", target=text[:100]
        )
    if text.startswith(BEFORE):
        return _before(root, head, text.removeprefix(BEFORE), limits.most)
    if text == LATEST:
        if head.checkpoint is None:
            raise ConfigError("the job has no checkpoint yet", hint="run it first", storage=root.storage.uri)
        return _checkpoint(root, head.checkpoint)
    if _CHECKPOINT.fullmatch(text):
        for ref in root.checkpoints.restorable(head):
            if ref.id == int(text):
                return _checkpoint(root, ref)
    if "/" in text:
        return _of_savepoint(savepoint_at(text, root.storage.uri, limits.within))
    stored = find_savepoint(root.storage, text)
    if stored is None:
        names = _names(root, head, limits.most)
        raise ConfigError("the checkpoint or savepoint does not exist", hint=f"available: {names}", target=text)
    return _of_savepoint(stored)


def is_relative_target(text: str) -> bool:
    """Returns whether `text` may refer to another checkpoint once the job has made progress."""
    return text == LATEST or text.startswith(BEFORE)


def find_kept_checkpoint(root: JobRoot, head: Head, checkpoint_id: int, hint: str) -> Target:
    """Returns a checkpoint that `head` retains or pins. Raises ConfigError with `hint` when it is not kept."""
    for ref in root.checkpoints.list_kept(head):
        if ref.id == checkpoint_id:
            return _checkpoint(root, ref)
    raise ConfigError(
        "the job does not retain this checkpoint",
        hint=hint,
        checkpoint_id=checkpoint_id,
        kept_checkpoint_ids=sorted({r.id for r in root.checkpoints.list_kept(head)}),
    )


def _checkpoint(root: JobRoot, ref: EntryRef) -> Target:
    return Target(ref.id, ref.at, root.job.job_uuid, root.checkpoints.manifest_of(ref), ref=ref)


def _of_savepoint(stored: StoredSavepoint) -> Target:
    document = stored.document
    return Target(document.checkpoint_id, document.committed_at, document.job_uuid, document.manifest, savepoint=stored)


def _before(root: JobRoot, head: Head, condition: str, most: int | None) -> Target:
    folders = _folders(root, most)
    if most is not None and max(len(root.checkpoints.restorable(head)), len(folders or ())) > most:
        raise ConfigError(
            "the job has too many checkpoints or savepoints to search them here",
            hint="name a checkpoint by its id, or a savepoint by its name",
            before=condition,
            most=most,
        )
    # Newest first by number, which does not depend on clocks; a checkpoint before its savepoints.
    points = sorted(_points(root, head, folders), key=lambda t: (-t.checkpoint_id, t.savepoint is not None))
    source, equals, offset = condition.partition("=")
    if equals:
        limit = _parsed(offset)
        matching = (p for p in points if _is_before(p.manifest.sources, source, limit))
    else:
        timestamp = _timestamp(condition)
        matching = (p for p in points if _timestamp(p.at) < timestamp)
    found = next(matching, None)
    if found is None:
        raise ConfigError(
            "no checkpoint or savepoint fulfils the condition",
            hint="available: " + _names(root, head, most),
            before=condition,
        )
    return found


def _points(root: JobRoot, head: Head, folders: Sequence[str] | None) -> Iterator[Target]:
    """Yields the restorable checkpoints, and the job's own savepoints whose checkpoint no restore has undone."""
    restorable = root.checkpoints.restorable(head)
    for ref in restorable:
        if target := _undamaged(root, head, ref):
            yield target
    retained = {ref.id for ref in restorable}
    for stored in list_savepoints(root.storage, names=folders):
        document = stored.document
        if document.job_uuid == root.job.job_uuid and is_ancestor(head, document.checkpoint_id, retained):
            yield _of_savepoint(stored)


def _undamaged(root: JobRoot, head: Head, ref: EntryRef) -> Target | None:
    try:
        return _checkpoint(root, ref)
    except (MissingFile, CorruptFile) as e:
        if root.is_released(head, e):
            # Not the next older target instead: a newer entry has others.
            raise
        # One damaged checkpoint must not prevent the restore of others; a restore by its id fails.
        log.warning("skipped damaged checkpoint %d: %s", ref.id, e.sentence)
        return None


def _is_before(positions: list[SourcePosition], uid: str, limit: object) -> bool:
    for position in positions:
        if position.uid == uid:
            return position.offset == NOT_BEGUN or is_at_or_before(_parsed(position.offset), limit)
    raise ConfigError(
        "the source does not exist",
        hint="use before:UID=OFFSET with the uid of a source",
        uid=uid,
        known=[p.uid for p in positions],
    )


def is_at_or_before(offset: object, limit: object) -> bool:
    """Returns whether no number in `offset` exceeds its counterpart in `limit`.

    Args:
        offset: decoded JSON of a source's offset.
        limit: decoded JSON of the same structure, or a single number that applies to all numbers.
    """
    if isinstance(offset, dict):
        return all(
            is_at_or_before(value, limit.get(key) if isinstance(limit, dict) else limit)
            for key, value in offset.items()
        )
    if isinstance(offset, list):
        return all(is_at_or_before(value, limit) for value in offset)
    if isinstance(offset, bool) or not isinstance(offset, int | float):
        return True
    return isinstance(limit, int | float) and offset <= limit


def _parsed(text: str) -> object:
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as e:
        raise ConfigError(
            "an offset must be a number or JSON", hint="use an offset as printed by stateflow status", offset=text
        ) from e


def _timestamp(text: str) -> datetime:
    try:
        return parse_timestamp(text)
    except ValueError as e:
        raise ConfigError(
            "a timestamp must be in ISO 8601 format",
            hint="for example before:2026-01-31T03:00 (UTC), or before:SOURCE=OFFSET",
            time=text,
        ) from e


def _folders(root: JobRoot, most: int | None) -> Sequence[str] | None:
    """Returns the names of the savepoints' folders if their number is limited: then their files are not listed."""
    return None if most is None else root.storage.folders(SAVEPOINTS)


def _names(root: JobRoot, head: Head, most: int | None) -> str:
    checkpoints = sorted(r.id for r in root.checkpoints.restorable(head))[-(most or 0) :]
    folders = _folders(root, most)
    if most is not None and len(folders or ()) > most:
        return f"checkpoints {checkpoints}, and more than {most} savepoints"
    savepoints = [s.document.name for s in list_savepoints(root.storage, names=folders)]
    return f"checkpoints {checkpoints}, savepoints {savepoints}"
