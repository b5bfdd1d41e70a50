"""Job roots that the pages follow: gone, hanging, replaced, trimmed, and more of them than memory holds."""

from __future__ import annotations

import asyncio
import gc
import shutil
import threading
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from random import Random

import pytest
from msgspec.structs import replace as replace_fields

from stateflow.checkpoint.history import (
    flush_pending_records,
    read_history,
    read_pending_records,
    trim_history,
    write_action,
    write_records,
)
from stateflow.checkpoint.log.checkpoint_log import lineage_of
from stateflow.checkpoint.log.documents import (
    ActionRecord,
    Ancestry,
    CheckpointRecord,
    Record,
    RestoreStep,
    RunProgress,
    seq_of,
)
from stateflow.checkpoint.log.job_root import JobRoot, NewJob
from stateflow.checkpoint.progress import write_progress
from stateflow.clock import ManualClock, SystemClock
from stateflow.errors import ConfigError, StorageError
from stateflow.operations.checkpoints import Entries
from stateflow.storage import BlobInfo, MemoryStorage, PosixStorage, Storage
from stateflow.storage.paths import HISTORY
from stateflow.ui import snapshots
from stateflow.ui.checkpoints import PointPage
from stateflow.ui.jobs import JobList, JobState
from stateflow.ui.roots import CatalogJob, Cell, Reading, RootLimits, Roots, Threads
from stateflow.ui.snapshots import History, Point, PointKey, RootReader, Snapshot
from stateflow.ui.timeline import TimelinePage, timeline_page
from tests.checkpoint.records import record
from tests.support.errors import raises
from tests.support.processes import wait_for
from tests.ui.pages_job import FixedCatalog, Pages, PagesJob, opener

AT_ONCE = timedelta(0)
SOON = timedelta(milliseconds=50)


class Switch(MemoryStorage):
    """A storage that can be made to hang, or to fail, and notes what it is asked for."""

    def __init__(self, name: str = "switch") -> None:
        super().__init__(f"memory://{name}")
        self.free = threading.Event()
        self.free.set()
        self.hangs = threading.Event()
        self.error: Exception | None = None
        self.lists: list[tuple[str, str]] = []
        self.gets: list[str] = []

    def _wait(self) -> None:
        if not self.free.is_set():
            self.hangs.set()
        assert self.free.wait(60)
        if self.error is not None:
            raise self.error

    def list(self, prefix: str, start_after: str = "") -> list[BlobInfo]:
        self._wait()
        self.lists.append((prefix, start_after))
        return super().list(prefix, start_after)

    def get(self, key: str, limit: int = 1 << 30) -> bytes:
        self._wait()
        self.gets.append(key)
        return super().get(key, limit)


def new_root(storage: Storage, records: int = 0, name: str = "job") -> JobRoot:
    """A job root with a claim, and with records of checkpoints, ten in each object."""
    root = JobRoot.create_or_open(storage, SystemClock(), NewJob(name, 4, {}), "test")
    root.claim()
    add_records(root, 2, records)
    return root


def add_records(root: JobRoot, first: int, number: int) -> None:
    for at in range(first, first + number, 10):
        ids = range(at, min(at + 10, first + number))
        own = [record(each, ended_at=f"2026-01-01T00:00:00.{each % 1000:03}+00:00") for each in ids]
        write_records(root.storage, own, f"{at:032x}")


def ids(snapshot: Snapshot) -> list[int]:
    return [point.key.seq for point in snapshot.points]


@pytest.fixture
def storage() -> Switch:
    return Switch()


@pytest.fixture
def reader(storage: Switch) -> RootReader:
    return RootReader(lambda: storage, ManualClock())


# -- what a look reads ------------------------------------------------------------------------------------------------


def test_a_second_look_reads_only_what_is_new(storage: Switch, reader: RootReader) -> None:
    root = new_root(storage, 300)
    first = reader.look(whole=True)
    assert ids(first) == list(range(2, 302)) and first.complete
    storage.gets.clear()
    storage.lists.clear()
    assert reader.look(whole=True) is first
    assert storage.gets == [] and len(storage.lists) <= 4
    add_records(root, 302, 10)
    assert ids(reader.look(whole=True)) == list(range(2, 312))
    assert len([key for key in storage.gets if "-checkpoints-" in key]) == 1


