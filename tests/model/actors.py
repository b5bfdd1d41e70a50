"""The processes of the simulated world: thin glue around the real code, as runs, collectors and commands call it."""

from __future__ import annotations

import hashlib
import random
from dataclasses import dataclass, field

from stateflow.checkpoint.collector import Collector
from stateflow.checkpoint.documents import (
    EntryRef,
    Manifest,
    OperatorState,
    PendingOutput,
    PublishedOutput,
    SourcePosition,
)
from stateflow.checkpoint.entries import Commit, pending_of
from stateflow.checkpoint.files import check_stored, files_of, write_manifest
from stateflow.checkpoint.jobroot import JobRoot, NewJob, kept
from stateflow.checkpoint.log import Appended, Head
from stateflow.checkpoint.publish import Output, publish
from stateflow.errors import ConfigError, DataError, Fenced, MissingFile, SinkDiverged, StorageError
from stateflow.state.handles import Committable, FileHandle, StateFile, SubtaskState
from stateflow.storage.paths import data_folder, probe, spark_location
from tests.model.invariants import Checker, Violation
from tests.model.plan import Plan
from tests.model.sink import SimSink
from tests.model.store import SimStorage
from tests.model.world import SimClock, World

JOB = NewJob(name="job", max_parallelism=4, key_types={})
_NOTHING_PUBLISHED = PublishedOutput(table_id="", version=0, checkpoint_id=0)


@dataclass
class Site:
    """What all actors of one history share."""

    world: World
    storage: SimStorage
    sinks: list[SimSink]
    checker: Checker
    clock: SimClock
    plan: Plan
    rng: random.Random
    name_by_seq: bool = False
    """A mutant: files are named after the sequence number that their COMMIT is expected to get."""

    def chance(self, probability: float) -> bool:
        """A throw of the seeded dice."""
        return self.rng.random() < probability

    def count(self, what: str) -> None:
        """Counts something for the statistics."""
        self.world.stats[what] += 1


class GaveUp(Exception):
    """A run ended for a reason that is not a violation; Airflow would start another."""


@dataclass
class Brought:
    """What one checkpoint, with those given up before it, brings."""

    files: list[FileHandle] = field(default_factory=list)
    output: dict[str, list[Committable]] = field(default_factory=dict)


