"""The savepoints of a job: what there is, what differs, and what a retention would delete."""

from __future__ import annotations

import contextlib
import heapq
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import NamedTuple

from stateflow.checkpoint.history import Integrity
from stateflow.checkpoint.log.documents import SAVEPOINT_RECORD, disposed_savepoints, is_outside
from stateflow.checkpoint.savepoints.catalog import is_confirmed, read_savepoint
from stateflow.checkpoint.savepoints.cleanup import SavepointRule
from stateflow.clock import parse_timestamp
from stateflow.errors import ConfigError, DataError, NotYetAvailable
from stateflow.helpers import DaemonExecutor
from stateflow.operations.checkpoints import ActionEntry
from stateflow.operations.garbage import RetentionEffect, preview_retention
from stateflow.operations.job_savepoints import SavepointDescription, describe_contents
from stateflow.operations.savepoint_differences import SavepointDifference, compare_savepoints
from stateflow.outputs import Inline, OptionalId, OptionalText, Person, Timestamp
from stateflow.storage import Storage
from stateflow.storage.paths import CLAIMS, SAVEPOINT, SAVEPOINTS, savepoint_file, savepoint_folder
from stateflow.ui.answers import Answer, Freshness, Handler, freshness_of, state_of, value_of, version_of
from stateflow.ui.openapi import Endpoint, Parameter
from stateflow.ui.requests import CURSOR, TEXT, Call, limit_parameter, to_cursor, wrong_value
from stateflow.ui.roots import Calls, Reading, Roots
from stateflow.ui.snapshots import Action, Snapshot

log = logging.getLogger(__name__)

_SAVEPOINT_READERS = 8

_LIMIT = limit_parameter(200, 200)
_COMPARED = (
    Parameter("from", TEXT, "name of the first savepoint, or of its folder"),
    Parameter("to", TEXT, "the same of the second one"),
)
_RETENTION = (
    Parameter("retain", {"type": "integer", "minimum": 1}, "checkpoints to keep; by default, none is released"),
    Parameter("savepoints", {"type": "integer", "minimum": 1}, "periodic savepoints to keep; by default all"),
    Parameter("max_age", TEXT, "largest age of savepoints to keep, such as 36h or 30d"),
)


@dataclass(frozen=True)
class LastSavepoint:
    """The newest savepoint of a job that was not disposed of, according to its history.

    Attributes:
        name: its name.
        checkpoint_id: id of the checkpoint that it was made of.
        made_at: when it was made.
        by: who requested it, or approved it.
        requested_by: who requested it, if another person approved it.
        origin: why it was made, such as ``manual``, ``stop`` or ``periodic``.
        path: URI of its folder.
        size_bytes: size of its files.
    """

    name: str
    checkpoint_id: OptionalId
    made_at: Timestamp
    by: Person
    requested_by: Person
    origin: OptionalText
    path: OptionalText
    size_bytes: int | None


def last_savepoint(snapshot: Snapshot) -> LastSavepoint | None:
    """Returns the newest savepoint that was not disposed of."""
    action = next(_kept_savepoints(snapshot), None)
    if action is None:
        return None
    record = action.record
    return LastSavepoint(
        name=record.text("savepoint"),
        checkpoint_id=record.seq,
        made_at=record.ended_at,
        by=record.by,
        requested_by=record.requested_by,
        origin=record.text("origin"),
        path=record.text("path"),
        size_bytes=record.size_bytes,
    )


def integrity_of_last_savepoint(snapshot: Snapshot) -> Integrity | None:
    """Returns whether the record of the newest savepoint is as it was recorded; None without one."""
    action = next(_kept_savepoints(snapshot), None)
    return snapshot.integrity_of(action.source) if action else None


def _kept_savepoints(snapshot: Snapshot) -> Iterator[Action]:
    """Yields the records of the savepoints that were not disposed of, newest first."""
    disposed = disposed_savepoints(action.record for action in snapshot.actions)
    for action in reversed(snapshot.actions):
        if action.record.kind == SAVEPOINT_RECORD and action.record.text("savepoint_id") not in disposed:
            yield action


@dataclass(frozen=True)
class SavepointRow:
    """A savepoint of a job.

    Attributes:
        description: its description.
        record_integrity: whether its record in the history is as it was recorded; None if no record of it was read.
    """

    description: Inline[SavepointDescription]
    record_integrity: Integrity | None


@dataclass(frozen=True)
class SavepointPage:
    """The savepoints of a job.

    Attributes:
        savepoints: complete savepoints in the job root, newest first.
        older: whether the job root has older ones than these.
        next_cursor: `cursor` of the page of older savepoints; null if this is the last one.
        elsewhere: records of savepoints that were made outside of the job root and not disposed of, newest first.
        freshness: how current this is.
    """

    savepoints: tuple[SavepointRow, ...]
    older: bool
    next_cursor: OptionalText
    elsewhere: tuple[ActionEntry, ...]
    freshness: Inline[Freshness]


class SavepointKey(NamedTuple):
    """Place of a savepoint among all savepoints of a job: when it was made, in UTC, and the name of its folder."""

    made_at: str
    name: str