def test_a_long_history_is_not_listed_from_its_beginning(
    storage: Switch, reader: RootReader, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(snapshots, "_OVERLAP", 3)
    root = new_root(storage, 200)
    reader.look(whole=True)
    storage.lists.clear()
    add_records(root, 202, 10)
    assert ids(reader.look(whole=True)) == list(range(2, 212))
    listed = [after for prefix, after in storage.lists if prefix == HISTORY]
    assert len(listed) == 1 and listed[0] > f"{HISTORY}{100:020d}"


def test_a_record_with_an_older_number_is_found(
    storage: Switch, reader: RootReader, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(snapshots, "_OVERLAP", 3)
    clock = ManualClock()
    reader = RootReader(lambda: storage, clock)
    root = new_root(storage, 200)
    reader.look(whole=True)
    # The failure of the newest run has the number of its claim, before all of its checkpoints.
    failure = ActionRecord(seq=1, kind="failure", ended_at="2026-01-02T00:00:00+00:00", by="process:a", reason="no")
    write_action(storage, failure, "run")
    assert reader.look(whole=True).actions[-1].record.kind == "failure"
    position = reader.look(whole=True).position
    assert position is not None and position.description.failure is not None
    # A savepoint of an old checkpoint appears with the next whole list.
    saved = ActionRecord(seq=20, kind="savepoint", ended_at="2026-01-03T00:00:00+00:00", by="airflow-user:uma")
    write_action(storage, saved, "late")
    clock.sleep(timedelta(minutes=2))
    assert reader.look(whole=True).actions[-1].record.kind == "savepoint"
    assert root.storage is storage


def test_the_progress_of_a_run_is_followed_within_a_batch(storage: Switch, reader: RootReader) -> None:
    new_root(storage, 20)
    seen: list[int] = []
    for number, rows in ((0, 0), (1, 100), (2, 250), (2, 250)):
        if number and rows != sum(seen[-1:]):
            report = RunProgress(
                reported_at="2026-01-01T00:00:00+00:00", ordinal=9, batch_started_at="2026-01-01T00:00:00+00:00",
                batches=number, rows_in=rows, driver="host:1",
            )  # fmt: skip
            write_progress(storage, 1, number, report)
        snapshot = reader.look(whole=True)
        assert snapshot.position is not None
        progress = snapshot.position.description.progress
        seen.append(progress.rows_in if progress else 0)
    assert seen == [0, 100, 250, 250]
    assert reader.look(whole=True) is snapshot
    write_progress(storage, 1, 3, report)
    assert reader.look(whole=True).version == snapshot.version


class Compared(int):
    """A number that counts how often it is compared with others by size."""

    number = 0

    def _count(self) -> int:
        Compared.number += 1
        return int(self)

    def __lt__(self, other: int) -> bool:
        return self._count() < int(other)

    def __le__(self, other: int) -> bool:
        return self._count() <= int(other)

    def __gt__(self, other: int) -> bool:
        return self._count() > int(other)

    def __ge__(self, other: int) -> bool:
        return self._count() >= int(other)


def test_the_branches_of_many_restores_are_found_without_comparing_each_with_each(storage: Switch) -> None:
    # Restores of points of any branch, each after two checkpoints; one in ten at once after another.
    random, steps, records = Random(1), list[RestoreStep](), list[Record]()
    for at in range(2, 1502):
        if at % 3 and at % 10:
            records.append(record(Compared(at)))
        else:
            base = random.randrange(1, at)
            steps.append(RestoreStep(seq=at, base=base))
            facts: dict[str, object] = {"restored_checkpoint_id": base}
            records.append(ActionRecord(seq=at, kind="restore", ended_at="", by="", facts=facts))
    root = new_root(storage)
    known = RootReader(opener(storage), SystemClock()).look(whole=True)
    assert known.position is not None
    before = known.position.head
    head = replace(before, entry=replace_fields(before.entry, seq=1600, ancestry=Ancestry(restores=steps)))
    position = replace(known.position, head=head, entries=Entries(root, head))
    points = [Point(PointKey(seq_of(each), 1, at, ""), each, "") for at, each in enumerate(records)]
    snapshot = replace(known, position=position, history=History(points=points))
    Compared.number = 0
    branches = timeline_page(Reading(snapshot, "", None), 1).branches
    assert Compared.number < 20 * len(records)
    undone = {seq_of(each) for each in records if not any(seq_of(each) in part for part in lineage_of(head))}
    starts = [0, *(step.seq for step in steps)]
    wanted = []
    for start, end in zip(starts, [*starts[1:], 1601], strict=True):
        newest = max((seq_of(each) for each in records if start <= seq_of(each) < end), default=None)
        wanted.append(end == 1601 or (newest is not None and newest not in undone))
    assert [branch.live for branch in branches] == wanted and 1 < sum(wanted) < len(wanted) - 1
    assert [branch.seq for branch in branches] == starts
    assert [branch.restored_checkpoint_id for branch in branches] == [0, *(step.base for step in steps)]
    assert {seq_of(point.record) for point in points if snapshot.is_undone(point)} == undone


def test_trimmed_records_disappear(tmp_path: Path) -> None:
    for storage, name in ((Switch(), "memory"), (PosixStorage(tmp_path), "disk")):
        clock = ManualClock()
        reader = RootReader(opener(storage), clock)
        new_root(storage, 300)
        assert len(ids(reader.look(whole=True))) == 300, name
        trim_history(storage, 50)
        clock.sleep(timedelta(minutes=2))
        assert ids(reader.look(whole=True)) == list(range(252, 302)), name


def test_the_newest_records_come_from_the_manifest_once(tmp_path: Path) -> None:
    job = PagesJob(tmp_path)
    reader = RootReader(lambda: job.storage, SystemClock())
    for _ in range(3):
        job.grow(8)
        for _ in range(2):
            root = job.root
            wanted = read_history(root.storage, read_pending_records(root, root.head()))
            snapshot = reader.look(whole=True)
            assert ids(snapshot) == [r.checkpoint_id for r in wanted if isinstance(r, CheckpointRecord)]
            # As a start does, which stores the pending records.
            flush_pending_records(root, root.head())


def test_a_list_of_jobs_reads_only_the_newest_records_and_savepoints(storage: Switch, reader: RootReader) -> None:
    root = new_root(storage)
    saved = ActionRecord(
        seq=3, kind="savepoint", ended_at="2026-01-01T00:00:00+00:00", by="airflow-user:uma",
        facts={"savepoint": "old", "savepoint_id": "1"},
    )  # fmt: skip
    write_action(storage, saved, "1")
    add_records(root, 4, 2000)
    brief = reader.look(whole=False)
    assert not brief.complete and len(brief.objects) == 65 and ids(brief)[-1] == 2003
    assert [action.record.text("savepoint") for action in brief.actions] == ["old"]
    whole = reader.look(whole=True)
    assert whole.complete and len(ids(whole)) == 2000 and whole.version != brief.version


def test_a_long_history_is_read_in_parts_from_its_end(
    storage: Switch, reader: RootReader, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(snapshots, "_AT_ONCE", 10)
    new_root(storage, 250)
    first, second, third = (reader.look(whole=True) for _ in range(3))
    assert [(len(ids(each)), ids(each)[-1], each.complete) for each in (first, second, third)] == [
        (100, 251, False),
        (200, 251, False),
        (250, 251, True),
    ]
    page = Pages(FixedCatalog(job=storage)).get("jobs/job/timeline", TimelinePage)
    # A page waits for all parts.
    assert len(page["checkpoints"]) == 250 and page["history_complete"]


def test_another_reader_has_the_same_version_whatever_it_read_first(storage: Switch) -> None:
    root = new_root(storage, 900)
    one, other = RootReader(lambda: storage, SystemClock()), RootReader(lambda: storage, SystemClock())
    one.look(whole=True)
    add_records(root, 902, 30)
    other.look(whole=False)
    assert one.look(whole=True).version == other.look(whole=True).version


def test_only_so_many_records_are_read(storage: Switch, reader: RootReader, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(snapshots, "LARGEST_HISTORY", 100)
    new_root(storage, 300)
    snapshot = reader.look(whole=True)
    assert ids(snapshot) == list(range(202, 302)) and snapshot.truncated and snapshot.complete


def test_damaged_objects_of_the_history_are_left_out(storage: Switch, reader: RootReader) -> None:
    new_root(storage, 20)
    for at, data in enumerate((b"", b"{", b"[" * 100_000, b"\xff", b"[1]")):
        storage.put_new(f"{HISTORY}{9:020d}-checkpoints-1-0000000{at}.json", data)
        storage.put_new(f"{HISTORY}{9:020d}-savepoint-{at}.json", data)
    assert ids(reader.look(whole=True)) == list(range(2, 22))


# -- another job ------------------------------------------------------------------------------------------------------


def test_a_root_that_another_job_replaces_shows_that_job(tmp_path: Path) -> None:
    first, second = (PagesJob(tmp_path / name) for name in ("first", "second"))
    first.grow(12)
    pages = Pages.of(first, fresh=AT_ONCE)
    before = pages.get("jobs/job", JobState)
    second.grow(8)
    shutil.rmtree(first.folder / "root")
    gone = pages.get("jobs/job", JobState)
    assert gone["problem"]["code"] == "config" and gone["last_read_at"]
    assert gone["newest"] == before["newest"] and gone["job_uuid"] == before["job_uuid"]
    shutil.copytree(second.folder / "root", first.folder / "root")
    after = pages.get("jobs/job", JobState)
    assert after["job_uuid"] == second.root.job.job_uuid != before["job_uuid"]
    points = [point["checkpoint_id"] for point in pages.get("jobs/job/points", PointPage)["points"]]
    assert points == sorted(second.checkpoints, reverse=True) and after["problem"] is None


def test_a_job_that_has_not_run_yet_is_shown(storage: Switch) -> None:
    JobRoot.create_or_open(storage, SystemClock(), NewJob("new", 4, {}), "test")
    pages = Pages(FixedCatalog(job=storage))
    (row,) = pages.get("jobs", JobList)["jobs"]
    assert (row["job"], row["health"]["word"], row["checkpoint_id"]) == ("new", "idle", None)
    assert pages.get("jobs/job", JobState)["description"] is None
    assert pages.get("jobs/job/points", PointPage)["points"] == []
    assert pages.http.get("/api/v1/jobs/job/checkpoints/1").status_code == 503


# -- gone and hanging -------------------------------------------------------------------------------------------------


def test_a_root_that_is_gone_is_shown_as_such_beside_the_others(tmp_path: Path) -> None:
    job = PagesJob(tmp_path)
    job.grow()
    pages = Pages(FixedCatalog(gone=MemoryStorage("memory://nothing"), job=job.storage))
    gone, row = pages.get("jobs", JobList)["jobs"]
    assert (gone["problem"]["code"], gone["job"], gone["health"]) == ("config", None, None)
    assert (row["problem"], row["job"]) == (None, "job")
    answer = pages.http.get("/api/v1/jobs/gone/savepoints")
    assert answer.status_code == 422 and answer.json()["error"]["hint"]


@pytest.fixture
def hanging(storage: Switch) -> Iterator[Switch]:
    yield storage
    storage.free.set()


def test_a_root_that_hangs_delays_no_other_and_shows_what_was_known(hanging: Switch, tmp_path: Path) -> None:
    new_root(hanging, 30, "stuck")
    job = PagesJob(tmp_path)
    job.grow()
    catalog = FixedCatalog(job=job.storage, stuck=hanging)
    clock = ManualClock()
    pages = Pages(catalog, clock=clock, fresh=AT_ONCE, patience=SOON, threads=1)
    before = pages.get("jobs/stuck", JobState)
    hanging.free.clear()
    for _ in range(3):
        ok, stuck = pages.get("jobs", JobList)["jobs"]
        assert (ok["job"], ok["problem"]) == ("job", None)
        assert hanging.hangs.wait(60)
        # Now the look at the other one is late, and another job root gets its thread.
        clock.sleep(pages.roots.limits.deadline)
    assert (stuck["problem"]["code"], stuck["problem"]["retryable"], stuck["job"]) == ("storage", True, "stuck")
    assert stuck["last_read_at"] is not None
    state = pages.get("jobs/stuck", JobState)
    assert state["newest"] == before["newest"] and state["problem"]
    tag = pages.http.get("/api/v1/jobs/stuck").headers["etag"]
    assert pages.http.get("/api/v1/jobs/stuck", headers={"if-none-match": tag}).status_code == 304
    hanging.free.set()
    wait_for(lambda: pages.get("jobs/stuck", JobState)["problem"] is None, lambda: "it is still late")
    assert pages.get("jobs/stuck", JobState)["last_read_at"] is None


def test_a_root_that_always_hung_has_a_row(hanging: Switch) -> None:
    new_root(hanging)
    hanging.free.clear()
    pages = Pages(FixedCatalog(stuck=hanging), deadline=SOON)
    for _ in range(3):
        (row,) = pages.get("jobs", JobList)["jobs"]
    assert (row["problem"]["code"], row["job"], row["history_complete"]) == ("storage", None, False)
    assert pages.http.get("/api/v1/jobs/stuck/checkpoints/1").status_code == 503


def test_a_hanging_root_gets_one_thread_and_only_so_many_hang(hanging: Switch) -> None:
    hanging.free.clear()
    others = {f"stuck{at}": hanging for at in range(6)}
    pages = Pages(FixedCatalog(**others), deadline=AT_ONCE, patience=AT_ONCE, fresh=AT_ONCE, threads=2, hanging=3)
    for _ in range(5):
        rows = pages.get("jobs", JobList)["jobs"]
    working = [each for each in threading.enumerate() if each.name == "stateflow-ui"]
    assert len(working) == 3 and len(rows) == 6


def test_readers_of_a_call_that_hangs_leave_nothing_behind() -> None:
    release = threading.Event()
    limits = RootLimits(deadline=timedelta(0))
    cell = Cell(Threads(limits, SystemClock()), release.wait, SystemClock(), limits=limits, fresh=timedelta(0))

    def futures() -> int:
        gc.collect()
        # By the class: an object of a module that is not loaded yet would load it, when it is asked for its class.
        return sum(issubclass(type(each), asyncio.Future | Future) for each in gc.get_objects())

    async def read() -> tuple[int, Reading[bool]]:
        await cell.read()
        before = futures()
        for _ in range(100):
            await cell.read()
        more = futures() - before
        release.set()
        while not (found := await cell.read(timedelta(seconds=5))).value:
            pass
        return more, found

    more, found = asyncio.run(read())
    assert more <= 2 and found.value is True


def test_a_storage_that_fails_and_recovers(storage: Switch) -> None:
    new_root(storage, 20)
    pages = Pages(FixedCatalog(job=storage), fresh=AT_ONCE)
    pages.get("jobs/job", JobState)
    storage.error = StorageError("no route to host", hint="check the network")
    failed = pages.get("jobs/job", JobState)
    assert failed["problem"]["message"] == "no route to host" and failed["runs"]
    storage.error = ZeroDivisionError("a mistake")
    assert pages.get("jobs/job", JobState)["problem"]["code"] == "internal"
    storage.error = None
    assert pages.get("jobs/job", JobState)["problem"] is None


# -- memory and threads -----------------------------------------------------------------------------------------------


def test_the_records_of_all_roots_are_bounded_in_memory() -> None:
    storages = {f"job{at}": Switch(f"job{at}") for at in range(4)}
    for storage in storages.values():
        new_root(storage, 1500)
    one = RootReader(lambda: storages["job0"], SystemClock()).look(whole=True).memory
    limit = int(2.5 * one)
    roots = Roots(RootLimits(memory=limit))
    jobs = FixedCatalog(**storages).jobs()

    async def look(job: CatalogJob) -> Snapshot:
        found = (await roots.read(job, whole=True)).value
        assert found is not None
        return found

    for job in jobs.values():
        snapshot = asyncio.run(look(job))
        assert snapshot.complete and len(ids(snapshot)) == 1500
    kept = [asyncio.run(roots.read(job, whole=False)).value for job in jobs.values()]
    assert [each.complete for each in kept if each] == [False, False, False, True]
    assert sum(each.memory for each in kept if each) < limit
    # What was forgotten is read again.
    assert len(ids(asyncio.run(look(jobs["job0"])))) == 1500


def test_many_threads_see_whole_snapshots(storage: Switch) -> None:
    root = new_root(storage, 100)
    reader = RootReader(lambda: storage, SystemClock())
    seen: list[int] = []

    def look(_: int) -> None:
        found = ids(reader.look(whole=True))
        assert found == list(range(2, found[-1] + 1))
        seen.append(found[-1])

    with ThreadPoolExecutor(8) as pool:
        looks = [pool.submit(look, at) for at in range(40)]
        for at in range(102, 302, 10):
            add_records(root, at, 10)
        for each in looks:
            each.result(60)
    look(0)
    assert seen[-1] == 301


def test_the_log_of_a_root_is_damaged(storage: Switch, reader: RootReader) -> None:
    new_root(storage, 10)
    before = reader.look(whole=True)
    storage.put_new("log/00000000000000000002", b"x")
    with pytest.raises(Exception) as caught:
        reader.look(whole=True)
    assert getattr(caught.value, "code", "") == "corrupt-file" and reader.snapshot is before
    storage.delete(["FORMAT"])
    with raises(ConfigError):
        reader.look(whole=True)


def test_a_reader_of_no_job_raises(reader: RootReader) -> None:
    with raises(ConfigError):
        reader.look(whole=False)
    assert reader.snapshot is None and reader.shrink() == 0
