"""The journal: what persons have done to jobs, newest first, also as CSV."""

from __future__ import annotations

import csv
import heapq
import io
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple

from stateflow.checkpoint.log.documents import SAVEPOINT_RECORD, ActionRecord
from stateflow.operations.checkpoints import ActionEntry
from stateflow.outputs import Inline, OptionalText, to_object
from stateflow.requesters import Requester
from stateflow.ui.answers import Answer, Freshness, Handler, freshness_of, version_of
from stateflow.ui.openapi import CSV, Endpoint, Parameter
from stateflow.ui.requests import LIMIT, PAGE, TEXT, TIMES, Call, comparable_time, limit_parameter, to_cursor
from stateflow.ui.roots import CatalogJob, Reading, Roots
from stateflow.ui.snapshots import Extent, Snapshot, is_of_person


class JournalKind(StrEnum):
    """What persons do to a job. All else, such as a start or a failure, is recorded by a run in its own name."""

    RESTORE = "restore"
    REJECTION = "rejection"
    SAVEPOINT = SAVEPOINT_RECORD
    DISPOSE = "dispose"
    RETENTION = "retention"
    STOP = "stop"
    FORK = "fork"
    RELOCATE = "relocate"


class JournalKey(NamedTuple):
    """Place of an entry in a journal: time, id of the job, and key of the record's object."""

    ended: str
    job: str
    key: str


@dataclass(frozen=True)
class JournalEntry:
    """What a person did to a job.

    Attributes:
        id: id of the job in addresses of the pages.
        job: name of the job.
        entry: the action.
    """

    id: str
    job: OptionalText
    entry: Inline[ActionEntry]


@dataclass(frozen=True)
class JournalJob:
    """A job whose actions a journal has.

    Attributes:
        id: id of the job in addresses of the pages.
        job: name of the job; null if its job root was never read.
        freshness: how current its actions are.
    """

    id: str
    job: OptionalText
    freshness: Inline[Freshness]


@dataclass(frozen=True)
class JournalPage:
    """A page of a journal, newest first.

    Attributes:
        entries: the actions.
        jobs: the jobs whose actions it has, ordered by id.
        next_cursor: `cursor` of the next page; empty if this is the last one.
    """

    entries: tuple[JournalEntry, ...]
    jobs: tuple[JournalJob, ...]
    next_cursor: OptionalText


@dataclass(frozen=True)
class JournalFilter:
    """Which actions a journal has; None for all.

    Attributes:
        kind: kind of the action.
        person: part of the name of the person who did, approved or requested it, in any case.
        since: earliest time, as `comparable_time` returns it.
        until: latest time.
    """

    kind: JournalKind | None = None
    person: str | None = None
    since: str | None = None
    until: str | None = None

    def takes(self, record: ActionRecord) -> bool:
        """Returns whether a journal has the action."""
        at = comparable_time(record.ended_at)
        people = " ".join(Requester.parse(each).name for each in (record.by, record.requested_by) if each)
        return (
            (self.kind is None or record.kind == self.kind)
            and (self.person is None or self.person.casefold() in people.casefold())
            and (self.since is None or at >= self.since)
            and (self.until is None or at <= self.until)
        )


Read = tuple[CatalogJob, Reading[Snapshot]]
"""A job and its job root."""


def journal_page(
    read: Sequence[Read], wanted: JournalFilter, before: JournalKey | None, limit: int
) -> tuple[JournalPage, JournalKey | None]:
    """Returns the newest actions before a place, and the place of the last one if there are more.

    Args:
        read: the jobs.
        wanted: which actions.
        before: the place of the last entry of the page before; None for the first page.
        limit: largest number of entries.
    """
    keys = ((key, at) for key, at in _keys(read, wanted) if before is None or key < before)
    newest = heapq.nlargest(limit + 1, keys)
    chosen = newest[:limit]
    entries = tuple(entry for _, at in chosen for entry in _entries(read, at))
    jobs = tuple(
        JournalJob(
            job.id,
            reading.value.root.job.job if reading.value else "",
            freshness_of(reading.value, reading, extent=Extent.ACTIONS),
        )
        for job, reading in read
    )
    return JournalPage(entries, jobs, ""), chosen[-1][0] if len(newest) > limit else None


_Place = tuple[int, int]
"""Numbers of a job, and of an action of its snapshot."""


def _keys(read: Sequence[Read], wanted: JournalFilter) -> Iterator[tuple[JournalKey, _Place]]:
    for number, (job, reading) in enumerate(read):
        for at, action in enumerate(reading.value.actions if reading.value else ()):
            if is_of_person(action.record) and wanted.takes(action.record):
                key = JournalKey(comparable_time(action.record.ended_at), job.id, action.source)
                yield key, (number, at)


def _entries(read: Sequence[Read], place: _Place) -> Iterator[JournalEntry]:
    job, reading = read[place[0]]
    snapshot = reading.value
    if snapshot is not None:
        for entry in snapshot.entries_of([snapshot.actions[place[1]]]):
            yield JournalEntry(job.id, snapshot.root.job.job, entry)