class Driver:
    """One run of the job: claim, read the base, publish what is pending, then batches."""

    def __init__(self, site: Site, name: str, batches: int) -> None:
        self.site = site
        self.name = name
        self.batches = batches
        self.head: Head
        self.root: JobRoot
        self.base: list[FileHandle] = []
        self.ordinal = 0
        self.brought = Brought()
        self.standing: dict[str, PublishedOutput] = {}
        self.settled: set[tuple[int, str]] = set()

    def __call__(self) -> None:
        try:
            self.start()
            for _ in range(self.batches):
                self.batch()
        except Fenced:
            self.site.count("fenced")
            if hasattr(self, "head"):
                self.site.checker.fenced(self.head.entry.generation)
        except (StorageError, GaveUp):
            self.site.count("runs that gave up")
        except SinkDiverged as e:
            raise Violation("S1", f"{self.name}: {e}") from e
        except DataError as e:
            # A file of the base may be gone only when somebody else owns the job.
            if not hasattr(self, "head") or self.site.checker.is_newest(self.head.entry.generation):
                raise Violation("I3", f"{self.name}: {e}") from e
            self.site.count("fenced")

    def start(self) -> None:
        """Takes the job over and makes ready for the first batch."""
        self.root = self._open()
        self._probe()
        self.head = self._claim()
        self.standing = dict(self.head.entry.published)
        manifest = self.root.manifest(self.head)
        if manifest is not None:
            self.base = files_of(manifest)
            check_stored(self.site.storage, self.site.rng.sample(self.base, min(2, len(self.base))))
        self.site.storage.put_data(f"{spark_location(self.head.entry.generation)}/metadata", b"{}")
        self._publish()

    def batch(self) -> None:
        """One micro-batch, up to its barrier, its commit, and the publishing of its output."""
        site = self.site
        self.ordinal = self.head.entry.seq + 1 if site.name_by_seq else self.ordinal + 1
        folder = data_folder(self.head.entry.generation, self.ordinal, site.clock.new_id())
        self._write(folder)
        if site.chance(site.plan.abort):
            site.count("checkpoints given up")
            return
        if self.base:
            check_stored(site.storage, [site.rng.choice(self.base)])
        files = [f for f in self.base if site.chance(0.6)] + self.brought.files
        outcome = self.root.commit(self.head, self._commit(folder, files), site.plan.retain)
        if not isinstance(outcome, Appended):
            raise Fenced("overtaken")
        site.count("commits")
        site.checker.acknowledged(outcome.own.entry.seq, outcome.own.sha256)
        site.checker.acknowledged(outcome.head.entry.seq, outcome.head.sha256)
        self.head, self.base, self.brought = outcome.head, files, Brought()
        if site.chance(site.plan.publish):
            self._publish()

    # -- start --------------------------------------------------------------------------------------------------------

    def _open(self) -> JobRoot:
        try:
            return JobRoot.create_or_open(self.site.storage, self.site.clock, JOB, self.name)
        except ConfigError as e:
            # FORMAT's put was lost, or is still on its way.
            self.site.count("no FORMAT")
            raise GaveUp from e

    def _probe(self) -> None:
        """What a run leaves of its race probe when it dies in between. The real one needs threads."""
        if self.site.chance(0.1):
            head = self.root.log.read_head()
            key = probe(head.entry.seq + 1 if head else 1, self.site.clock.new_id())
            self.site.storage.put_data(key, b"racer")
            self.site.storage.delete([key])

    def _claim(self) -> Head:
        adopt, since = self._older_checkpoint()
        try:
            head = self.root.claim(adopt=adopt)
        except DataError as e:
            if adopt is None or self.site.checker.adoptable_since(adopt.id, since):
                raise Violation("I3", f"{self.name} adopting {adopt}: {e}") from e
            self.site.count("adoptions refused")
            raise GaveUp from e
        self.site.count("claims" if adopt is None else "adoptions")
        self.site.checker.acknowledged(head.entry.seq, head.sha256)
        return head

    def _older_checkpoint(self) -> tuple[EntryRef | None, int]:
        """A checkpoint to go back to, and the entry that it was found in."""
        if self.site.chance(self.site.plan.adopts):
            head = self.root.log.read_head()
            if head and head.entry.retained:
                return self.site.rng.choice(head.entry.retained), head.entry.seq
        return None, 0

    # -- a batch ------------------------------------------------------------------------------------------------------

    def _write(self, folder: str) -> None:
        """What the tasks of a batch write: new state files, some of an attempt that is not reported, and output."""
        site = self.site
        for i in range(site.rng.randint(1, 2)):
            name = f"{folder}{i}.sst"
            content = name.encode()
            site.storage.put_data(name, content)
            digest = hashlib.sha256(content).hexdigest()
            self.brought.files.append(FileHandle(key=name, size=len(content), sha256=digest))
        if site.chance(0.1):
            lost = data_folder(self.head.entry.generation, self.ordinal, site.clock.new_id())
            site.storage.put_data(f"{lost}0.sst", b"never reported")
        for sink in site.sinks:
            if site.chance(0.8):
                committable = Committable(path=f"{folder}{sink.uid}.parquet", size=1, rows=1)
                sink.write(committable)
                self.brought.output.setdefault(sink.uid, []).append(committable)

    def _commit(self, folder: str, files: list[FileHandle]) -> Commit:
        state = SubtaskState(
            subtask=0, first_group=0, last_group=3, snapshot=folder,
            files=[StateFile(handle=f, local_name="x") for f in files],
        )  # fmt: skip
        sources = [SourcePosition(uid="source", description="", offset=folder)]
        manifest = Manifest(
            job_uuid=self.root.job.job_uuid, generation=self.head.entry.generation, ordinal=self.ordinal,
            operators=[OperatorState(uid="op", parallelism=1, key_types=[], states=[], subtasks=[state])],
            sources=sources,
        )  # fmt: skip
        output = [PendingOutput(checkpoint_id=0, sink=s, committables=c) for s, c in self.brought.output.items()]
        return Commit(self.ordinal, self._manifest(folder, manifest), sources, output, dict(self.standing),
                      frozenset(self.settled))  # fmt: skip

    def _manifest(self, folder: str, manifest: Manifest) -> FileHandle:
        try:
            return write_manifest(self.site.storage, folder, manifest)
        except MissingFile as e:
            # The put's answer was lost and nothing is there: to the run that is a storage failure.
            self.site.count("manifests not written")
            raise GaveUp from e

    def _publish(self) -> None:
        """Publishes what is pending, oldest first; a run whose sink does not answer gives up or carries it on."""
        sinks = {s.uid: s for s in self.site.sinks}
        for output in pending_of(self.head):
            key = (output.checkpoint_id, output.sink)
            if key in self.settled:
                continue
            known = self.standing.get(output.sink, _NOTHING_PUBLISHED)
            work = Output(output.checkpoint_id, output.committables, known)
            try:
                self.standing[output.sink] = publish(sinks[output.sink], work, self.root.log, self.head)
            except StorageError:
                if self.site.chance(0.5):
                    return
                raise
            self.settled.add(key)
            self.site.count("publications")


