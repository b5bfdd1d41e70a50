"""Selects expired savepoints. Pure functions."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from stateflow.checkpoint.log.documents import Origin
from stateflow.checkpoint.savepoints.catalog import StoredSavepoint
from stateflow.checkpoint.savepoints.names import savepoint_time
from stateflow.errors import ConfigError


@dataclass(frozen=True)
class SavepointRule:
    """The retention of periodic savepoints. Without limits, none expires.

    Attributes:
        keep: number of the newest savepoints that are kept; None for no limit.
        max_age: maximum age of kept savepoints; None for no limit.
    """

    keep: int | None = None
    max_age: timedelta | None = None

    def __post_init__(self) -> None:
        if self.keep is not None and self.keep < 1:
            raise ConfigError("at least one savepoint must be kept", hint="use keep=1 or more", keep=self.keep)
        if self.max_age is not None and self.max_age <= timedelta():
            raise ConfigError("a maximum age must be positive", hint="for example 7d", max_age=str(self.max_age))


def expired_savepoints(
    complete: Sequence[StoredSavepoint], job_uuid: str, rule: SavepointRule, now: datetime
) -> list[StoredSavepoint]:
    """Returns the expired savepoints, oldest first: periodic savepoints of this job beyond the number or age limit.

    The newest periodic savepoint never expires: a job whose savepoints fail for weeks keeps its last one. Manual
    savepoints, those of stops and upgrades, and those of other jobs never expire.

    Args:
        complete: every complete savepoint that can be counted (see `uncounted_savepoints`), in any order.
        job_uuid: the job.
        rule: the limits.
        now: timestamp with time zone.
    """
    periodic = [s for s in complete if s.document.origin is Origin.PERIODIC and s.document.job_uuid == job_uuid]
    newest_first = sorted(periodic, key=lambda s: (_made_at(s), s.document.id), reverse=True)
    expired = []
    for position, savepoint in enumerate(newest_first):
        too_many = rule.keep is not None and position >= rule.keep
        too_old = rule.max_age is not None and now - _made_at(savepoint) > rule.max_age
        if position > 0 and (too_many or too_old):
            expired.append(savepoint)
    return expired[::-1]


def uncounted_savepoints(complete: Sequence[StoredSavepoint], now: datetime) -> list[StoredSavepoint]:
    """Returns the savepoints that retention neither deletes nor counts, because they can be copies or forgeries.

    Such a savepoint could make genuine ones expire: its folder was renamed, its id is that of another one, or it was
    made in the future. One that a host with a wrong clock has made counts as soon as its time has come.

    Args:
        complete: every complete savepoint, in any order.
        now: timestamp with time zone.
    """
    count = Counter(s.document.id for s in complete if s.is_original)
    return [s for s in complete if not s.is_original or count[s.document.id] > 1 or _made_at(s) > now]


def _made_at(stored: StoredSavepoint) -> datetime:
    return savepoint_time(stored.document.made_at)
