"""The sensors of a job's freshness and backlog, and the trigger by which deferred sensors wait without a worker slot.

The checks of freshness run in workers and in the triggerer, and need nothing but the job root. The backlog is measured
in workers only: it needs the job file, and asks the sources.
"""

from __future__ import annotations

import asyncio
from abc import abstractmethod
from collections.abc import AsyncIterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from enum import StrEnum
from typing import TYPE_CHECKING, Any, NoReturn, TypedDict, cast

from airflow.sdk import BaseSensorOperator, PokeReturnValue, conf
from airflow.sdk.exceptions import AirflowSensorTimeout
from airflow.triggers.base import BaseTrigger, TriggerEvent

from stateflow_airflow.failures import BY_ERROR_CODE, PermanentFailure, config_failure, hide_tracebacks, log_failure
from stateflow_airflow.operators.base import TaskArgument
from stateflow_airflow.operators.template_values import (
    check_job_root,
    check_texts,
    job_code,
    to_count,
    to_duration,
    to_words,
)
from stateflow_airflow.versions import RetryPolicy, add_retry_policy, require_supported

if TYPE_CHECKING:
    from airflow.sdk import Context

    from stateflow.operations import NewestCheckpoint, ReadInput
    from stateflow.runtime.backlog import JobBacklog


_LONGEST_S = 1e12
"""The longest duration that texts show, in seconds: watermarks may be any 64-bit number of milliseconds."""


class Measure(StrEnum):
    """Time whose age is limited."""

    CHECKPOINT = "checkpoint"
    """The commit of the newest checkpoint."""
    WATERMARK = "watermark"
    """The lowest watermark of the sources, at the newest checkpoint."""


class SensorStatus(StrEnum):
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
class CheckOutcome:
    """The outcome of one check.

    Attributes:
        status: whether the sensor's condition holds.
        text: a sentence for logs and errors.
        facts: the measured values, which the sensor returns.
        code: error code of a failed check; empty otherwise.
        hint: what the user can do about a failed check.
    """

    status: SensorStatus
    text: str
    facts: Mapping[str, object] = field(default_factory=dict)
    code: str = ""
    hint: str = ""

    def to_event(self) -> Event:
        """Returns the payload of a trigger's event."""
        return Event(status=self.status.value, text=self.text, facts=dict(self.facts), code=self.code, hint=self.hint)

    @classmethod
    def from_event(cls, event: Event) -> CheckOutcome:
        """Returns the outcome in the payload of a trigger's event."""
        return cls(SensorStatus(event["status"]), event["text"], event["facts"], event["code"], event["hint"])


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

    def run(self, now: datetime) -> CheckOutcome:
        """Reads the job root and compares. A storage that fails makes the outcome stale: a later check may succeed."""
        from stateflow.errors import StateflowError
        from stateflow.operations import newest_checkpoint, read_input

        try:
            if self.measure is Measure.CHECKPOINT:
                return self.of_checkpoint(newest_checkpoint(self.job_root), now)
            return self.of_watermarks(read_input(self.job_root), now)
        except StateflowError as error:
            if error.retryable:
                return CheckOutcome(
                    SensorStatus.STALE, f"the job root could not be read: [{error.code}] {error.sentence}"
                )
            return CheckOutcome(SensorStatus.FAILED, error.sentence, code=error.code, hint=error.hint)

    def of_checkpoint(self, newest: NewestCheckpoint | None, now: datetime) -> CheckOutcome:
        """Returns the outcome for the newest checkpoint. Pure."""
        from stateflow.outputs import utc_text

        if newest is None:
            return CheckOutcome(SensorStatus.STALE, "the job has no checkpoint yet")
        age_s = (now - newest.committed_at).total_seconds()
        committed_at = utc_text(newest.committed_at)
        facts = {"checkpoint_id": newest.id, "committed_at": committed_at, "age_ms": round(age_s * 1000)}
        return self._compared(age_s, f"checkpoint {newest.id} was committed {_duration(age_s)} ago", facts)

    def of_watermarks(self, found: ReadInput | None, now: datetime) -> CheckOutcome:
        """Returns the outcome for the watermarks at the newest checkpoint. Pure.

        Sources that were idle then do not count, unless all of them were.
        """
        from stateflow.clock import epoch_milliseconds

        if found is None:
            return CheckOutcome(SensorStatus.STALE, "the job has no checkpoint yet")
        known = {each.uid: each for each in found.watermarks}
        unknown = sorted(set(self.sources) - set(known))
        if unknown or not known:
            return _without_watermark(unknown, sorted(known))
        chosen = [known[uid] for uid in self.sources] or list(known.values())
        deciding = [each for each in chosen if not each.idle] or chosen
        facts: dict[str, object] = {
            "checkpoint_id": found.checkpoint,
            "watermarks": {each.uid: _time(each.watermark) for each in chosen},
            "idle": sorted(each.uid for each in chosen if each.idle),
        }
        reached = [each.watermark for each in deciding if each.watermark is not None]
        if len(reached) < len(deciding):
            return CheckOutcome(
                SensorStatus.STALE, f"a source had no watermark yet at checkpoint {found.checkpoint}", facts
            )
        lag_s = (epoch_milliseconds(now) - min(reached)) / 1000
        text = f"at checkpoint {found.checkpoint} the input was read up to {_duration(lag_s)} ago in event time"
        return self._compared(lag_s, text, {**facts, "lag_ms": round(lag_s * 1000)})

    def _compared(self, age_s: float, text: str, facts: Mapping[str, object]) -> CheckOutcome:
        compared = f"{text}; the limit is {_duration(self.limit_s)}"
        return CheckOutcome(SensorStatus.FRESH if age_s <= self.limit_s else SensorStatus.STALE, compared, facts)