@dataclass(frozen=True)
class _SavepointList:
    """A page of savepoints, newest first, and the place of its last one if there are older ones."""

    found: tuple[SavepointDescription, ...] = ()
    more: SavepointKey | None = None


def savepoint_page(reading: Reading[Snapshot], listed: Reading[_SavepointList]) -> SavepointPage:
    """Returns a page of the savepoints of a job."""
    snapshot, page = reading.value, listed.value or _SavepointList()
    elsewhere = tuple(snapshot.entries_of(_elsewhere(snapshot))) if snapshot else ()
    freshness = freshness_of(snapshot, reading, listed)
    known = _integrities(snapshot) if snapshot else {}
    rows = tuple(SavepointRow(each, known.get(each.report.id or each.report.name)) for each in page.found)
    return SavepointPage(rows, page.more is not None, to_cursor(page.more), elsewhere, freshness)


def _elsewhere(snapshot: Snapshot) -> Iterator[Action]:
    own = snapshot.root.storage.uri
    return (action for action in _kept_savepoints(snapshot) if is_outside(action.record, own))


def _integrities(snapshot: Snapshot) -> dict[str, Integrity]:
    """Returns whether the records of savepoints are as they were recorded, by id; by name for those without an id."""
    made = (each for each in snapshot.actions if each.record.kind == SAVEPOINT_RECORD)
    return {
        each.record.text("savepoint_id") or each.record.text("savepoint"): snapshot.integrity_of(each.source)
        for each in made
    }


@dataclass(frozen=True)
class RetentionPreview:
    """What a retention would delete now.

    Attributes:
        effect: the checkpoints and savepoints.
        freshness: how current this is.
    """

    effect: Inline[RetentionEffect]
    freshness: Inline[Freshness]


def retention_preview(reading: Reading[Snapshot], effect: Reading[RetentionEffect]) -> RetentionPreview:
    """Returns what a retention would delete."""
    assert effect.value is not None
    return RetentionPreview(effect.value, freshness_of(reading.value, reading, effect))


@dataclass(frozen=True)
class SavepointDiff:
    """Two savepoints of a job, compared without reading state.

    Attributes:
        difference: both savepoints and their operators.
        freshness: how current this is.
    """

    difference: Inline[SavepointDifference]
    freshness: Inline[Freshness]


def savepoint_diff(reading: Reading[Snapshot], difference: Reading[SavepointDifference]) -> SavepointDiff:
    """Returns how two savepoints differ."""
    assert difference.value is not None
    return SavepointDiff(difference.value, freshness_of(reading.value, reading, difference))


class _Savepoints:
    """A page of savepoints in a job root; one is described again only if its document or its owner is another.

    Args:
        storage: the job root.
        made_at: returns when savepoints were made, by the name of their folder, as far as the history has it.
        before: the place after which the page begins; None for the newest ones.
        limit: the largest number of savepoints.
    """

    def __init__(
        self,
        storage: Storage,
        made_at: Callable[[], Mapping[str, datetime]],
        *,
        before: SavepointKey | None,
        limit: int,
    ) -> None:
        self._storage = storage
        self._made_at = made_at
        self._before = before
        self._limit = limit
        self._stored_at: dict[str, datetime] = {}
        self._known: dict[str, tuple[str, SavepointDescription]] = {}

    def read(self) -> _SavepointList:
        """Returns the complete savepoints of the page."""
        storage = self._storage
        names = [name for name in storage.folders(SAVEPOINTS) if savepoint_file(f"{SAVEPOINTS}{name}/{SAVEPOINT}")]
        with DaemonExecutor(_SAVEPOINT_READERS) as pool:
            chosen, more = self._choose(names, pool)
            folders = [savepoint_folder(name) for name in chosen]
            described = pool.map(lambda each: _describe_savepoint(storage, each, self._known.get(each)), folders)
            found = {folder: each for folder, each in zip(folders, described, strict=True) if each is not None}
        self._known = found
        ordered = sorted((each for _, each in found.values()), key=lambda each: each.report.made_at, reverse=True)
        return _SavepointList(tuple(ordered), more)

    def _choose(self, names: Sequence[str], pool: Executor) -> tuple[Sequence[str], SavepointKey | None]:
        """Returns the names of the page's savepoints, and the place of the last one if there are older ones."""
        if self._before is None and len(names) <= self._limit:
            return names, None
        # Names do not tell when savepoints were made.
        present, made_at = set(names), self._made_at()
        # The history has no record of them any more, or not yet. Without a document, one is not complete.
        asked = present - made_at.keys() - self._stored_at.keys()
        stored = pool.map(lambda name: (name, self._storage.info(f"{SAVEPOINTS}{name}/{SAVEPOINT}")), asked)
        new = {name: datetime.fromtimestamp(blob.modified_ms / 1000, UTC) for name, blob in stored if blob}
        self._stored_at = {name: at for name, at in {**self._stored_at, **new}.items() if name in present}
        times = {**self._stored_at, **made_at}
        places = [SavepointKey(_sortable(times[name]), name) for name in present & times.keys()]
        older = [place for place in places if self._before is None or place < self._before]
        page = heapq.nlargest(self._limit, older)
        return [place.name for place in page], page[-1] if len(page) < len(older) else None