class Cleaner:
    """Collects garbage a few times; one `Collector` object, which remembers file lists in between."""

    def __init__(self, site: Site, times: int) -> None:
        self.site = site
        self.times = times

    def __call__(self) -> None:
        site = self.site
        try:
            collector = Collector(JobRoot.open(site.storage, site.clock, "collector"))
        except (ConfigError, StorageError):
            return
        for _ in range(self.times):
            before = site.checker.head.seq
            try:
                collector.collect()
                site.count("collections")
            except StorageError:
                site.count("collections that failed")
            except DataError as e:
                # What a collector read may be past; a kept checkpoint may never be damaged.
                if before and site.checker.head.seq == before:
                    raise Violation("I3", f"collector: {e}") from e
                site.count("collections overtaken")
            site.world.sleep(site.rng.randint(5, 40))


class Admin:
    """Somebody outside: reads checkpoints under a pin, and shortens the retention."""

    def __init__(self, site: Site, name: str, times: int) -> None:
        self.site = site
        self.name = name
        self.times = times

    def __call__(self) -> None:
        for _ in range(self.times):
            try:
                root = JobRoot.open(self.site.storage, self.site.clock, self.name)
                if self.site.chance(0.3):
                    root.retain(self.site.rng.randint(1, 2))
                    self.site.count("retentions shortened")
                else:
                    self._read_under_pin(root)
            except (ConfigError, StorageError):
                self.site.count("commands that failed")
            except DataError:
                self.site.count("commands refused")
            self.site.world.sleep(self.site.rng.randint(5, 40))

    def _read_under_pin(self, root: JobRoot) -> None:
        choice = kept(root.head())
        if not choice:
            return
        pin = root.pin(self.site.rng.choice(choice), self.name, "reads")
        self.site.checker.pinned(pin.id)
        self.site.count("pins")
        self._read(root, pin.checkpoint)
        if self.site.chance(0.9):
            self.site.checker.pins.discard(pin.id)
            root.unpin(pin.id)
            self.site.count("unpins")

    def _read(self, root: JobRoot, ref: EntryRef) -> None:
        self.site.world.sleep(self.site.rng.randint(0, 60))
        try:
            handle = root.log.read_checkpoint(ref).manifest
            assert handle is not None
            check_stored(self.site.storage, files_of(root.read_manifest(handle)))
        except DataError as e:
            raise Violation("I3", f"{self.name} reads pinned checkpoint {ref.id}: {e}") from e
