"""Which savepoints have had their time. Pure: facts in, a choice out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from stateflow.checkpoint.documents import Origin, Savepoint
from stateflow.errors import ConfigError


@dataclass(frozen=True)
class SavepointRule:
    """How long periodic savepoints live. Without either limit, for ever.

    Attributes:
        keep: this many of the newest.
        max_age: those that are not older.
    """

    keep: int | None = None
    max_age: timedelta | None = None

    def __post_init__(self) -> None:
        if self.keep is not None and self.keep < 1:
            raise ConfigError("at least one savepoint is kept", hint="keep=1 or more", keep=self.keep)
        if self.max_age is not None and self.max_age <= timedelta():
            raise ConfigError("an age is above zero", hint="like 7d", max_age=str(self.max_age))


def expired_savepoints(
    complete: Sequence[Savepoint], job_uuid: str, rule: SavepointRule, now: datetime
) -> list[Savepoint]:
    """Those that the rule lets go, oldest first: periodic ones of this job that are too many or too old.

    The newest periodic one always stays, however old it is: a job whose savepoints fail for weeks keeps its last one.
    Savepoints that a person took, that a stop or an upgrade left, and those of other jobs are nobody's to delete.

    Args:
        complete: every complete savepoint, in any order.
    """
    periodic = [s for s in complete if s.origin is Origin.PERIODIC and s.job_uuid == job_uuid]
    newest_first = sorted(periodic, key=lambda s: (_moment(s.made_at), s.id), reverse=True)
    gone = []
    for place, savepoint in enumerate(newest_first):
        too_many = rule.keep is not None and place >= rule.keep
        too_old = rule.max_age is not None and now - _moment(savepoint.made_at) > rule.max_age
        if place > 0 and (too_many or too_old):
            gone.append(savepoint)
    return gone[::-1]


def _moment(text: str) -> datetime:
    moment = datetime.fromisoformat(text)
    return moment if moment.tzinfo else moment.replace(tzinfo=UTC)