def _sortable(at: datetime) -> str:
    return at.astimezone(UTC).isoformat(timespec="microseconds")


def _times_of(snapshot: Snapshot | None) -> dict[str, datetime]:
    """Returns when savepoints were made, by the name of their folder: also in a copy, where their paths are others."""
    found: dict[str, datetime] = {}
    for action in snapshot.actions if snapshot else ():
        record = action.record
        if record.kind == SAVEPOINT_RECORD:
            with contextlib.suppress(ValueError, OverflowError):
                found[record.text("path").rstrip("/").rpartition("/")[2]] = parse_timestamp(record.ended_at)
    return found


def _describe_savepoint(
    storage: Storage, folder: str, known: tuple[str, SavepointDescription] | None
) -> tuple[str, SavepointDescription] | None:
    """Returns a savepoint with the version of its document and claims; None if it is not complete, or damaged."""
    blob = storage.info(f"{folder}{SAVEPOINT}")
    if blob is None:
        return None
    claims = [each.key for each in storage.list(f"{folder}{CLAIMS}")]
    version = f"{blob.size} {blob.modified_ms} {blob.version} {claims[-1:]}"
    if known is not None and known[0] == version:
        return known
    try:
        stored = read_savepoint(storage, folder)
        confirmed = stored is not None and is_confirmed(storage, stored)
        return (version, describe_contents(stored)) if stored is not None and confirmed else None
    except (DataError, ConfigError) as e:
        log.warning("skipped savepoint %s: %s", folder.rstrip("/"), e)
        return None


SAVEPOINT_ENDPOINTS = (
    Endpoint("jobs/{id}/savepoints", "The savepoints of a job", SavepointPage, (CURSOR, _LIMIT)),
    Endpoint("jobs/{id}/savepoint-diff", "Two savepoints, compared without reading state", SavepointDiff, _COMPARED),
    Endpoint("jobs/{id}/retention-preview", "What a retention would delete", RetentionPreview, _RETENTION),
)


class SavepointEndpoints:
    """Answers about savepoints.

    Args:
        roots: follows the job roots.
    """

    def __init__(self, roots: Roots) -> None:
        self._roots = roots
        self._savepoints: Calls[_SavepointList] = Calls(roots, timedelta(seconds=5))
        self._retentions: Calls[RetentionEffect] = Calls(roots, timedelta(seconds=10))
        self._differences: Calls[SavepointDifference] = Calls(roots, timedelta(seconds=10))

    def handlers(self) -> dict[str, Handler]:
        """Returns what answers each endpoint, by its path."""
        return {
            "jobs/{id}/savepoints": self._list_savepoints,
            "jobs/{id}/savepoint-diff": self._savepoint_diff,
            "jobs/{id}/retention-preview": self._retention_preview,
        }

    async def _list_savepoints(self, call: Call) -> Answer:
        job, before, limit = call.job, call.cursor(SavepointKey), call.number(_LIMIT)
        assert limit is not None
        reading = await self._roots.read(job)
        if reading.value is None:
            raise reading.problem or NotYetAvailable("the job root has not been read yet", job=job.id)
        storage, times = reading.value.root.storage, lambda: _times_of(self._roots.known(job))
        known = _Savepoints(storage, times, before=before, limit=limit)
        # Of several, the first one is asked again and again.
        listed = await self._savepoints.read((job.job_root, repr(before), str(limit)), known.read)
        versions = [version_of(job, reading), state_of(listed), repr(listed.value)]
        return Answer(versions, lambda: savepoint_page(reading, listed))

    async def _savepoint_diff(self, call: Call) -> Answer:
        job, names = call.job, [call.query.get(each.name, "").strip() for each in _COMPARED]
        for parameter, name in zip(_COMPARED, names, strict=True):
            if not name:
                raise wrong_value(parameter.name, "the name of a savepoint")
        reading, snapshot, _ = await self._roots.read_position(job)
        storage, (old, new) = snapshot.root.storage, names
        found = await self._differences.read(
            (job.job_root, snapshot.version, old, new), lambda: compare_savepoints(storage, old, new)
        )
        value = value_of(found, job)
        return Answer([version_of(job, reading), state_of(found), repr(value)], lambda: savepoint_diff(reading, found))

    async def _retention_preview(self, call: Call) -> Answer:
        job, (retain, savepoints) = call.job, [call.number(each) for each in _RETENTION[:2]]
        rule = SavepointRule(savepoints, call.duration("max_age"))
        reading, snapshot, _ = await self._roots.read_position(job)
        root, key = snapshot.root, (job.job_root, snapshot.version, repr(retain), repr(rule))
        found = await self._retentions.read(key, lambda: preview_retention(root, retain, rule))
        value = value_of(found, job)
        return Answer(
            [version_of(job, reading), state_of(found), repr(value)], lambda: retention_preview(reading, found)
        )
