"""Actors that work concurrently with the runs: collectors, admin processes, other applications, and VACUUM."""

from __future__ import annotations

from datetime import datetime, timedelta

from stateflow.checkpoint.garbage_collector import Collector
from stateflow.checkpoint.log.documents import EntryRef
from stateflow.checkpoint.log.job_root import JobRoot
from stateflow.checkpoint.log.manifest_files import check_hashes, files_of
from stateflow.errors import ConfigError, CorruptFile, DataError, StorageError
from tests.model.invariants.violation import Violation
from tests.model.simulation.job import SimJob
from tests.model.simulation.scheduler import SimClock


def collect(job: SimJob) -> None:
    """Collects garbage a few times with one `Collector`, which remembers file lists in between."""
    try:
        collector = Collector(job.open("collector"))
    except (ConfigError, StorageError):
        return
    for _ in range(10):
        try:
            if job.checker.head.seq:
                collector.collect()
                job.count("collections")
        except (ConfigError, StorageError):
            job.count("collections that failed")
        except DataError as e:
            raise Violation("I3", f"collector: {e}") from e
        wait(job)


def wait(job: SimJob) -> None:
    job.scheduler.sleep(job.rng.randint(job.plan.idle // 8, job.plan.idle))


def administrate(job: SimJob, name: str) -> None:
    for _ in range(6):
        try:
            root = job.open(name)
            if job.chance(job.plan.shorten):
                root.admin.retain(job.rng.randint(1, 2))
                job.count("retentions shortened")
            elif choice := root.checkpoints.list_kept(root.head()):
                _read_under_pin(job, root, job.rng.choice(choice))
        except (ConfigError, StorageError):
            job.count("commands that failed")
        except DataError:
            job.count("commands refused")
        wait(job)


def _read_under_pin(job: SimJob, root: JobRoot, ref: EntryRef) -> None:
    pin = root.admin.pin(ref, root.writer, "reads")
    job.checker.pinned(pin.id)
    job.count("pins")
    job.scheduler.sleep(job.rng.randint(0, 60))
    try:
        check_hashes(job.storage, files_of(root.checkpoints.manifest_of(ref)))
    except DataError as e:
        raise Violation("I3", f"{root.writer} reads pinned checkpoint {ref.id}: {e}") from e
    if job.chance(0.9):
        job.checker.pins.discard(pin.id)
        root.admin.unpin(pin.id)
        job.count("unpins")


class SkewedClock(SimClock):
    """The clock of a host that is some seconds ahead of the others, or after them."""

    def __init__(self, job: SimJob, seconds: int) -> None:
        super().__init__(job.scheduler)
        self._job, self._skew = job, timedelta(seconds=seconds)

    def now(self) -> datetime:
        return super().now() + self._skew

    def new_id(self) -> str:
        return self._job.clock.new_id()


def read_leased(job: SimJob, name: str) -> None:
    """Reads checkpoints under pins with an end, by a clock that may differ from those of the others."""
    for _ in range(6):
        clock = SkewedClock(job, job.rng.choice((0, 0, 0, 20, -20, -200)))
        try:
            root = job.watch(JobRoot.open(job.storage, clock, name))
            if choice := root.checkpoints.list_kept(root.head()):
                _read_under_lease(job, root, job.rng.choice(choice))
        except (ConfigError, StorageError):
            job.count("commands that failed")
        except DataError:
            job.count("commands refused")
        wait(job)


def _read_under_lease(job: SimJob, root: JobRoot, ref: EntryRef) -> None:
    lease = timedelta(seconds=job.rng.randint(40, 300))
    pin = root.admin.pin(ref, root.writer, "reads", lease=lease)
    job.count("leased pins")
    for _ in range(job.rng.randint(1, 4)):
        job.scheduler.sleep(job.rng.randint(0, 50))
        try:
            check_hashes(job.storage, files_of(root.checkpoints.manifest_of(ref)))
        except DataError as e:
            # While the log has the pin, nothing may be missing, whatever the clocks say; and never is anything wrong.
            if isinstance(e, CorruptFile) or pin.id in job.checker.head.pins:
                raise Violation("I3", f"{root.writer} reads leased checkpoint {ref.id}: {e}") from e
            job.count("reads that missed a file")
            return
        renewed = root.admin.renew(pin.id, lease)
        job.count("leases renewed" if renewed else "leases lost")
    if job.chance(0.6):
        root.admin.unpin(pin.id)
    else:
        job.count("readers that left a pin")


def append(job: SimJob) -> None:
    """Another application appends to the job's tables at any step."""
    while not job.scheduler.faults_stopped:
        job.scheduler.sleep(job.rng.randint(5, 40))
        rewinding = [sink for sink in job.sinks if sink.checker.intent]
        job.rng.choice(rewinding or job.sinks).append()


def vacuum(job: SimJob) -> None:
    """Deletes a file that no table has while no process publishes, as VACUUM does after a job was stopped for long."""
    while True:
        job.scheduler.sleep(job.rng.randint(1, 10))
        sink = job.rng.choice(job.sinks)
        hidden = sorted(sink.files.keys() - sink.named)
        if hidden and not any(job.scheduler.awake(name) for name in ("run", "savepoint", "restore")):
            del sink.files[job.rng.choice(hidden)]
            job.count("output files vacuumed")