def _without_watermark(unknown: list[str], known: list[str]) -> CheckOutcome:
    text = f"sources have no watermark: {', '.join(unknown)}" if unknown else "no source of the job has a watermark"
    needed = "a source has one if it has a watermark strategy and a keyed operator reads it"
    hint = f"{needed}; known: {', '.join(known)}" if known else f"{needed}; or use StateflowCheckpointSensor"
    return CheckOutcome(SensorStatus.FAILED, text, {"unknown": unknown, "known": known}, "config", hint)


def _time(watermark: int | None) -> str | None:
    from stateflow.outputs import event_time, utc_text

    return None if watermark is None else utc_text(event_time(watermark))


def _duration(seconds: float) -> str:
    """Returns a duration in whole seconds, such as ``1:05:00``; clocks of hosts may differ, so it may be below zero."""
    return str(timedelta(seconds=round(min(max(seconds, 0), _LONGEST_S))))


_READERS = ThreadPoolExecutor(max_workers=4, thread_name_prefix="stateflow-sensor")
"""Threads of this process that read job roots. A storage that does not respond blocks these threads only, not the
triggers of other operators, which share the event loop and its default threads."""


class FreshnessTrigger(BaseTrigger):
    """Checks a job root at an interval; its only event has the outcome that ends the wait.

    The check runs in a thread. If the triggerer is restarted, the wait continues elsewhere until the same time.

    Args:
        check: the check, as of `Check.to_arguments`.
        poke_interval: seconds between two checks.
        until: ISO 8601 timestamp after which a stale outcome ends the wait.
    """

    def __init__(self, check: CheckArguments, poke_interval: float, until: str) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.check = check
        self.poke_interval = poke_interval
        self.until = until

    def serialize(self) -> tuple[str, dict[str, object]]:
        arguments = {"check": self.check, "poke_interval": self.poke_interval, "until": self.until}
        return f"{type(self).__module__}.{type(self).__qualname__}", arguments

    async def run(self) -> AsyncIterator[TriggerEvent]:
        check, until = Check.from_arguments(self.check), datetime.fromisoformat(self.until)
        while True:
            outcome, remaining = await asyncio.get_running_loop().run_in_executor(_READERS, _run, check, until)
            if outcome.status is not SensorStatus.STALE or remaining <= 0:
                yield TriggerEvent(outcome.to_event())
                return
            self.log.info("Waiting: %s", outcome.text)
            await asyncio.sleep(min(self.poke_interval, remaining))


def _run(check: Check, until: datetime) -> tuple[CheckOutcome, float]:
    """Returns the outcome of the check, and the seconds that remain after it. Imports the library in the thread."""
    from stateflow.clock import SystemClock

    clock = SystemClock()
    outcome = check.run(clock.now())
    return outcome, (until - clock.now()).total_seconds()


