"""A run whose driver is in a cluster: submitted or found again, followed and stopped through the job root, ended.

Nothing but the id of the launch is needed to continue here after this process was killed: the cluster finds the
application by it, and the job root has the application's run and its result.
"""

from __future__ import annotations

import logging
import signal
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from types import FrameType

from stateflow.checkpoint.history import read_records
from stateflow.checkpoint.job_requests import RequestClient, RequestTimeouts
from stateflow.checkpoint.launches import forget_launch, generation_of, read_launch_result
from stateflow.checkpoint.log.documents import Origin, Request, RequestKind
from stateflow.checkpoint.log.job_root import JobRoot
from stateflow.clock import Clock
from stateflow.errors import ClusterFailed, Interrupted, StateflowError, StorageError
from stateflow.storage import Storage
from stateflow.storage.paths import FORMAT
from stateflow.submission.cluster import Application, Cluster, Phase
from stateflow.submission.shipment import Shipment

log = logging.getLogger(__name__)

_POLL = timedelta(seconds=1)
_PROGRESS_POLLS = 3
"""The job root is read for the progress at every so many of these polls."""
_UNREACHABLE = timedelta(minutes=10)
"""How long the cluster may not respond, or not know the application, before the run is given up."""
_KILL_REPEATED = timedelta(seconds=30)
FINISHED = "finished"


@dataclass(frozen=True)
class RunInCluster:
    """What a run in a cluster belongs to, and how it is ended.

    Attributes:
        launch: id of the launch.
        storage: the job root.
        end_timeout: how long the run may take to end with a checkpoint once this process was asked to end.
        note: who requests a stop.
        report: called with each step, for display.
    """

    launch: str
    storage: Storage
    end_timeout: timedelta
    note: str
    report: Callable[[str], None]


