"""Job roots that the pages follow: gone, hanging, replaced, trimmed, and more of them than memory holds."""

from __future__ import annotations

import asyncio
import gc
import shutil
import threading
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from datetime import timedelta
from functools import partial
from itertools import pairwise
from pathlib import Path
from random import Random

import pytest
from msgspec.structs import replace as replace_fields

from stateflow.checkpoint.history import (
    RUN_START,
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
from stateflow.clock import Clock, ManualClock, SystemClock
from stateflow.errors import StorageError, UnknownJob
from stateflow.operations.checkpoints import Entries
from stateflow.storage import BlobInfo, MemoryStorage, PosixStorage, Storage
from stateflow.storage.paths import HISTORY
from stateflow.ui import snapshots
from stateflow.ui.checkpoints import PointPage
from stateflow.ui.jobs import JobList, JobState
from stateflow.ui.journal import JournalPage
from stateflow.ui.roots import Calls, CatalogJob, Cell, Reading, RootLimits, Roots, Threads
from stateflow.ui.snapshots import Extent, History, Point, PointKey, RootReader, Snapshot
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
    first = reader.look(Extent.WHOLE)
    assert ids(first) == list(range(2, 302)) and first.complete
    storage.gets.clear()
    storage.lists.clear()
    assert reader.look(Extent.WHOLE) is first
    assert storage.gets == [] and len(storage.lists) <= 4
    add_records(root, 302, 10)
    assert ids(reader.look(Extent.WHOLE)) == list(range(2, 312))
    assert len([key for key in storage.gets if "-checkpoints-" in key]) == 1


def test_a_long_history_is_not_listed_from_its_beginning(
    storage: Switch, reader: RootReader, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(snapshots, "_OVERLAP", 3)
    root = new_root(storage, 200)
    reader.look(Extent.WHOLE)
    storage.lists.clear()
    add_records(root, 202, 10)
    assert ids(reader.look(Extent.WHOLE)) == list(range(2, 212))
    listed = [after for prefix, after in storage.lists if prefix == HISTORY]
    assert len(listed) == 1 and listed[0] > f"{HISTORY}{100:020d}"


def test_a_record_with_an_older_number_is_found(
    storage: Switch, reader: RootReader, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(snapshots, "_OVERLAP", 3)
    clock = ManualClock()
    reader = RootReader(lambda: storage, clock)
    root = new_root(storage, 200)
    reader.look(Extent.WHOLE)
    # The failure of the newest run has the number of its claim, before all of its checkpoints.
    failure = ActionRecord(seq=1, kind="failure", ended_at="2026-01-02T00:00:00+00:00", by="process:a", reason="no")
    write_action(storage, failure, "run")
    assert reader.look(Extent.WHOLE).actions[-1].record.kind == "failure"
    position = reader.look(Extent.WHOLE).position
    assert position is not None and position.description.failure is not None
    # A savepoint of an old checkpoint appears with the next whole list.
    saved = ActionRecord(seq=20, kind="savepoint", ended_at="2026-01-03T00:00:00+00:00", by="airflow-user:uma")
    write_action(storage, saved, "late")
    clock.sleep(timedelta(minutes=2))
    assert reader.look(Extent.WHOLE).actions[-1].record.kind == "savepoint"
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
        snapshot = reader.look(Extent.WHOLE)
        assert snapshot.position is not None
        progress = snapshot.position.description.progress
        seen.append(progress.rows_in if progress else 0)
    assert seen == [0, 100, 250, 250]
    assert reader.look(Extent.WHOLE) is snapshot
    write_progress(storage, 1, 3, report)
    assert reader.look(Extent.WHOLE).version == snapshot.version


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


def test_what_many_restores_have_undone_is_found_without_comparing_each_with_each(storage: Switch) -> None:
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
    known = RootReader(opener(storage), SystemClock()).look(Extent.WHOLE)
    assert known.position is not None
    before = known.position.head
    head = replace(before, entry=replace_fields(before.entry, seq=1600, ancestry=Ancestry(restores=steps)))
    position = replace(known.position, head=head, entries=Entries(root, head))
    points = [Point(PointKey(seq_of(each), 1, at, ""), each, "") for at, each in enumerate(records)]
    snapshot = replace(known, position=position, history=History(points=points))
    Compared.number = 0
    shown = timeline_page(Reading(snapshot, "", None), None, 2000).checkpoints
    assert Compared.number < 30 * len(records)
    undone = {seq_of(each) for each in records if not any(seq_of(each) in part for part in lineage_of(head))}
    assert {point.checkpoint_id for point in shown if point.undone} == undone & {p.checkpoint_id for p in shown}
    assert {seq_of(point.record) for point in points if snapshot.is_undone(point)} == undone and len(undone) > 100


def test_trimmed_records_disappear(tmp_path: Path) -> None:
    for storage, name in ((Switch(), "memory"), (PosixStorage(tmp_path), "disk")):
        clock = ManualClock()
        reader = RootReader(opener(storage), clock)
        new_root(storage, 300)
        assert len(ids(reader.look(Extent.WHOLE))) == 300, name
        trim_history(storage, 50)
        clock.sleep(timedelta(minutes=2))
        assert ids(reader.look(Extent.WHOLE)) == list(range(252, 302)), name


def test_the_newest_records_come_from_the_manifest_once(tmp_path: Path) -> None:
    job = PagesJob(tmp_path)
    reader = RootReader(lambda: job.storage, SystemClock())
    for _ in range(3):
        job.grow(8)
        for _ in range(2):
            root = job.root
            wanted = read_history(root.storage, read_pending_records(root, root.head()))
            snapshot = reader.look(Extent.WHOLE)
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
    brief = reader.look(Extent.NEWEST)
    assert not brief.complete and len(brief.objects) == 65 and ids(brief)[-1] == 2003
    assert [action.record.text("savepoint") for action in brief.actions] == ["old"]
    whole = reader.look(Extent.WHOLE)
    assert whole.complete and len(ids(whole)) == 2000 and whole.version != brief.version


def test_a_long_history_is_read_in_parts_from_its_end(
    storage: Switch, reader: RootReader, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(snapshots, "_AT_ONCE", 10)
    new_root(storage, 250)
    first, second, third = (reader.look(Extent.WHOLE) for _ in range(3))
    assert [(len(ids(each)), ids(each)[-1], each.complete) for each in (first, second, third)] == [
        (100, 251, False),
        (200, 251, False),
        (250, 251, True),
    ]
    page = Pages(FixedCatalog(job=storage)).get("jobs/job/timeline", TimelinePage)
    # A page waits for all parts.
    assert len(page["checkpoints"]) == 250 and page["history_complete"]


class OfLongLooks(Switch):
    """A storage of which each look takes as long as a page waits for it."""

    def __init__(self, clock: Clock) -> None:
        super().__init__()
        self._clock = clock

    def list(self, prefix: str, start_after: str = "") -> list[BlobInfo]:
        self._clock.sleep(RootLimits().deadline)
        return super().list(prefix, start_after)


@pytest.mark.parametrize(
    ("path", "status"),
    [
        ("checkpoints/2", 200),
        ("checkpoints/2999", 404),
        ("graph", 200),
        ("graph?checkpoint_id=2", 200),
        ("graph?checkpoint_id=2999", 404),
        ("runs/1", 200),
        ("runs/2999", 404),
        # The job has no checkpoint to go back to.
        ("restore-plan?target=latest", 422),
    ],
)
def test_an_answer_waits_for_old_records_that_it_follows_from(
    monkeypatch: pytest.MonkeyPatch, path: str, status: int
) -> None:
    monkeypatch.setattr(snapshots, "_AT_ONCE", 10)
    clock = ManualClock()
    storage = OfLongLooks(clock)
    new_root(storage, 1500)
    write_action(storage, acted(1, "process:host:1", "2026-01-01T00:00:00+00:00", RUN_START), "1")
    pages = Pages(FixedCatalog(job=storage), clock=clock)
    answers = [pages.http.get(f"/api/v1/jobs/job/{path}") for _ in range(8)]
    waiting = [answer for answer in answers if answer.status_code == 503]
    assert waiting and {each.json()["error"]["code"] for each in waiting} == {"not-yet-available"}
    assert [answer.status_code for answer in answers] == [503] * len(waiting) + [status] * (8 - len(waiting))


def test_another_reader_has_the_same_version_whatever_it_read_first(storage: Switch) -> None:
    root = new_root(storage, 900)
    one, other = RootReader(lambda: storage, SystemClock()), RootReader(lambda: storage, SystemClock())
    one.look(Extent.WHOLE)
    add_records(root, 902, 30)
    other.look(Extent.NEWEST)
    assert one.look(Extent.WHOLE).version == other.look(Extent.WHOLE).version


def test_only_so_many_records_are_read(storage: Switch, reader: RootReader, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(snapshots, "LARGEST_HISTORY", 100)
    new_root(storage, 300)
    snapshot = reader.look(Extent.WHOLE)
    assert ids(snapshot) == list(range(202, 302)) and snapshot.truncated and snapshot.complete


def test_damaged_objects_of_the_history_are_left_out(storage: Switch, reader: RootReader) -> None:
    new_root(storage, 20)
    for at, data in enumerate((b"", b"{", b"[" * 100_000, b"\xff", b"[1]")):
        storage.put_new(f"{HISTORY}{9:020d}-checkpoints-1-0000000{at}.json", data)
        storage.put_new(f"{HISTORY}{9:020d}-savepoint-{at}.json", data)
    assert ids(reader.look(Extent.WHOLE)) == list(range(2, 22))


def acted(seq: int, by: str, ended_at: str, kind: str = "stop", **facts: object) -> ActionRecord:
    return ActionRecord(seq=seq, kind=kind, ended_at=ended_at, by=by, facts=facts)


def test_a_journal_reads_each_action_once_and_no_checkpoints(storage: Switch) -> None:
    root = new_root(storage, 2000)
    for at in range(300):
        # Of runs, which are not in the journal; one in a hundred of a person.
        by = "airflow-user:uma" if at % 100 == 7 else "process:host:1"
        write_action(storage, acted(2 + at, by, f"2026-01-01T00:{at // 60:02}:{at % 60:02}+00:00"), f"{at:012x}")
    others = [Switch(f"other{at}") for at in range(3)]
    for each in others:
        new_root(each, 1500)
    wanted = [209, 109, 9]
    # Less than the records of three job roots take.
    memory = int(2 * RootReader(opener(storage), SystemClock()).look(Extent.WHOLE).memory)
    storage.gets.clear()
    catalog = FixedCatalog(job=storage, **{f"other{at}": each for at, each in enumerate(others)})
    pages = Pages(catalog, fresh=AT_ONCE, memory=memory)

    def is_record(key: str) -> bool:
        return "-checkpoints-" in key or "-stop-" in key

    def read() -> tuple[list[int], list[str]]:
        storage.gets.clear()
        page = pages.get("journal", JournalPage)
        assert all(job["history_complete"] for job in page["jobs"])
        return [entry["seq"] for entry in page["entries"]], [key for key in storage.gets if is_record(key)]

    found, gets = read()
    # The newest objects, as a list of jobs needs them, and all actions.
    assert (found, len(gets)) == (wanted, len(set(gets))) and len(gets) <= 64 + 300
    for id in ("job", "other0", "other1", "other2"):
        pages.get(f"jobs/{id}/timeline", TimelinePage)
    # Its records were forgotten for the others', the actions of persons were not.
    assert [read() for _ in range(2)] == [(wanted, [])] * 2
    write_action(storage, acted(root.head().entry.seq, "os-user:ada", "2026-01-02T00:00:00+00:00"), "1")
    assert read()[0] == [1, *wanted]


def test_never_a_savepoint_is_said_only_if_no_record_is_missing(storage: Switch) -> None:
    new_root(storage, 300)
    clock = ManualClock()
    pages = Pages(FixedCatalog(job=storage), clock=clock, fresh=AT_ONCE)

    def found(path: str = "jobs") -> tuple[object, bool]:
        clock.sleep(timedelta(minutes=2))
        row = pages.get("jobs", JobList)["jobs"][0] if path == "jobs" else pages.get(path, JobState)
        return row["savepoint"] and row["savepoint"]["name"], row["savepoint_unknown"]

    assert found() == found("jobs/job") == (None, False)
    damaged = f"{HISTORY}{20:020d}-savepoint-0.json"
    storage.put_new(damaged, b"{")
    assert found() == found("jobs/job") == (None, True)
    storage.delete([damaged])
    assert found() == (None, False)
    write_action(storage, acted(40, "os-user:ada", "2026-01-02T00:00:00+00:00", "savepoint", savepoint="x"), "1")
    assert found() == found("jobs/job") == ("x", False)
    trim_history(storage, 50)
    # Whether there was another one before, nobody knows.
    assert found() == found("jobs/job") == (None, True)


# -- another job ------------------------------------------------------------------------------------------------------


def test_a_root_that_another_job_replaces_shows_that_job(tmp_path: Path) -> None:
    first, second = (PagesJob(tmp_path / name) for name in ("first", "second"))
    first.grow(12)
    pages = Pages.of(first, fresh=AT_ONCE)
    before = pages.get("jobs/job", JobState)
    second.grow(8)
    shutil.rmtree(first.folder / "root")
    gone = pages.get("jobs/job", JobState)
    assert gone["problem"]["code"] == "unknown-job" and gone["last_read_at"]
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
    assert (gone["problem"]["code"], gone["job"], gone["health"]) == ("unknown-job", None, None)
    assert "memory://nothing" in gone["problem"]["message"] and gone["problem"]["hint"]
    assert (row["problem"], row["job"]) == (None, "job")
    answer = pages.http.get("/api/v1/jobs/gone/savepoints")
    assert answer.status_code == 404 and answer.json()["error"]["hint"]


def test_a_job_root_that_did_not_exist_is_a_job_as_soon_as_it_does(storage: Switch) -> None:
    pages = Pages(FixedCatalog(later=storage), fresh=AT_ONCE)
    assert pages.get("jobs/later", JobState)["problem"]["code"] == "unknown-job"
    new_root(storage, 10)
    found = pages.get("jobs/later", JobState)
    assert (found["problem"], found["job"]) == (None, "job")


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


class Calling:
    """Calls of job roots that do not return, or return at once."""

    def __init__(self, limits: RootLimits) -> None:
        self.clock = ManualClock()
        self.threads = Threads(limits, self.clock)
        self.free = threading.Event()
        self.begun: list[str] = []
        self.ended: list[str] = []

    def hang(self, root: str) -> None:
        def run() -> bool:
            self.begun.append(root)
            assert self.free.wait(60)
            return False

        before = len(self.begun)
        if self.threads.submit(run, root).began is not None:
            wait_for(lambda: len(self.begun) > before, lambda: f"{root} has not begun")

    def answer(self, root: str) -> bool:
        """Whether a call of a job root that answers is begun."""

        def run() -> bool:
            self.ended.append(root)
            return True

        call = self.threads.submit(run, root)
        if call.began is not None:
            wait_for(lambda: root in self.ended, lambda: f"{root} has not ended")
            # The thread notes the answer after the call.
            wait_for(lambda: call not in self.threads._working, lambda: f"{root} is still working")
        return call.began is not None

    def pass_time(self, seconds: float) -> None:
        self.clock.sleep(timedelta(seconds=seconds))
        self.threads.sweep()
        # A call that answers takes no time of this clock: it must not be found to hang at the next step.
        wait_for(self._only_dead_ones_work, lambda: "a call that answers has not ended")

    def _only_dead_ones_work(self) -> bool:
        with self.threads._lock:
            return all(call.root.startswith("dead") for call in self.threads._working)


@pytest.fixture
def calling() -> Iterator[Calling]:
    calling = Calling(RootLimits())
    yield calling
    calling.free.set()


def test_dead_job_roots_leave_threads_to_the_others(calling: Calling) -> None:
    deadline = calling.threads._limits.deadline.total_seconds()
    assert calling.answer("known")
    for at in range(90):
        for _ in range(4):
            calling.hang(f"dead{at}")
        if at % 8 == 7:
            # All places are taken until these are found to hang.
            assert not calling.answer(f"late{at}")
            calling.pass_time(deadline)
    for _ in range(20):
        calling.pass_time(deadline)
    # Of each, one call, which waits for its answer for ever, and a second one of some.
    dead = Counter(calling.begun)
    assert len(dead) == 90 and set(dead.values()) == {1, 2}
    assert calling.answer("new") and calling.answer("known")
    for _ in range(50):
        calling.pass_time(300)
    most = calling.threads._limits.hanging
    assert calling.threads._hanging <= most * 2 // 3
    # Beyond the bound for job roots that have never answered, one that has goes on.
    for at in range(90, 200):
        calling.hang(f"dead{at}")
        calling.pass_time(deadline)
    assert calling.threads._hanging == most * 2 // 3 and not calling.answer("newer") and calling.answer("known")


def test_a_job_root_that_does_not_answer_is_asked_one_call_at_a_time_after_longer_and_longer_pauses() -> None:
    calling = Calling(RootLimits(longest_pause=timedelta(seconds=30)))
    started, release = list[float](), [threading.Event() for _ in range(8)]

    def run(at: int) -> bool:
        assert release[at].wait(60)
        return at == 7

    calls = [calling.threads.submit(partial(run, at), "dead") for at in range(8)]
    for at, call in enumerate(calls):
        while call.began is None:
            calling.pass_time(1)
        started.append(calling.clock.monotonic())
        assert sum(each.began is not None for each in calls) == at + 1
        while not call.hangs:
            calling.pass_time(1)
        release[at].set()
        wait_for(lambda: calling.threads._hanging == 0, lambda: "the call has not ended")
    pauses = [round(after - before) for before, after in pairwise(started)]
    # Each with the deadline of the call before.
    assert pauses == [5 + 5, 5 + 10, 5 + 20, 5 + 30, 5 + 30, 5 + 30, 5 + 30]
    # It has answered at last.
    more = [calling.threads.submit(lambda: True, "dead") for _ in range(4)]
    assert all(call.began is not None for call in more)


def test_calls_of_forgotten_job_roots_are_not_made() -> None:
    storages = {f"job{at}": Switch(f"job{at}") for at in range(30)}
    for storage in storages.values():
        new_root(storage, 10)
        storage.gets.clear()
    first = storages["job0"]
    first.free.clear()
    roots = Roots(RootLimits(threads=1, roots=5))
    jobs = list(FixedCatalog(**storages).jobs().values())

    async def look() -> list[Reading[Snapshot]]:
        return [await roots.read(job, AT_ONCE, extent=Extent.NEWEST) for job in jobs]

    asyncio.run(look())
    first.free.set()
    wait_for(lambda: all(roots.known(job) for job in jobs[-5:]), lambda: "the newest ones were not read")
    read = [id for id, storage in storages.items() if storage.gets]
    assert read == ["job0", *(job.id for job in jobs[-5:])]


def test_more_readers_than_results_get_their_results() -> None:
    calls = Calls[int](Roots(RootLimits(threads=1, results=2)), AT_ONCE)

    async def read_all() -> list[int | None]:
        found = await asyncio.gather(*(calls.read((f"job{n}",), partial(int, n)) for n in range(8)))
        return [each.value for each in found]

    assert asyncio.run(read_all()) == list(range(8))


def test_a_call_that_waits_for_a_thread_is_not_one_that_does_not_answer() -> None:
    clock, release = ManualClock(), threading.Event()
    limits = RootLimits(threads=1, fresh=AT_ONCE)
    threads = Threads(limits, clock)
    cells = [Cell(threads, release.wait, clock, limits=limits, fresh=AT_ONCE, root=name) for name in ("one", "two")]

    def problems(seconds: float) -> list[str]:
        clock.sleep(timedelta(seconds=seconds))
        found = [asyncio.run(cell.read(AT_ONCE)).problem for cell in cells]
        return [each.code if each else "" for each in found]

    deadline = limits.deadline.total_seconds()
    assert problems(0) == ["", ""]
    assert problems(deadline - 1) == ["", ""]
    clock.sleep(timedelta(seconds=1))
    waits = cells[1].now().problem
    assert waits is not None and (waits.code, waits.retryable) == ("not-yet-available", True)
    # It gets the place of the first one, and then has its whole time.
    assert problems(0) == problems(deadline - 1) == ["storage", ""]
    assert problems(1) == ["storage", "storage"]
    release.set()
    wait_for(lambda: problems(0) == ["", ""], lambda: "a call has not ended")


def test_calls_of_one_root_are_bounded_and_leave_threads_to_others() -> None:
    release, begun = threading.Event(), list[int]()
    roots = Roots(RootLimits(threads=4, threads_of_root=2, waiting=3, deadline=SOON, fresh=AT_ONCE, results=100))
    calls: Calls[int] = Calls(roots, None)

    def hang(number: int) -> int:
        begun.append(number)
        assert release.wait(60)
        return number

    # Before its first answer, it has one call at a time.
    assert asyncio.run(calls.read(("stuck", "first"), lambda: 7)).value == 7

    async def ask(number: int) -> Reading[int]:
        return await calls.read(("stuck", str(number)), lambda: hang(number))

    async def ask_all() -> list[Reading[int]]:
        return await asyncio.gather(*map(ask, range(20)))

    for _ in range(3):
        problems = [each.problem for each in asyncio.run(ask_all())]
        # Two hang, three wait, and the rest is refused.
        codes = Counter(each.code for each in problems if each)
        assert (codes["storage"], codes["not-yet-available"], len(begun)) == (2, 18, 2)
    assert {str(each.facts.get("waiting")) for each in problems if each} == {"None", "3"}
    assert asyncio.run(calls.read(("other", ""), lambda: 7)).value == 7
    release.set()
    wait_for(lambda: {each.value for each in asyncio.run(ask_all())} == set(range(20)), lambda: f"begun: {begun}")


def test_a_process_that_may_not_have_a_further_thread_tries_again(monkeypatch: pytest.MonkeyPatch) -> None:
    limits = RootLimits(fresh=AT_ONCE)
    cell = Cell(Threads(limits, SystemClock()), lambda: 7, SystemClock(), limits=limits, fresh=AT_ONCE)

    def refuse(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", refuse)
        assert asyncio.run(cell.read(AT_ONCE)) == Reading(None, "", None)
    assert asyncio.run(cell.read()).value == 7


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
    one = RootReader(lambda: storages["job0"], SystemClock()).look(Extent.WHOLE).memory
    limit = int(2.5 * one)
    roots = Roots(RootLimits(memory=limit))
    jobs = FixedCatalog(**storages).jobs()

    async def look(job: CatalogJob) -> Snapshot:
        found = (await roots.read(job)).value
        assert found is not None
        return found

    for job in jobs.values():
        snapshot = asyncio.run(look(job))
        assert snapshot.complete and len(ids(snapshot)) == 1500
    kept = [asyncio.run(roots.read(job, extent=Extent.NEWEST)).value for job in jobs.values()]
    assert [each.complete for each in kept if each] == [False, False, False, True]
    assert sum(each.memory for each in kept if each) < limit
    # What was forgotten is read again.
    assert len(ids(asyncio.run(look(jobs["job0"])))) == 1500


def test_what_is_forgotten_is_what_a_list_of_jobs_does_not_have(storage: Switch, reader: RootReader) -> None:
    root = new_root(storage, 10)
    write_action(storage, acted(12, "os-user:ada", "2026-01-02T00:00:00+00:00", "savepoint", savepoint="x"), "1")
    add_records(root, 20, 2000)
    whole = reader.look(Extent.WHOLE)
    storage.free.clear()
    with ThreadPoolExecutor(1) as pool:
        looking = pool.submit(reader.look, Extent.WHOLE)
        assert storage.hangs.wait(30)
        # A look that is being taken would bring it back.
        assert reader.shrink(Extent.NEWEST) is None and reader.snapshot is whole
        storage.free.set()
        looking.result(30)
    freed, brief = reader.shrink(Extent.NEWEST), reader.snapshot
    assert freed and brief is not None and len(brief.objects) < len(whole.objects)
    other = RootReader(lambda: storage, SystemClock()).look(Extent.NEWEST)
    assert brief.objects.keys() == other.objects.keys()
    assert brief.savepoints_known and any("-savepoint-" in key for key in brief.objects)


def test_many_threads_see_whole_snapshots(storage: Switch) -> None:
    root = new_root(storage, 100)
    reader = RootReader(lambda: storage, SystemClock())
    seen: list[int] = []

    def look(_: int) -> None:
        found = ids(reader.look(Extent.WHOLE))
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
    before = reader.look(Extent.WHOLE)
    storage.put_new("log/00000000000000000002", b"x")
    with pytest.raises(Exception) as caught:
        reader.look(Extent.WHOLE)
    assert getattr(caught.value, "code", "") == "corrupt-file" and reader.snapshot is before
    storage.delete(["FORMAT"])
    with raises(UnknownJob):
        reader.look(Extent.WHOLE)


def test_a_reader_of_no_job_raises(reader: RootReader) -> None:
    with raises(UnknownJob):
        reader.look(Extent.NEWEST)
    assert reader.snapshot is None and reader.shrink(Extent.NEWEST) == 0