require_supported()


_BACKSTOP = timedelta(minutes=1)
"""Airflow ends a deferred sensor this long after its timeout, if the storage does not respond and the trigger hangs."""


class JobSensor(BaseSensorOperator):
    """A sensor of a job; see its subclasses.

    Args:
        job_root: the job root.
    """

    ui_color = "#e6f1f2"

    def __init__(
        self, *, job_root: str, retry_policy: RetryPolicy | None = BY_ERROR_CODE, **kwargs: TaskArgument
    ) -> None:
        add_retry_policy(kwargs, retry_policy)
        super().__init__(**kwargs)
        self.job_root = job_root
        self._last = ""

    def pre_execute(self, context: Context) -> None:
        """Hides the tracebacks of failures whose messages explain them, and checks rendered texts."""
        hide_tracebacks()
        check_texts(self)

    @abstractmethod
    def measure(self, now: datetime) -> CheckOutcome:
        """Checks the condition once. Raises PermanentFailure for an invalid argument."""

    def poke(self, context: Context) -> PokeReturnValue:
        """Checks once."""
        from stateflow.clock import SystemClock

        outcome = self.measure(SystemClock().now())
        self._last = outcome.text
        return PokeReturnValue(self._is_fresh(outcome), dict(outcome.facts))

    def execute(self, context: Context) -> Mapping[str, object]:
        """Waits until the check succeeds. Returns its facts."""
        try:
            return cast("Mapping[str, object]", super().execute(context))
        except AirflowSensorTimeout as error:
            raise self._timed_out(self._last) from error

    def _is_fresh(self, outcome: CheckOutcome) -> bool:
        """Logs the outcome. Raises PermanentFailure for an error that waiting does not fix."""
        if outcome.status is SensorStatus.FAILED:
            raise log_failure(PermanentFailure(outcome.code, outcome.text, outcome.hint, outcome.facts))
        self.log.info("%s: %s", outcome.status.value, outcome.text)
        return outcome.status is SensorStatus.FRESH

    def _timed_out(self, text: str) -> AirflowSensorTimeout:
        return AirflowSensorTimeout(f"no success within {timedelta(seconds=self.timeout)}: {text}")


class FreshnessSensor(JobSensor):
    """A sensor that checks a job root; see its subclasses.

    Args:
        deferrable: whether it waits in the triggerer, without a worker slot; by default Airflow's setting
            ``[operators] default_deferrable``. The first check is made by the worker, and defers only if needed.
    """

    def __init__(self, *, deferrable: bool | None = None, **kwargs: TaskArgument) -> None:
        super().__init__(**kwargs)
        default = conf.getboolean("operators", "default_deferrable", fallback=False)
        self.deferrable = default if deferrable is None else deferrable

    @abstractmethod
    def check(self) -> Check:
        """Returns the check. Raises PermanentFailure for an invalid argument."""

    def measure(self, now: datetime) -> CheckOutcome:
        """Makes the check."""
        return self.check().run(now)

    def execute(self, context: Context) -> Mapping[str, object]:
        """Waits until the check succeeds. Returns its facts."""
        if self.deferrable and self.timeout:
            poked = self.poke(context)
            if not poked:
                self._defer()
            return cast("Mapping[str, object]", poked.xcom_value)
        return super().execute(context)

    def execute_complete(self, context: Context, event: Event) -> Mapping[str, object]:
        """Ends the task with the outcome that the trigger has found. Returns its facts."""
        outcome = CheckOutcome.from_event(event)
        if not self._is_fresh(outcome):
            raise self._timed_out(outcome.text)
        return outcome.facts

    def _defer(self) -> NoReturn:
        from stateflow.clock import SystemClock

        timeout = timedelta(seconds=self.timeout)
        until = (SystemClock().now() + timeout).isoformat()
        trigger = FreshnessTrigger(self.check().to_arguments(), self.poke_interval, until)
        self.defer(trigger=trigger, method_name="execute_complete", timeout=timeout + _BACKSTOP)