class ClusterRun:
    """Submits a driver, or finds it again, and follows it to its end.

    Args:
        cluster: the cluster.
        run: the run.
        clock: the clock of this process.
        poll: interval at which the cluster is asked for the state of the application.
    """

    def __init__(self, cluster: Cluster, run: RunInCluster, clock: Clock, poll: timedelta = _POLL) -> None:
        self._cluster = cluster
        self._run = run
        self._clock = clock
        self._poll = poll
        self._signals = 0
        self._wake = threading.Event()
        self._progress = _Progress(run, clock)

    def find_active(self) -> Application | None:
        """Returns the application of an earlier process with this launch, if it is active or has stored a success.

        Removes what another one has left: the process that has followed it may have been killed before it ended.
        """
        found = self._cluster.find(self._run.launch)
        if found is None or found.is_active:
            return found
        # Without a result, each process with this launch would fail as the first one did.
        if found.phase is Phase.SUCCEEDED and read_launch_result(self._run.storage, self._run.launch) is not None:
            return found
        self._clean_up(found)
        return None

    def run(self, shipment: Callable[[], Shipment] | None) -> Mapping[str, object]:
        """Returns the result of the run, as its driver has stored it in the job root.

        SIGTERM and SIGINT end the run with a checkpoint; a second one, or the end of the time for it, kills it.

        Args:
            shipment: makes the driver to submit; called if there is no application to follow. None to submit none: the
                result of the driver that has ended is returned then.

        Raises:
            ClusterFailed: the driver was not started, was killed by the cluster, or has ended without a result.
            Interrupted: this process was asked to end, and the driver has ended without a result.
        """
        with self._signals_counted():
            found = self.find_active()
            if found is not None:
                self._run.report(f"found the driver of this launch: {found.id}")
                if shipment is not None and found.is_active and self._may_wait():
                    self._deliver_again(found, shipment)
                ended = self._follow(found)
                if shipment is None or not self._never_started(found, ended):
                    return self._result(ended)
                self._clean_up(ended)
            if shipment is None:
                return self._last_result()
            forget_launch(self._run.storage, self._run.launch)
            self._run.report("submitting the driver")
            given = shipment()
            self._submit(given)
            found = self._wait_until_found()
            self._deliver(found, given)
            return self._result(self._follow(found))

    def _last_result(self) -> Mapping[str, object]:
        result = read_launch_result(self._run.storage, self._run.launch)
        if result is None:
            raise ClusterFailed(
                "the driver of the launch has ended without a result",
                hint="run the job again: it continues from its newest checkpoint",
                launch=self._run.launch,
            )
        return result

    def _never_started(self, found: Application, ended: Application) -> bool:
        """Returns whether the process that submitted an application was killed before the driver could start."""
        if self._signals or (found.phase, ended.phase) != (Phase.WAITING, Phase.FAILED):
            return False
        return not self._has_claimed() and read_launch_result(self._run.storage, self._run.launch) is None

    def _has_claimed(self) -> bool:
        return generation_of(self._run.storage, self._run.launch) > 0

    def _may_wait(self) -> bool:
        """Returns whether a driver may lack its settings: who has submitted it may have been killed before."""
        try:
            is_claimed = self._has_claimed()
        except StorageError as e:
            log.warning("whether the driver has its settings is not known, so it gets them: %s", e)
            is_claimed = False
        return not is_claimed

    @contextmanager
    def _signals_counted(self) -> Iterator[None]:
        def count(number: int, frame: FrameType | None) -> None:
            self._signals += 1
            self._wake.set()

        before = {number: signal.signal(number, count) for number in (signal.SIGTERM, signal.SIGINT)}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def _submit(self, shipment: Shipment) -> None:
        try:
            self._cluster.submit(shipment, self._is_interrupted)
        except Interrupted:
            # The cluster may have accepted the driver nevertheless; then it is followed, and ended.
            if self._cluster.find(self._run.launch) is None:
                raise
        except ClusterFailed as e:
            found = self._cluster.find(self._run.launch)
            if found is None or found.is_active:
                raise
            self._clean_up(found)
            # spark-submit does not say why an application has failed that it could submit.
            raise ClusterFailed(
                "the cluster did not start the driver",
                hint="see the reason",
                application=found.id,
                phase=str(found.phase),
                reason=found.reason or e.facts.get("reason", ""),
            ) from e

    def _is_interrupted(self) -> bool:
        return self._signals > 0

    def _deliver(self, application: Application, shipment: Shipment) -> None:
        if self._is_interrupted() or not application.is_active:
            return
        try:
            self._cluster.deliver(application, shipment)
        except ClusterFailed:
            if self._is_interrupted():
                return
            # The reason of an application that has ended in between is with the application.
            found = self._cluster.find(self._run.launch)
            if found is None or found.is_active:
                raise

    def _deliver_again(self, application: Application, make: Callable[[], Shipment]) -> None:
        """Delivers what the process that has submitted an application may not have delivered."""
        try:
            shipment = make()
        except StateflowError as e:
            # The driver may have its settings. Then those of today, such as a damaged job file, do not matter.
            log.warning("the driver gets no settings from this process: %s", e)
            return
        self._deliver(application, shipment)

    def _wait_until_found(self) -> Application:
        deadline = self._clock.monotonic() + _UNREACHABLE.total_seconds()
        while True:
            found = self._find(deadline)
            if found is not None:
                return found

    def _find(self, deadline: float) -> Application | None:
        """Returns the application; None, after a pause, if the cluster does not respond or does not know it."""
        try:
            found = self._cluster.find(self._run.launch)
            problem = ClusterFailed("the cluster does not know the application", hint="see its own log")
        except ClusterFailed as e:
            found, problem = None, e
        if found is None:
            if self._clock.monotonic() > deadline:
                raise problem
            log.warning("%s; trying again", problem.sentence)
            self._pause()
        return found

    def _pause(self) -> None:
        self._wake.wait(self._poll.total_seconds())
        self._wake.clear()

    def _follow(self, application: Application) -> Application:
        """Returns the application as it has ended."""
        shown, polls, ending = None, 0, _Ending(self._cluster, self._run, self._clock)
        deadline = self._clock.monotonic() + _UNREACHABLE.total_seconds()
        while application.is_active:
            if shown != application.phase:
                shown = application.phase
                is_running = application.phase is Phase.RUNNING
                log_at = f"; its log: {application.log}" if application.log and is_running else ""
                self._run.report(f"{application.id} is {application.phase}{log_at}")
            if polls % _PROGRESS_POLLS == 0:
                self._progress.show()
            polls += 1
            if self._signals:
                ending.proceed(application, self._signals)
            self._pause()
            if (found := self._find(deadline)) is not None:
                application = found
                deadline = self._clock.monotonic() + _UNREACHABLE.total_seconds()
        self._progress.show()
        self._run.report(f"{application.id} has ended: {application.phase}")
        return application

    def _clean_up(self, application: Application) -> None:
        try:
            self._cluster.clean_up(application)
        except ClusterFailed as e:
            log.warning("what the application has left cannot be removed: %s", e)

    def _result(self, application: Application) -> Mapping[str, object]:
        if application.phase is not Phase.SUCCEEDED:
            self._clean_up(application)
        result = read_launch_result(self._run.storage, self._run.launch)
        if application.phase is Phase.SUCCEEDED:
            # Only now: until its result is known, another process must find it.
            self._clean_up(application)
        if result is not None:
            return result
        if self._signals:
            raise Interrupted(
                "the driver in the cluster was ended before it had stored a result",
                hint="run the job again: it continues from its newest checkpoint",
                application=application.id,
            )
        raise ClusterFailed(
            "the driver in the cluster has ended without a result",
            hint=f"see its log: {application.log}" if application.log else "see the reason",
            application=application.id,
            phase=str(application.phase),
            reason=application.reason,
        )


