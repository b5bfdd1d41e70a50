"""Actors that work concurrently with the runs: collectors, commands, and people who clean up too much."""

from __future__ import annotations

from stateflow.checkpoint.gc.collector import Collector
from stateflow.checkpoint.log.documents import EntryRef
from stateflow.checkpoint.log.job_root import JobRoot
from stateflow.checkpoint.log.manifest_files import check_hashes, files_of
from stateflow.errors import ConfigError, DataError, StorageError
from tests.model.fixture_world import Site
from tests.model.rules import Violation


class Cleaner:
    """Collects garbage a few times; one `Collector` object, which remembers file lists in between."""

    def __init__(self, site: Site, times: int) -> None:
        self.site = site
        self.times = times

    def __call__(self) -> None:
        site = self.site
        try:
            collector = Collector(site.open("collector"))
        except (ConfigError, StorageError):
            return
        for _ in range(self.times):
            self._collect(collector)
            site.world.sleep(site.rng.randint(site.plan.idle // 8, site.plan.idle))

    def _collect(self, collector: Collector) -> None:
        site = self.site
        if not site.checker.head.seq:
            return
        try:
            collector.collect()
            site.count("collections")
        except (ConfigError, StorageError):
            site.count("collections that failed")
        except DataError as e:
            raise Violation("I3", f"collector: {e}") from e


class Admin:
    """Somebody outside: reads checkpoints under a pin, and shortens the retention."""

    def __init__(self, site: Site, name: str, times: int) -> None:
        self.site = site
        self.name = name
        self.times = times

    def __call__(self) -> None:
        for _ in range(self.times):
            try:
                self._command(self.site.open(self.name))
            except (ConfigError, StorageError):
                self.site.count("commands that failed")
            except DataError:
                self.site.count("commands refused")
            self.site.world.sleep(self.site.rng.randint(self.site.plan.idle // 8, self.site.plan.idle))

    def _command(self, root: JobRoot) -> None:
        if self.site.chance(self.site.plan.shorten):
            root.admin.retain(self.site.rng.randint(1, 2))
            self.site.count("retentions shortened")
        elif choice := root.checkpoints.kept(root.head()):
            self._read_under_pin(root, self.site.rng.choice(choice))

    def _read_under_pin(self, root: JobRoot, ref: EntryRef) -> None:
        pin = root.admin.pin(ref, self.name, "reads")
        self.site.checker.pinned(pin.id)
        self.site.count("pins")
        self._read(root, ref)
        if self.site.chance(0.9):
            self.site.checker.pins.discard(pin.id)
            root.admin.unpin(pin.id)
            self.site.count("unpins")

    def _read(self, root: JobRoot, ref: EntryRef) -> None:
        self.site.world.sleep(self.site.rng.randint(0, 60))
        try:
            check_hashes(self.site.storage, files_of(root.checkpoints.manifest_of(ref)))
        except DataError as e:
            raise Violation("I3", f"{self.name} reads pinned checkpoint {ref.id}: {e}") from e


class Appender:
    """Another application that appends to the job's tables at any step."""

    def __init__(self, site: Site) -> None:
        self.site = site

    def __call__(self) -> None:
        site = self.site
        while not site.world.is_calm:
            site.world.sleep(site.rng.randint(5, 40))
            limbo = [sink for sink in site.sinks if sink.uid in site.checker.limbo]
            site.rng.choice(limbo or site.sinks).append()


class Vacuum:
    """Removes a file that no table has while nobody works who publishes, as VACUUM does when a job stood still."""

    def __init__(self, site: Site) -> None:
        self.site = site

    def __call__(self) -> None:
        site = self.site
        while True:
            site.world.sleep(site.rng.randint(1, 10))
            sink = site.rng.choice(site.sinks)
            hidden = sorted(sink.files.keys() - sink.named)
            if hidden and not any(site.world.awake(name) for name in ("run", "saver", "restorer")):
                sink.vacuum(site.rng.choice(hidden))
                site.count("output files vacuumed")
