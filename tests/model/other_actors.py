"""Actors that work concurrently with the runs: collectors, admin processes, other applications, and VACUUM."""

from __future__ import annotations

from stateflow.checkpoint.gc.collector import Collector
from stateflow.checkpoint.log.documents import EntryRef
from stateflow.checkpoint.log.job_root import JobRoot
from stateflow.checkpoint.log.manifest_files import check_hashes, files_of
from stateflow.errors import ConfigError, DataError, StorageError
from tests.model.fixture_world import Site
from tests.model.rules import Violation


def collect(site: Site) -> None:
    """Collects garbage a few times with one `Collector`, which remembers file lists in between."""
    try:
        collector = Collector(site.open("collector"))
    except (ConfigError, StorageError):
        return
    for _ in range(10):
        try:
            if site.checker.head.seq:
                collector.collect()
                site.count("collections")
        except (ConfigError, StorageError):
            site.count("collections that failed")
        except DataError as e:
            raise Violation("I3", f"collector: {e}") from e
        wait(site)


def wait(site: Site) -> None:
    """Lets others run for some steps."""
    site.world.sleep(site.rng.randint(site.plan.idle // 8, site.plan.idle))


def administrate(site: Site, name: str) -> None:
    """Reads checkpoints under a pin, and shortens the retention."""
    for _ in range(6):
        try:
            root = site.open(name)
            if site.chance(site.plan.shorten):
                root.admin.retain(site.rng.randint(1, 2))
                site.count("retentions shortened")
            elif choice := root.checkpoints.kept(root.head()):
                _read_under_pin(site, root, site.rng.choice(choice))
        except (ConfigError, StorageError):
            site.count("commands that failed")
        except DataError:
            site.count("commands refused")
        wait(site)


def _read_under_pin(site: Site, root: JobRoot, ref: EntryRef) -> None:
    pin = root.admin.pin(ref, root.writer, "reads")
    site.checker.pinned(pin.id)
    site.count("pins")
    site.world.sleep(site.rng.randint(0, 60))
    try:
        check_hashes(site.storage, files_of(root.checkpoints.manifest_of(ref)))
    except DataError as e:
        raise Violation("I3", f"{root.writer} reads pinned checkpoint {ref.id}: {e}") from e
    if site.chance(0.9):
        site.checker.pins.discard(pin.id)
        root.admin.unpin(pin.id)
        site.count("unpins")


def append(site: Site) -> None:
    """Another application appends to the job's tables at any step."""
    while not site.world.is_calm:
        site.world.sleep(site.rng.randint(5, 40))
        rewinding = [sink for sink in site.sinks if sink.checker.intent]
        site.rng.choice(rewinding or site.sinks).append()


def vacuum(site: Site) -> None:
    """Deletes a file that no table has while no process publishes, as VACUUM does when a job stood still."""
    while True:
        site.world.sleep(site.rng.randint(1, 10))
        sink = site.rng.choice(site.sinks)
        hidden = sorted(sink.files.keys() - sink.named)
        if hidden and not any(site.world.awake(name) for name in ("run", "saver", "restorer")):
            del sink.files[site.rng.choice(hidden)]
            site.count("output files vacuumed")
