"""The sensors of a job's freshness."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any, NoReturn, cast

from airflow.sdk import BaseSensorOperator, PokeReturnValue, RetryPolicy, conf
from airflow.sdk.exceptions import AirflowSensorTimeout

from stateflow_airflow.failures import PermanentFailure, hide_tracebacks, log_failure, misconfigured
from stateflow_airflow.operators.template_values import check_texts, checked_root, to_duration, to_words
from stateflow_airflow.retry import BY_ERROR_CODE
from stateflow_airflow.sensors.checks import Check, Event, Measure, Outcome, Status
from stateflow_airflow.sensors.trigger import FreshnessTrigger
from stateflow_airflow.versions import require_supported

if TYPE_CHECKING:
    from airflow.sdk import Context

require_supported()

_BACKSTOP = timedelta(minutes=1)
"""Airflow ends a deferred sensor this long after its timeout, if the storage does not respond and the trigger hangs."""


class FreshnessSensor(BaseSensorOperator):
    """A sensor that checks a job root; see its subclasses.

    Args:
        job_root: the job root.
        deferrable: whether it waits in the triggerer, without a worker slot; by default Airflow's setting
            ``[operators] default_deferrable``. The first check is made by the worker, and defers only if needed.
    """

    ui_color = "#e6f1f2"

    def __init__(
        self,
        *,
        job_root: str,
        deferrable: bool | None = None,
        retry_policy: RetryPolicy | None = BY_ERROR_CODE,
        **kwargs: Any,
    ) -> None:
        super().__init__(retry_policy=retry_policy, **kwargs)
        self.job_root = job_root
        default = conf.getboolean("operators", "default_deferrable", fallback=False)
        self.deferrable = default if deferrable is None else deferrable
        self._last = ""

    def pre_execute(self, context: Context) -> None:
        """Hides the tracebacks of failures whose messages explain them, and checks rendered texts."""
        hide_tracebacks()
        check_texts(self)

    @abstractmethod
    def check(self) -> Check:
        """Returns the check. Raises PermanentFailure for an invalid argument."""

    def poke(self, context: Context) -> PokeReturnValue:
        """Checks once."""
        from stateflow.clock import SystemClock

        outcome = self.check().run(SystemClock().now())
        self._last = outcome.text
        return PokeReturnValue(self._is_fresh(outcome), dict(outcome.facts))

    def execute(self, context: Context) -> Mapping[str, object]:
        """Waits until the check succeeds. Returns its facts."""
        if self.deferrable and self.timeout:
            poked = self.poke(context)
            if not poked:
                self._defer()
            return cast("Mapping[str, object]", poked.xcom_value)
        try:
            return cast("Mapping[str, object]", super().execute(context))
        except AirflowSensorTimeout as error:
            raise self._timed_out(self._last) from error

    def execute_complete(self, context: Context, event: Event) -> Mapping[str, object]:
        """Ends the task with the outcome that the trigger has found. Returns its facts."""
        outcome = Outcome.from_event(event)
        if not self._is_fresh(outcome):
            raise self._timed_out(outcome.text)
        return outcome.facts

    def _defer(self) -> NoReturn:
        from stateflow.clock import SystemClock

        timeout = timedelta(seconds=self.timeout)
        until = (SystemClock().now() + timeout).isoformat()
        trigger = FreshnessTrigger(self.check().to_arguments(), self.poke_interval, until)
        self.defer(trigger=trigger, method_name="execute_complete", timeout=timeout + _BACKSTOP)

    def _is_fresh(self, outcome: Outcome) -> bool:
        """Logs the outcome. Raises PermanentFailure for an error that waiting does not fix."""
        if outcome.status is Status.FAILED:
            raise log_failure(PermanentFailure(outcome.code, outcome.text, outcome.hint, outcome.facts))
        self.log.info("%s: %s", outcome.status.value, outcome.text)
        return outcome.status is Status.FRESH

    def _timed_out(self, text: str) -> AirflowSensorTimeout:
        return AirflowSensorTimeout(f"no success within {timedelta(seconds=self.timeout)}: {text}")


class StateflowCheckpointSensor(FreshnessSensor):
    """Waits until the newest checkpoint of a job is at most `max_age` old; fails when `timeout` ends before that.

    With ``timeout=0`` it checks once: the task fails if there was no checkpoint for `max_age`, which is an alert.

    The age is that of the checkpoint which the next run would start from, by the clock of the host that committed it:
    after a restore of an older checkpoint, that one's. A job without new input makes no checkpoint, and its newest one
    becomes older; the sensor cannot distinguish that from a job that does not run.

    A storage that fails is checked again until the timeout. A job root that does not exist, or is damaged, fails the
    task at once, and no retry follows. The arguments of `FreshnessSensor` apply, and those of every sensor, such as
    ``timeout``, ``poke_interval``, ``mode`` and ``soft_fail``.

    **Returns** (XCom) ``checkpoint_id``, ``committed_at`` (ISO 8601) and ``age_s``.

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
        return Check(Measure.CHECKPOINT, checked_root(self.job_root), _seconds("max_age", self.max_age))


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

    **Returns** (XCom) ``checkpoint_id``, ``lag_s``, ``watermarks`` (milliseconds since 1970 by uid of the source) and
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
        return Check(Measure.WATERMARK, checked_root(self.job_root), limit, to_words(self.sources))


def _seconds(name: str, value: timedelta | str) -> float:
    duration = to_duration(name, value)
    if duration is None:
        raise misconfigured(f"{name} is empty", "pass a duration, such as 15m", **{name: value})
    return duration.total_seconds()
