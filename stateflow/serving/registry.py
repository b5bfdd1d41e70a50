"""The registry of a job's state servers: leases in the job root, and the division of key groups between servers.

Each server writes a lease, ``servers/<id>-<number>``, and renews it with the next number; the object with the highest
number counts, and older ones are deleted. A lease ends by its deletion or with its time. The division needs no leader:
every server computes it from the same leases. While it changes, a key group may be served by two servers, whose answers
do not differ: they serve committed checkpoints.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Annotated

import msgspec
from msgspec.structs import replace

from stateflow import failpoints
from stateflow.checkpoint.log.manifest_files import seal, unseal
from stateflow.clock import Clock, is_timestamp
from stateflow.errors import DataError, MissingFile
from stateflow.observability import log_event
from stateflow.serving.follower import Follower
from stateflow.state.handles import Document
from stateflow.storage import Storage
from stateflow.storage.paths import SERVERS, parse_server, server_key
from stateflow.types.key_groups import MAX_PARALLELISM_LIMIT, KeyGroupRange, range_of

log = logging.getLogger(__name__)

LIMIT = 64 << 10
"""Size of the largest lease, in bytes."""
CLOCK_DIFFERENCE = timedelta(seconds=60)
"""How much the clocks of servers and clients may differ: a lease is not used after its end and this time."""
_MOST_SERVERS = 500
_LONGEST_URL = 2_000
_URL = re.compile(r"https?://([A-Za-z0-9._-]{1,253}|\[[0-9A-Fa-f:.]{2,45}\])(?::([0-9]{1,5}))?(/[!-~]*)?")
_PORTS = 1 << 16


class ServerLease(Document, frozen=True, kw_only=True):
    """``servers/<id>-<number>``: a state server, until its lease ends."""

    id: str
    url: str
    """Where clients reach it, without a slash at the end."""
    groups: list[tuple[int, int]] = []
    """The ranges of key groups that it serves, with first and last; empty until it has opened a checkpoint."""
    since: str
    """When it started; servers divide the key groups in this order."""
    until: str
    """When the lease ends unless it is renewed."""
    seconds: Annotated[float, msgspec.Meta(gt=0, le=86_400)]
    """Its duration: other servers take over when they have not seen a renewal for so long."""

    @property
    def ranges(self) -> tuple[KeyGroupRange, ...]:
        """The ranges of key groups that it serves."""
        return tuple(KeyGroupRange(first, last) for first, last in self.groups)


class Registry:
    """Reads the leases of a job root; caches each by its key, because leases never change.

    Args:
        storage: the job root.
        clock: compares the end of leases.
    """

    def __init__(self, storage: Storage, clock: Clock) -> None:
        self._storage = storage
        self._clock = clock
        self._known: dict[str, ServerLease | None] = {}

    def read(self) -> list[ServerLease]:
        """Returns the newest lease of each server, in order of their starts, without those that have ended."""
        newest: dict[str, tuple[int, str]] = {}
        for blob in self._storage.list(SERVERS):
            parsed = parse_server(blob.key)
            if parsed is not None:
                newest[parsed[0]] = max(newest.get(parsed[0], (0, "")), (parsed[1], blob.key))
        keys = [key for _, key in sorted(newest.values())][-_MOST_SERVERS:]
        self._known = {key: self._known[key] if key in self._known else self._lease(key) for key in keys}
        now = self._clock.now()
        found = [lease for lease in self._known.values() if lease is not None and not _has_ended(lease, now)]
        return sorted(found, key=lambda lease: (lease.since, lease.id))

    def remove_ended(self) -> None:
        """Deletes the leases of servers that ended without deleting their own."""
        now = self._clock.now()
        ended = [key for key, lease in self._known.items() if lease is not None and _has_ended(lease, now)]
        if ended:
            numbers = {parse_server(key): key for key in ended}
            ids = {parsed[0] for parsed in numbers if parsed is not None}
            self._storage.delete(
                blob.key for blob in self._storage.list(SERVERS) if (parse_server(blob.key) or ("",))[0] in ids
            )

    def _lease(self, key: str) -> ServerLease | None:
        try:
            lease, _ = unseal(self._storage.get(key, LIMIT), ServerLease, key)
        except MissingFile:
            return None
        except DataError as e:
            log_event(log, logging.WARNING, "damaged-lease", key=key, reason=str(e))
            return None
        parsed = parse_server(key)
        is_own = parsed is not None and parsed[0] == lease.id
        is_valid = is_own and is_timestamp(lease.until) and is_url(lease.url) and _are_ascending(lease.groups)
        return lease if is_valid else None


def is_url(text: str) -> bool:
    """Returns whether a text can be the URL of a state server."""
    found = _URL.fullmatch(text) if len(text) <= _LONGEST_URL else None
    return found is not None and int(found[2] or 0) < _PORTS


def _are_ascending(groups: Sequence[tuple[int, int]]) -> bool:
    """Returns whether ranges are in order and disjoint, so that they have few key groups in total."""
    ends = [-1, *(end for each in groups for end in each)]
    starts_after = all(last < first for last, first in zip(ends[::2], ends[1::2], strict=False))
    return starts_after and all(first <= last for first, last in groups) and ends[-1] < MAX_PARALLELISM_LIMIT


def _has_ended(lease: ServerLease, now: datetime) -> bool:
    return datetime.fromisoformat(lease.until) < now - CLOCK_DIFFERENCE


class Registration:
    """The lease of this server.

    Args:
        storage: the job root.
        clock: the clock for id and timestamps.
        url: where clients reach the server.
        duration: duration of the lease after each renewal.
    """

    def __init__(self, storage: Storage, clock: Clock, url: str, duration: timedelta) -> None:
        self._storage = storage
        self._clock = clock
        self._duration = duration
        self._number = 0
        self._renewed_at = 0.0
        now = clock.now()
        self.lease = ServerLease(
            id=clock.new_id(),
            url=url,
            since=now.isoformat(),
            until=(now + duration).isoformat(),
            seconds=duration.total_seconds(),
        )

    def is_due(self, groups: Sequence[KeyGroupRange]) -> bool:
        """Returns whether the lease should be renewed: a third of it has passed, or other key groups are served."""
        if self._number == 0 or self.lease.ranges != tuple(groups):
            return True
        return self._clock.monotonic() - self._renewed_at >= self._duration.total_seconds() / 3

    def renew(self, groups: Sequence[KeyGroupRange]) -> None:
        """Writes the lease, with the key groups that are served from now on. Raises StorageError."""
        lease = replace(
            self.lease,
            groups=[(r.first, r.last) for r in groups],
            until=(self._clock.now() + self._duration).isoformat(),
        )
        previous = self._number
        # A new number even after a failure: the write may have arrived.
        self._number += 1
        self._storage.put_new(server_key(lease.id, self._number), seal(lease, LIMIT)[0])
        failpoints.hit("serve.renewed")
        self.lease, self._renewed_at = lease, self._clock.monotonic()
        if previous:
            self._storage.delete([server_key(lease.id, previous)])

    def end(self) -> None:
        """Deletes the lease. Raises StorageError."""
        own = [blob.key for blob in self._storage.list(f"{SERVERS}{self.lease.id}-")]
        self._storage.delete(own)


@dataclass
class _Seen:
    """The end of a server's lease when it was seen, and when that was."""

    until: str
    at: float