class StateflowCheckpointSensor(FreshnessSensor):
    """Waits until the newest checkpoint of a job is at most `max_age` old; fails when `timeout` ends before that.

    With ``timeout=0`` it checks once: the task fails if the job made no checkpoint for `max_age`, which is an alert.

    The age is that of the checkpoint which the next run would start from, by the clock of the host that committed it:
    after a restore of an older checkpoint, that one's. A job without new input makes no checkpoint, and its newest one
    becomes older; the sensor cannot distinguish that from a job that does not run.

    A storage that fails is checked again until the timeout. A job root that does not exist, or is damaged, fails the
    task at once, and no retry follows. The arguments of `FreshnessSensor` and of every sensor apply, such as
    ``timeout``, ``poke_interval``, ``mode`` and ``soft_fail``.

    **Returns** (XCom) ``checkpoint_id``, ``committed_at`` and ``age_ms``.

    Args:
        job_root: the job root, see `StateflowRunOperator`. Templated.
        max_age: greatest age of the newest checkpoint; a timedelta, or a text such as ``15m``. Templated.
    """

    template_fields: Sequence[str] = ("job_root", "max_age")

    def __init__(self, *, job_root: str, max_age: timedelta | str, **kwargs: Any) -> None:
        super().__init__(job_root=job_root, **kwargs)
        self.max_age = max_age

    def check(self) -> Check:
        """Returns the check. Raises PermanentFailure for an invalid argument."""
        return Check(Measure.CHECKPOINT, check_job_root(self.job_root), _seconds("max_age", self.max_age))


class StateflowWatermarkSensor(FreshnessSensor):
    """Waits until a job has read its input up to an event time of at most `max_lag` ago; fails on `timeout`.

    With ``timeout=0`` it checks once: the task fails if the job lags more than `max_lag`, which is an alert.

    The lag is the current time minus the lowest watermark of the sources at the newest checkpoint. A source has one if
    it has a watermark strategy and a keyed operator reads it; other sources do not count, and a job without any fails
    the task at once. The job root does not show which input exists that the job has not read: the lag also grows when
    no input arrives. A source that was idle at that checkpoint does not count, unless all were: one with
    `with_idleness` that had no rows for that time, or a bounded one at its end. The watermark is the latest event time
    minus the out-of-orderness that the strategy allows, so `max_lag` must be greater than that. Event times in the
    future hide a lag.

    Errors and further arguments as of `StateflowCheckpointSensor`.

    **Returns** (XCom) ``checkpoint_id``, ``lag_ms``, ``watermarks`` (times by uid of the source) and
    ``idle`` (uids).

    Args:
        job_root: the job root, see `StateflowRunOperator`. Templated.
        max_lag: greatest lag; a timedelta, or a text such as ``15m``. Templated.
        sources: uids of the sources that count; a list, or a comma-separated text; empty for all with a watermark.
            Templated.
    """

    template_fields: Sequence[str] = ("job_root", "max_lag", "sources")

    def __init__(
        self, *, job_root: str, max_lag: timedelta | str, sources: str | Sequence[str] = (), **kwargs: Any
    ) -> None:
        super().__init__(job_root=job_root, **kwargs)
        self.max_lag = max_lag
        self.sources = sources

    def check(self) -> Check:
        """Returns the check. Raises PermanentFailure for an invalid argument."""
        limit = _seconds("max_lag", self.max_lag)
        return Check(Measure.WATERMARK, check_job_root(self.job_root), limit, to_words(self.sources))


