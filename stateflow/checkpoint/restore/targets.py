"""What a person means by ``latest``, ``17``, ``before-upgrade``, ``before:2026-01-31T03:00``, ``before:flights=7``."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from stateflow.checkpoint.ancestry import came_from
from stateflow.checkpoint.documents import NOT_BEGUN, EntryRef, Manifest, SourcePosition
from stateflow.checkpoint.jobroot import JobRoot
from stateflow.checkpoint.log import Head
from stateflow.checkpoint.savepoint import LATEST
from stateflow.checkpoint.stored_savepoints import (
    StoredSavepoint,
    find_savepoint,
    list_savepoints,
    savepoint_at,
)
from stateflow.errors import ConfigError, CorruptFile, MissingFile

log = logging.getLogger(__name__)

BEFORE = "before:"


@dataclass(frozen=True)
class Target:
    """A point in a job's life that can be gone back to.

    Attributes:
        checkpoint_id: the checkpoint; of a savepoint, the one that it was made of.
        at: when it, or the checkpoint of the savepoint, was committed; ISO 8601.
        ref: of a checkpoint that the job keeps; None for a savepoint.
    """

    checkpoint_id: int
    at: str
    job_uuid: str
    manifest: Manifest
    ref: EntryRef | None = None
    savepoint: StoredSavepoint | None = None

    @property
    def label(self) -> str:
        """What it is called, for people."""
        if self.savepoint is None:
            return f"checkpoint {self.checkpoint_id}"
        return self.savepoint.label


def resolve_target(root: JobRoot, head: Head, text: str) -> Target:
    """The point that `text` names.

    Args:
        text: ``latest``; the id of a retained checkpoint; a savepoint's name, path or URI; ``before:TIME`` in ISO
            8601, UTC unless it says otherwise; ``before:SOURCE=OFFSET`` with a number or the source's own JSON.

    Raises:
        ConfigError: there is no such point; it names those that are there.
        MissingFile, CorruptFile: it is damaged.
    """
    if text.startswith(BEFORE):
        return _before(root, head, text.removeprefix(BEFORE))
    if text == LATEST:
        if head.checkpoint is None:
            raise ConfigError("the job has no checkpoint yet", hint="run it first", storage=root.storage.uri)
        return _checkpoint(root, head.checkpoint)
    if text.isdigit():
        for ref in root.line(head):
            if ref.id == int(text):
                return _checkpoint(root, ref)
    stored = find_savepoint(root.storage, text) if "/" not in text else savepoint_at(text)
    if stored is None:
        raise ConfigError("there is no such checkpoint or savepoint", hint="these are there: " + _names(root, head),
                          target=text)  # fmt: skip
    return _of_savepoint(stored)


def is_moving(text: str) -> bool:
    """Whether `text` may name another point when the job goes on."""
    return text == LATEST or text.startswith(BEFORE)


def kept_checkpoint(root: JobRoot, head: Head, checkpoint_id: int) -> Target:
    """A checkpoint that `head` keeps, if only by a pin, for somebody who copies it. Raises ConfigError."""
    for ref in root.kept(head):
        if ref.id == checkpoint_id:
            return _checkpoint(root, ref)
    raise ConfigError("the checkpoint is not kept any more", hint="begin anew, at another place",
                      checkpoint=checkpoint_id, kept=sorted({r.id for r in root.kept(head)}))  # fmt: skip


def _checkpoint(root: JobRoot, ref: EntryRef) -> Target:
    found = root.resolved(ref)
    return Target(ref.id, found.at, root.job.job_uuid, root.manifest_of(found), ref=ref)


def _of_savepoint(stored: StoredSavepoint) -> Target:
    document = stored.document
    return Target(
        document.checkpoint_id, document.committed_at or document.made_at, document.job_uuid, document.manifest,
        savepoint=stored,
    )  # fmt: skip


def _before(root: JobRoot, head: Head, condition: str) -> Target:
    # Newest first by number, which no clock moves; of one checkpoint, itself before a savepoint of it.
    points = sorted(_points(root, head), key=lambda t: (-t.checkpoint_id, t.savepoint is not None))
    source, equals, offset = condition.partition("=")
    if equals:
        limit = _parsed(offset)
        fitting = (p for p in points if _is_before(p.manifest.sources, source, limit))
    else:
        moment = _moment(condition)
        fitting = (p for p in points if _moment(p.at) < moment)
    found = next(fitting, None)
    if found is None:
        raise ConfigError("no checkpoint or savepoint that is kept is that old", hint="these are there: "
                          + _names(root, head), before=condition)  # fmt: skip
    return found


def _points(root: JobRoot, head: Head) -> Iterator[Target]:
    """The checkpoints that the job can go back to, and its own savepoints of checkpoints that no restore has undone."""
    line = root.line(head)
    for ref in line:
        if target := _undamaged(root, ref):
            yield target
    retained = {ref.id for ref in line}
    for stored in list_savepoints(root.storage):
        document = stored.document
        if document.job_uuid != root.job.job_uuid:
            continue
        is_ours = came_from(head, document.checkpoint_id, retained)
        if is_ours:
            yield _of_savepoint(stored)
        elif is_ours is None:
            log.warning(
                "savepoint %s is left out: whether a restore has undone its checkpoint %d was not recorded by the "
                "version that made it; name the savepoint to go back to it", document.name, document.checkpoint_id,
            )  # fmt: skip


def _undamaged(root: JobRoot, ref: EntryRef) -> Target | None:
    try:
        return _checkpoint(root, ref)
    except (MissingFile, CorruptFile) as e:
        # One damaged checkpoint must not bar the way to the others; named by its id it is refused.
        log.warning("checkpoint %d is damaged, and left out: %s", ref.id, e.sentence)
        return None


def _is_before(positions: list[SourcePosition], uid: str, limit: Any) -> bool:
    for position in positions:
        if position.uid == uid:
            return position.offset == NOT_BEGUN or not_behind(_parsed(position.offset), limit)
    raise ConfigError("there is no such source", hint="a source's uid comes before the =", uid=uid,
                      known=[p.uid for p in positions])  # fmt: skip


def not_behind(offset: Any, limit: Any) -> bool:
    """Whether no number in `offset` is above its counterpart in `limit`; a single number in `limit` is everyone's."""
    if isinstance(offset, dict):
        return all(
            not_behind(value, limit.get(key) if isinstance(limit, dict) else limit)
            for key, value in offset.items()
        )
    if isinstance(offset, list):
        return all(not_behind(value, limit) for value in offset)
    if isinstance(offset, bool) or not isinstance(offset, int | float):
        return True
    return isinstance(limit, int | float) and offset <= limit


def _parsed(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError as e:
        raise ConfigError(
            "an offset is a number or JSON", hint="as stateflow status shows it", offset=text
        ) from e


def _moment(text: str) -> datetime:
    try:
        moment = datetime.fromisoformat(text)
    except ValueError as e:
        raise ConfigError("a time is written as in ISO 8601", hint="like before:2026-01-31T03:00, in UTC, or "
                          "before:SOURCE=OFFSET", time=text) from e  # fmt: skip
    return moment if moment.tzinfo else moment.replace(tzinfo=UTC)


def _names(root: JobRoot, head: Head) -> str:
    checkpoints = sorted(r.id for r in root.line(head))
    savepoints = [s.document.name for s in list_savepoints(root.storage)]
    return f"checkpoints {checkpoints}, savepoints {savepoints}"