_COLUMNS = (
    *("ended_at", "id", "job", "kind", "by", "by_source", "by_account", "requested_by", "requested_by_source"),
    *("checkpoint_id", "restored_checkpoint_id", "reason", "note", "integrity", "duration_ms", "size_bytes", "facts"),
)
_FORMULA = ("=", "+", "-", "@", "\t", "\r", "\n")


OMITTED = "actions are omitted"
"""Kind of the last rows of a table that may not have all actions."""


@dataclass(frozen=True)
class _Omission:
    """Why a table may not have all actions, of one job unless `id` is empty."""

    id: str
    job: str
    reason: str


def to_csv(entries: Sequence[JournalEntry], omissions: Sequence[_Omission] = ()) -> str:
    """Returns entries as CSV with a line of titles, and with a last row for each reason why it may not have all.

    A text that a program for tables would compute as a formula begins with an apostrophe.
    """
    out = io.StringIO(newline="")
    writer = csv.writer(out)
    writer.writerow(_COLUMNS)
    for entry in entries:
        found = to_object(entry)
        for name in ("by", "requested_by"):
            person = found[name] if isinstance(found[name], dict) else {}
            assert isinstance(person, dict)
            found |= {name: person.get("name"), f"{name}_source": person.get("source")}
            found[f"{name}_account"] = person.get("account")
        found["facts"] = json.dumps(found["facts"])
        writer.writerow([_cell(found[name]) for name in _COLUMNS])
    for each in omissions:
        omitted = {"id": each.id, "job": each.job, "kind": OMITTED, "reason": each.reason}
        writer.writerow([_cell(omitted.get(name)) for name in _COLUMNS])
    return out.getvalue()


def _cell(value: object) -> str:
    text = "" if value is None else str(value)
    return f"'{text}" if isinstance(value, str) and text.startswith(_FORMULA) else text


_KIND = Parameter("kind", {"type": "string", "enum": [each.value for each in JournalKind]}, "what was done")
_JOURNAL = (_KIND, Parameter("person", TEXT, "part of the name of a person"), *TIMES)
_TABLE = "The same as a table, whose last rows say which jobs it may not have all actions of, and why"
_CSV_LIMIT = limit_parameter(10_000, 20_000)

JOURNAL_ENDPOINTS = (
    Endpoint("jobs/{id}/journal", "What persons did to a job", JournalPage, (*PAGE, *_JOURNAL)),
    Endpoint("jobs/{id}/journal.csv", _TABLE, CSV, (_CSV_LIMIT, *_JOURNAL)),
    Endpoint("journal", "What persons did to all jobs", JournalPage, (*PAGE, *_JOURNAL)),
    Endpoint("journal.csv", _TABLE, CSV, (_CSV_LIMIT, *_JOURNAL)),
)


def _journal_filter(call: Call) -> JournalFilter:
    query = call.query
    kind = call.member("kind", JournalKind, None)
    return JournalFilter(kind, query.get("person"), call.time("since"), call.time("until"))


def journal_table(read: Sequence[Read], wanted: JournalFilter, limit: int) -> str:
    """Returns the newest actions as CSV, whose last rows say which jobs it may not have all actions of, and why."""
    page, last = journal_page(read, wanted, None, limit)
    omissions = [_Omission(each.id, each.job, reason) for each in page.jobs if (reason := _omits(each.freshness))]
    if last is not None:
        omissions.append(_Omission("", "", f"the table has the newest {limit:,} actions only"))
    return to_csv(page.entries, omissions)


def _omits(freshness: Freshness) -> str:
    """Returns why actions of a job may be missing; empty if none are."""
    if freshness.problem is not None:
        return f"the job root cannot be read now: {freshness.problem.message}"
    if freshness.history_truncated:
        return "the oldest records of the history are never read"
    return "" if freshness.history_complete else "older records of the history are not read yet"


class JournalEndpoints:
    """Answers with journals.

    Args:
        roots: follows the job roots.
    """

    def __init__(self, roots: Roots) -> None:
        self._roots = roots

    def handlers(self) -> dict[str, Handler]:
        """Returns what answers each endpoint, by its path."""
        return {
            "jobs/{id}/journal": self._journal,
            "jobs/{id}/journal.csv": self._journal_table,
            "journal": self._journal,
            "journal.csv": self._journal_table,
        }

    async def _journal(self, call: Call) -> Answer:
        before, wanted = call.cursor(JournalKey), _journal_filter(call)
        limit, read = call.number(LIMIT), await self._read_journal(call)
        assert limit is not None

        def make() -> JournalPage:
            page, last = journal_page(read, wanted, before, limit)
            return JournalPage(page.entries, page.jobs, to_cursor(last))

        return Answer([version_of(job, reading) for job, reading in read], make)

    async def _journal_table(self, call: Call) -> Answer:
        wanted, limit, read = _journal_filter(call), call.number(_CSV_LIMIT), await self._read_journal(call)
        assert limit is not None
        return Answer([version_of(job, reading) for job, reading in read], lambda: journal_table(read, wanted, limit))

    async def _read_journal(self, call: Call) -> list[Read]:
        if "id" in call.path:
            return [(call.job, await self._roots.read(call.job, extent=Extent.ACTIONS))]
        jobs = list(call.jobs.values())
        return list(zip(jobs, await self._roots.read_all(jobs, Extent.ACTIONS), strict=True))