class _Ending:
    """Ends an application: with a checkpoint by a request in the job root; by the cluster if that takes too long."""

    def __init__(self, cluster: Cluster, run: RunInCluster, clock: Clock) -> None:
        self._cluster = cluster
        self._run = run
        self._clock = clock
        self._deadline: float | None = None
        self._requested = 0
        self._killed_at: float | None = None

    def proceed(self, application: Application, signals: int) -> None:
        """Does what is due; called at each poll since the first signal."""
        now = self._clock.monotonic()
        if self._deadline is None:
            self._deadline = now + self._run.end_timeout.total_seconds()
        may_stop = self._request_stop() if signals == 1 and self._killed_at is None else False
        if may_stop and now < self._deadline:
            return
        if self._killed_at is None or now - self._killed_at > _KILL_REPEATED.total_seconds():
            self._run.report(f"killing {application.id}")
            self._killed_at = now
            try:
                self._cluster.kill(application)
            except ClusterFailed as e:
                log.warning("the application cannot be killed, trying again: %s", e)

    def _request_stop(self) -> bool:
        """Requests the run of the launch to stop, once for each generation; returns whether it may still stop itself.

        It cannot if there is no run. While the storage fails, there may be one.
        """
        run = self._run
        try:
            reason = f"the launch was ended: {run.note}".removesuffix(": ")
            generation = request_stop(
                run.storage, run.launch, self._clock, run.end_timeout, reason=reason, requested=self._requested
            )
            if generation != self._requested:
                self._requested = generation
                run.report("requested the run to end with a checkpoint")
        except StateflowError as e:
            log.warning("the run cannot be requested to end, trying again: %s", e)
            return True
        return generation > 0


def request_stop(
    storage: Storage, launch: str, clock: Clock, end_timeout: timedelta, *, reason: str, requested: int = 0
) -> int:
    """Requests the run of a launch to end with a checkpoint; returns its generation, 0 if none has claimed the job.

    Args:
        storage: the job root.
        launch: the launch.
        clock: the clock of this process.
        end_timeout: how long the request is valid.
        reason: stored with the request.
        requested: the generation that this process has already requested to end; 0 for none.

    Raises:
        StateflowError: the job root cannot be read or written.
    """
    generation = generation_of(storage, launch)
    if generation in (0, requested):
        return generation
    root = JobRoot.open(storage, clock)
    request = Request(
        id=clock.new_id(),
        kind=RequestKind.STOP,
        savepoint="",
        origin=Origin.STOP,
        by=root.requester,
        reason=reason,
        at=clock.now().isoformat(timespec="milliseconds"),
        # Another run must not end by it.
        generation=generation,
    )
    RequestClient(root, RequestTimeouts(answer=end_timeout)).submit(request)
    return generation


class _Progress:
    """Reports the checkpoints of a launch from the log and the history of the job."""

    def __init__(self, run: RunInCluster, clock: Clock) -> None:
        self._run = run
        self._clock = clock
        self._generation = 0
        self._checkpoint = 0

    def show(self) -> None:
        """Reports what is new; an error of the storage is logged, since the run itself does not depend on this."""
        try:
            self._show()
        except StateflowError as e:
            log.warning("the progress of the run cannot be read: %s", e)

    def _show(self) -> None:
        storage = self._run.storage
        generation = generation_of(storage, self._run.launch)
        if not generation or storage.size(FORMAT) is None:
            return
        root = JobRoot.open(storage, self._clock)
        head = root.log.read_head()
        if head is None or head.entry.generation != generation:
            return
        if generation != self._generation:
            self._generation, self._checkpoint = generation, 0
            self._run.report(f"run {head.entry.runs} has claimed the job (generation {generation})")
        after = max(self._checkpoint, generation)
        if head.checkpoint_id <= after:
            return
        manifest = root.checkpoints.manifest_at(head)
        pending = manifest.pending_records(head.checkpoint_id) if manifest else []
        records = [record for record in read_records(storage, 20, pending) if record.checkpoint_id > after]
        self._checkpoint = head.checkpoint_id
        rows = sum(record.rows_in for record in records if record.status == "completed")
        self._run.report(f"checkpoint {head.checkpoint_id}: {rows:,} rows in since the last report")