class StateflowBacklogSensor(JobSensor):
    """Waits until little enough input waits at a job's sources after its newest checkpoint; fails on `timeout`.

    With ``timeout=0`` it checks once: the task fails if more input waits, which is an alert. It loads the job file in
    the worker and asks the sources, also while no run is active, for ten seconds at most; it starts no Spark. Use
    ``mode="reschedule"`` to wait without a worker slot. A number that a source cannot tell, or whose server does not
    answer, is unknown and exceeds every limit; the log says why.

    Errors and further arguments as of `StateflowCheckpointSensor`.

    **Returns** (XCom) the fields of ``backlog`` in ``stateflow status --json``: ``rows``, ``oldest_at``,
    ``catch_up_ms``, ``sources`` and others.

    Args:
        job: absolute path of the job file, on the worker. Templated.
        job_root: the job root, see `StateflowRunOperator`. Templated.
        max_rows: greatest number of rows that may wait. Templated; None for no limit.
        max_age: greatest age of the oldest input that waits; a timedelta, or a text such as ``15m``. Templated; None
            for no limit.
        max_catch_up: greatest time that a run needs to read all that waits, at the rate of the last runs. Templated;
            None for no limit.
        settings: as for `StateflowRunOperator`. Templated.
    """

    template_fields: Sequence[str] = ("job", "job_root", "max_rows", "max_age", "max_catch_up", "settings")
    template_fields_renderers = {"settings": "json"}

    def __init__(
        self,
        *,
        job: str,
        max_rows: int | str | None = None,
        max_age: timedelta | str | None = None,
        max_catch_up: timedelta | str | None = None,
        settings: Mapping[str, object] | str | None = None,
        **kwargs: TaskArgument,
    ) -> None:
        super().__init__(**kwargs)
        self.job = job
        self.max_rows, self.max_age, self.max_catch_up = max_rows, max_age, max_catch_up
        # Not copied: the output of a task or a template is a mapping only once it is rendered.
        self.settings = cast("Mapping[str, object]", settings or {})

    def measure(self, now: datetime) -> CheckOutcome:
        """Asks the sources once. Raises PermanentFailure for an invalid argument."""
        from stateflow.errors import StateflowError
        from stateflow.operations import measure_backlog

        limits = BacklogLimits(
            to_count("max_rows", self.max_rows, "rows"),
            to_duration("max_age", self.max_age),
            to_duration("max_catch_up", self.max_catch_up),
        )
        if limits == BacklogLimits():
            raise config_failure("the sensor has no limit", "pass max_rows, max_age or max_catch_up")
        code, root = job_code(self.job, self.settings), check_job_root(self.job_root)
        try:
            return compare_backlog(measure_backlog(root, code), limits, now)
        except StateflowError as error:
            if error.retryable:
                text = f"the job root could not be read: [{error.code}] {error.sentence}"
                return CheckOutcome(SensorStatus.STALE, text)
            return CheckOutcome(SensorStatus.FAILED, error.sentence, code=error.code, hint=error.hint)


@dataclass(frozen=True)
class BacklogLimits:
    """The greatest backlog of a job; None for no limit. Attributes as the arguments of `StateflowBacklogSensor`."""

    max_rows: int | None = None
    max_age: timedelta | None = None
    max_catch_up: timedelta | None = None


def compare_backlog(found: JobBacklog, limits: BacklogLimits, now: datetime) -> CheckOutcome:
    """Returns whether a backlog is within its limits. Pure."""
    from stateflow.outputs import to_object

    is_empty = found.rows == 0
    age_s = (now - datetime.fromisoformat(found.oldest_at)).total_seconds() if found.oldest_at else None
    catch_up_s = None if found.catch_up_ms is None else found.catch_up_ms / 1000
    # Each with its limit; nothing has an age if nothing waits.
    compared: list[tuple[str, float | None, float | None]] = [
        ("rows", found.rows, limits.max_rows),
        ("age", 0.0 if is_empty else age_s, _in_seconds(limits.max_age)),
        ("time to catch up", catch_up_s, _in_seconds(limits.max_catch_up)),
    ]
    texts, is_within = [], True
    for name, value, limit in compared:
        if limit is not None:
            is_within &= value is not None and value <= limit
            shown = [str(each) if name == "rows" else _duration(each) for each in (value, limit) if each is not None]
            texts.append(f"{name} {' of at most '.join(shown) if value is not None else f'unknown, limit {shown[0]}'}")
    texts += [f"source {each.uid}: {each.unknown}" for each in found.sources if each.unknown]
    status = SensorStatus.FRESH if is_within else SensorStatus.STALE
    return CheckOutcome(status, f"input that waits: {'; '.join(texts)}", to_object(found))


def _in_seconds(duration: timedelta | None) -> float | None:
    return None if duration is None else duration.total_seconds()


def _seconds(name: str, value: timedelta | str) -> float:
    duration = to_duration(name, value)
    if duration is None:
        raise config_failure(f"{name} is empty", "pass a duration, such as 15m", **{name: value})
    return duration.total_seconds()