class Membership:
    """Keeps the lease of a server, and assigns key groups to its follower, from the leases of all servers.

    A lease counts until it was not renewed for its duration, by the clock of this host, so clocks of hosts may differ.

    Args:
        storage: the job root.
        follower: opens the state of the assigned key groups; none is assigned before the first `step`.
        clock: for leases, and to measure how long one was not renewed.
        url: where clients reach the server.
        duration: duration of a lease.
    """

    def __init__(self, storage: Storage, follower: Follower, clock: Clock, url: str, duration: timedelta) -> None:
        self.registration = Registration(storage, clock, url, duration)
        self._registry = Registry(storage, clock)
        self._follower = follower
        self._clock = clock
        self._seen: dict[str, _Seen] = {}
        follower.assign(())

    def step(self) -> None:
        """Renews the lease if that is due, and assigns key groups then. Raises StorageError or WrongJobRoot."""
        job, held = self._follower.open_job(), self._follower.groups
        if job is not None and self.registration.is_due(held):
            self.registration.renew(held)
            self._follower.assign(self.groups(held, job.job.max_parallelism))
            self._registry.remove_ended()

    def groups(self, held: Sequence[KeyGroupRange], max_parallelism: int) -> tuple[KeyGroupRange, ...]:
        """Returns the key groups to serve now. Raises StorageError.

        These are the server's share, and those that it still serves and that no other server has taken over yet.

        Args:
            held: the key groups that this server has open.
            max_parallelism: number of key groups of the job.
        """
        own, leases = self.registration.lease, self._registry.read()
        self._seen = {lease.id: self._seen[lease.id] for lease in leases if lease.id in self._seen}
        others = [lease for lease in leases if lease.id != own.id and self._is_alive(lease)]
        members = sorted([*others, own], key=lambda lease: (lease.since, lease.id))
        share = range_of(members.index(own), len(members), max_parallelism)
        served = _numbers((r for lease in others for r in lease.ranges), max_parallelism)
        kept = _numbers(held, max_parallelism) - served
        return as_ranges(kept | _numbers([share], max_parallelism))

    def _is_alive(self, lease: ServerLease) -> bool:
        now = self._clock.monotonic()
        seen = self._seen.get(lease.id)
        if seen is None or seen.until != lease.until:
            seen = self._seen[lease.id] = _Seen(lease.until, now)
        return now - seen.at < lease.seconds


def _numbers(ranges: Iterable[KeyGroupRange], max_parallelism: int) -> set[int]:
    return {group for r in ranges for group in range(max(0, r.first), min(r.last, max_parallelism - 1) + 1)}


def as_ranges(groups: Iterable[int]) -> tuple[KeyGroupRange, ...]:
    """Returns the fewest ranges that contain exactly these key groups, in order."""
    ranges: list[KeyGroupRange] = []
    for group in sorted(groups):
        if ranges and ranges[-1].last == group - 1:
            ranges[-1] = KeyGroupRange(ranges[-1].first, group)
        else:
            ranges.append(KeyGroupRange(group, group))
    return tuple(ranges)
