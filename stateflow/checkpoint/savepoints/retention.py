"""Selects expired savepoints. Pure functions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from stateflow.checkpoint.log.documents import Origin, Savepoint
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
    complete: Sequence[Savepoint], job_uuid: str, rule: SavepointRule, now: datetime
) -> list[Savepoint]:
    """Returns the expired savepoints, oldest first: periodic savepoints of this job beyond the number or age limit.

    The newest periodic savepoint never expires: a job whose savepoints fail for weeks keeps its last one. Manual
    savepoints, those of stops and upgrades, and those of other jobs never expire.

    Args:
        complete: every complete savepoint, in any order.
        job_uuid: the job.
        rule: the limits.
        now: timestamp with time zone.
    """
    periodic = [s for s in complete if s.origin is Origin.PERIODIC and s.job_uuid == job_uuid]
    newest_first = sorted(periodic, key=lambda s: (_timestamp(s.made_at), s.id), reverse=True)
    expired = []
    for position, savepoint in enumerate(newest_first):
        too_many = rule.keep is not None and position >= rule.keep
        too_old = rule.max_age is not None and now - _timestamp(savepoint.made_at) > rule.max_age
        if position > 0 and (too_many or too_old):
            expired.append(savepoint)
    return expired[::-1]


def _timestamp(text: str) -> datetime:
    timestamp = datetime.fromisoformat(text)
    return timestamp if timestamp.tzinfo else timestamp.replace(tzinfo=UTC)
