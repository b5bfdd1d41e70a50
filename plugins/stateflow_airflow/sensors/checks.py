"""What the sensors check. The checks run in workers and in the triggerer, and need nothing but the job root."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from enum import StrEnum
from typing import TYPE_CHECKING, TypedDict

if TYPE_CHECKING:
    from datetime import datetime

    from stateflow.operations import NewestCheckpoint, ReadInput

_LONGEST_S = 1e12
"""The longest duration that texts show, in seconds: watermarks may be any 64-bit number of milliseconds."""


class Measure(StrEnum):
    """What must be at most some time in the past."""

    CHECKPOINT = "checkpoint"
    """The commit of the newest checkpoint."""
    WATERMARK = "watermark"
    """The lowest watermark of the sources, at the newest checkpoint."""


class Status(StrEnum):
    """The result of a check."""

    FRESH = "fresh"
    STALE = "stale"
    FAILED = "failed"
    """An error that waiting does not fix."""


class Event(TypedDict):
    """An outcome as the payload of a trigger's event."""

    status: str
    text: str
    facts: dict[str, object]
    code: str
    hint: str


class CheckArguments(TypedDict):
    """A check as the argument of a trigger."""

    measure: str
    job_root: str
    limit_s: float
    sources: list[str]


@dataclass(frozen=True)
class Outcome:
    """The outcome of one check.

    Attributes:
        status: whether the sensor's condition holds.
        text: a sentence for logs and errors.
        facts: the measured values, which the sensor returns.
        code: error code of a failed check; empty otherwise.
        hint: what the user can do about a failed check.
    """

    status: Status
    text: str
    facts: Mapping[str, object] = field(default_factory=dict)
    code: str = ""
    hint: str = ""

    def to_event(self) -> Event:
        """Returns the payload of a trigger's event."""
        return Event(status=self.status.value, text=self.text, facts=dict(self.facts), code=self.code, hint=self.hint)

    @classmethod
    def from_event(cls, event: Event) -> Outcome:
        """Returns the outcome in the payload of a trigger's event."""
        return cls(Status(event["status"]), event["text"], event["facts"], event["code"], event["hint"])


@dataclass(frozen=True)
class Check:
    """A condition on a job root.

    Attributes:
        measure: what is measured.
        job_root: the job root.
        limit_s: the greatest time in the past, in seconds.
        sources: uids of the sources that count for a watermark; empty for all.
    """

    measure: Measure
    job_root: str
    limit_s: float
    sources: Sequence[str] = ()

    def to_arguments(self) -> CheckArguments:
        """Returns the check as the argument of a trigger."""
        return CheckArguments(
            measure=self.measure.value, job_root=self.job_root, limit_s=self.limit_s, sources=list(self.sources)
        )

    @classmethod
    def from_arguments(cls, given: CheckArguments) -> Check:
        """Returns the check in the argument of a trigger."""
        return cls(Measure(given["measure"]), given["job_root"], given["limit_s"], tuple(given["sources"]))

    def run(self, now: datetime) -> Outcome:
        """Reads the job root and compares. A storage that fails makes the outcome stale: a later check may succeed."""
        from stateflow.errors import StateflowError
        from stateflow.operations import newest_checkpoint, read_input

        try:
            if self.measure is Measure.CHECKPOINT:
                return self.of_checkpoint(newest_checkpoint(self.job_root), now)
            return self.of_watermarks(read_input(self.job_root), now)
        except StateflowError as error:
            if error.retryable:
                return Outcome(Status.STALE, f"the job root could not be read: [{error.code}] {error.sentence}")
            return Outcome(Status.FAILED, error.sentence, code=error.code, hint=error.hint)

    def of_checkpoint(self, newest: NewestCheckpoint | None, now: datetime) -> Outcome:
        """Returns the outcome for the newest checkpoint. Pure."""
        if newest is None:
            return Outcome(Status.STALE, "the job has no checkpoint yet")
        age_s = (now - newest.committed_at).total_seconds()
        facts = {"checkpoint_id": newest.id, "committed_at": newest.committed_at.isoformat(), "age_s": age_s}
        return self._compared(age_s, f"checkpoint {newest.id} was committed {_duration(age_s)} ago", facts)

    def of_watermarks(self, found: ReadInput | None, now: datetime) -> Outcome:
        """Returns the outcome for the watermarks at the newest checkpoint. Pure.

        Sources that were idle then do not count, unless all of them were.
        """
        from stateflow.clock import epoch_milliseconds

        if found is None:
            return Outcome(Status.STALE, "the job has no checkpoint yet")
        known = {each.uid: each for each in found.watermarks}
        unknown = sorted(set(self.sources) - set(known))
        if unknown or not known:
            return _without_watermark(unknown, sorted(known))
        chosen = [known[uid] for uid in self.sources] or list(known.values())
        deciding = [each for each in chosen if not each.idle] or chosen
        facts: dict[str, object] = {
            "checkpoint_id": found.checkpoint,
            "watermarks": {each.uid: each.watermark for each in chosen},
            "idle": sorted(each.uid for each in chosen if each.idle),
        }
        reached = [each.watermark for each in deciding if each.watermark is not None]
        if len(reached) < len(deciding):
            return Outcome(Status.STALE, f"a source had no watermark yet at checkpoint {found.checkpoint}", facts)
        lag_s = (epoch_milliseconds(now) - min(reached)) / 1000
        text = f"at checkpoint {found.checkpoint} the input was read up to {_duration(lag_s)} ago in event time"
        return self._compared(lag_s, text, {**facts, "lag_s": lag_s})

    def _compared(self, age_s: float, text: str, facts: Mapping[str, object]) -> Outcome:
        compared = f"{text}; the limit is {_duration(self.limit_s)}"
        return Outcome(Status.FRESH if age_s <= self.limit_s else Status.STALE, compared, facts)


def _without_watermark(unknown: list[str], known: list[str]) -> Outcome:
    text = f"sources have no watermark: {', '.join(unknown)}" if unknown else "no source of the job has a watermark"
    needed = "a source has one if it has a watermark strategy and a keyed operator reads it"
    hint = f"{needed}; known: {', '.join(known)}" if known else f"{needed}; or use StateflowCheckpointSensor"
    return Outcome(Status.FAILED, text, {"unknown": unknown, "known": known}, "config", hint)


def _duration(seconds: float) -> str:
    """Returns a duration in whole seconds, such as ``1:05:00``; clocks of hosts may differ, so it may be below zero."""
    return str(timedelta(seconds=round(min(max(seconds, 0), _LONGEST_S))))
