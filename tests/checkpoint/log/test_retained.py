"""The list of retained checkpoints, in an entry and in segments, compared with a plain list."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from stateflow.checkpoint.garbage_collector import Collector
from stateflow.checkpoint.log.checkpoint_log import Head
from stateflow.checkpoint.log.documents import EntryRef, RetainedLink, RetainedSegment
from stateflow.checkpoint.log.entry_lists import RetentionLimits, SegmentSizes, oldest_kept
from stateflow.checkpoint.log.manifest_files import seal
from stateflow.errors import CorruptFile, DataError, MissingFile
from stateflow.state.handles import FileHandle
from stateflow.storage import MemoryStorage, PutResult
from stateflow.storage.paths import DATA, LOG, log_entry
from tests.checkpoint.log.memory_job import MemoryJob
from tests.support.errors import raises
from tests.support.graphs import ref

DAY, HOUR = timedelta(days=1), timedelta(hours=1)
EIGHT_HOURS = [HOUR] * 8


def restorable(job: MemoryJob) -> list[EntryRef]:
    return job.root.checkpoints.restorable(job.head)


def ids_seen_by_others(job: MemoryJob) -> list[int]:
    return [ref.id for ref in job.opened().checkpoints.restorable(job.head)]


class ListedJob(MemoryJob):
    """A job with a plain list of the checkpoints that it retains."""

    def __init__(self, segments: SegmentSizes | None = None, storage: MemoryStorage | None = None) -> None:
        super().__init__(storage, segments)
        self.expected: list[int] = []

    def commit_keeping(self, number: int, times: int = 1) -> None:
        for _ in range(times):
            self.commit(RetentionLimits(number))
            self.expected = [*self.expected, self.head.entry.seq][-number:]

    def retain(self, keep: int) -> None:
        self.head = self.root.admin.retain(keep)
        self.expected = self.expected[-keep:]

    def restart(self, _: int = 0) -> None:
        self.head = self.root.claim()

    def go_back(self, to: int) -> None:
        if self.expected:
            to %= len(self.expected)
            self.head = self.root.adopt(self.head, self.root.adoption(self.head, restorable(self)[to]))
            self.expected = self.expected[: to + 1]


_STEPS = st.lists(
    st.one_of(
        st.tuples(st.just(ListedJob.commit_keeping), st.sampled_from([1, 3, 20, 50])),
        st.tuples(st.just(ListedJob.commit_keeping), st.just(50)),
        st.tuples(st.just(ListedJob.retain), st.integers(1, 30)),
        st.tuples(st.just(ListedJob.go_back), st.integers(0, 40)),
        st.tuples(st.just(ListedJob.restart), st.just(0)),
    ),
    max_size=60,
)


@given(_STEPS, st.integers(0, 4), st.integers(1, 5))
def test_the_stored_list_equals_a_plain_list(
    steps: list[tuple[Callable[..., None], int]], inline: int, size: int
) -> None:
    job = ListedJob(SegmentSizes(inline, size))
    for number in range(25):
        job.commit_keeping(50)
        if number % 10 == 5:
            job.restart()
    for step, argument in steps:
        step(job, argument)
        assert [ref.id for ref in restorable(job)] == ids_seen_by_others(job) == job.expected
    Collector(job.opened()).collect()
    head = job.opened().head()
    kept = [ref.manifest.key for ref in job.opened().checkpoints.restorable(head) if ref.manifest]
    segments = [each.key for each in job.root.checkpoints.retained.segment_handles(head.entry)]
    assert [blob.key for blob in job.storage.list(DATA)] == sorted({*kept, *segments})
    assert {blob.key for blob in job.storage.list(LOG)} <= {log_entry(n) for n in (head.entry.seq, head.checkpoint_id)}
    assert len(head.entry.retained) <= inline + 1


class SegmentStorage(MemoryStorage):
    """Counts the bytes of segments, or refuses to store any."""

    written = 0
    refuses = False

    def put_new(self, key: str, data: bytes) -> PutResult:
        if "/retained-" in key:
            if self.refuses:
                return PutResult.UNKNOWN
            self.written += len(data)
        return super().put_new(key, data)


def test_an_entry_is_as_small_with_three_thousand_checkpoints_as_with_ten() -> None:
    """A COMMIT writes no more on average either: a full segment is never written again."""
    storage = SegmentStorage()
    job = ListedJob(storage=storage)
    entry_sizes, written = [], []
    for _ in range(3_000):
        job.commit_keeping(3_000)
        entry_sizes.append(len(seal(job.head.entry)[0]))
        written.append(storage.written)
        storage.delete([log_entry(job.head.entry.seq - 1)])
    assert max(entry_sizes[2_000:]) <= 1.2 * max(entry_sizes[:16])
    assert written[-1] - written[1_999] <= 1.2 * (written[1_999] - written[999])
    assert ids_seen_by_others(job) == job.expected


def test_a_list_that_cannot_be_stored_stays_in_the_entry() -> None:
    storage = SegmentStorage()
    job = ListedJob(SegmentSizes(2, 2), storage)
    storage.refuses = True
    job.commit_keeping(50, times=5)
    assert (len(job.head.entry.retained), job.head.entry.retained_before) == (4, None)
    storage.refuses = False
    job.commit_keeping(50)
    assert job.head.entry.retained == []
    assert ids_seen_by_others(job) == job.expected


def test_a_reader_whose_list_was_collected_takes_the_newest_head(monkeypatch: pytest.MonkeyPatch) -> None:
    job = ListedJob(SegmentSizes(0, 3))
    job.commit_keeping(2, times=3)
    late, stale = job.opened(), job.head
    job.commit_keeping(2)
    Collector(job.opened()).collect()
    with raises(MissingFile):
        late.checkpoints.restorable(stale)
    reads = iter([stale, job.head])
    monkeypatch.setattr(late.log, "read_head", lambda: next(reads))
    assert late.head() == job.head


@pytest.mark.parametrize(
    ("hours", "oldest"),
    [
        ((1, 2, 3, 4), 3),
        ((1,), None),
        ((), None),
        ((1, 2, 2, 3, 4), 4),
        ((1, 2), 2),  # at most half of them; the last one with the next commit
        ((4, 1, 4), 1),  # a clock that went back removes nothing in between
    ],
)
def test_the_age_of_a_checkpoint_is_the_time_of_its_own_commit(hours: tuple[int, ...], oldest: int | None) -> None:
    times = [f"2026-01-01T0{hour}:00:00+00:00" for hour in hours]
    refs = [replace(ref(n), at=at) for n, at in enumerate(times, 1)]
    now = "2026-01-01T06:00:00+00:00"
    assert oldest_kept(refs, RetentionLimits(9, 3 * HOUR), now, now) == oldest


@pytest.mark.parametrize(
    ("pauses", "kept"),
    [
        ([DAY] * 30, 9),
        # One jump of the clock drops none, because the time of the entry before counts too.
        ([*EIGHT_HOURS, 30 * DAY], 9),
        ([*EIGHT_HOURS, 30 * DAY, -30 * DAY], 10),
        # A clock that stays wrong drops half of them at a time.
        ([*EIGHT_HOURS, 30 * DAY, HOUR], 5),
        ([*EIGHT_HOURS, 30 * DAY, HOUR, HOUR], 3),
    ],
)
def test_checkpoints_older_than_a_week_are_dropped(pauses: list[timedelta], kept: int) -> None:
    job = MemoryJob()
    for pause in pauses:
        job.root.clock.sleep(pause)
        job.commit(RetentionLimits(100, 7 * DAY))
    newest = job.head.entry.seq
    assert [ref.id for ref in restorable(job)] == list(range(newest - kept + 1, newest + 1))


def _link(
    storage: MemoryStorage, key: str, newest: int, before: RetainedLink | None = None, refs: Sequence[EntryRef] = ()
) -> RetainedLink:
    """Stores a segment as an attacker would, and links it."""
    data, _ = seal(RetainedSegment(refs=list(refs), before=before))
    storage.delete([key])
    storage.put_new(key, data)
    return RetainedLink(
        handle=FileHandle(key=key, size=len(data), sha256=hashlib.sha256(data).hexdigest()), newest=newest
    )


def _adopt_link(job: MemoryJob, link: RetainedLink) -> Head:
    entry = replace(job.head.entry, retained_before=link, oldest_retained=0)
    data, digest = seal(entry)
    job.storage.delete([log_entry(entry.seq)])
    job.storage.put_new(log_entry(entry.seq), data)
    return Head(entry, digest)


def test_segments_that_refer_to_each_other_are_corrupt() -> None:
    """No segment can contain the hash of its successor, so the second link has a wrong one."""
    job = MemoryJob()
    one, two = (f"data/{1:020d}/{1:010d}-driver/retained-{n}.json" for n in range(2))
    wrong = RetainedLink(handle=FileHandle(key=one, size=1, sha256="0" * 64), newest=7)
    second = _link(job.storage, two, 8, wrong)
    head = _adopt_link(job, _link(job.storage, one, 9, second))
    for read in (job.opened().head, lambda: job.opened().checkpoints.retained.segment_handles(head.entry)):
        with raises(CorruptFile, file=one):
            read()


@pytest.mark.parametrize("newest", [7, 8, 10**9])
def test_a_segment_that_refers_to_newer_ones_is_corrupt(newest: int) -> None:
    job = MemoryJob()
    one, two, three = (f"data/{1:020d}/{1:010d}-driver/retained-{n}.json" for n in range(3))
    middle = _link(job.storage, two, 7, _link(job.storage, three, newest))
    head = _adopt_link(job, _link(job.storage, one, 10**10, middle))
    with raises(CorruptFile, file=two, newest=7, newest_before=newest):
        job.opened().checkpoints.restorable(head)


def test_a_segment_with_a_time_that_cannot_be_compared_is_corrupt() -> None:
    job = MemoryJob()
    key = f"data/{1:020d}/{1:010d}-driver/retained-0.json"
    wrong = replace(ref(7), at="2026-01-01T00:00:00")
    head = _adopt_link(job, _link(job.storage, key, 7, refs=[wrong]))
    with raises(CorruptFile, file=key, time=wrong.at):
        job.opened().checkpoints.restorable(head)


def test_only_a_checkpoint_that_the_newest_entry_keeps_can_be_pinned() -> None:
    job = ListedJob(SegmentSizes(2, 3))
    job.commit_keeping(1)
    released = job.head.checkpoint
    assert released is not None
    job.commit_keeping(1)
    kept = job.head.checkpoint
    assert kept is not None
    with raises(DataError, checkpoint=released.id, oldest=kept.id):
        job.root.admin.pin(released, "anna", "reads")
    job.root.admin.pin(kept, "anna", "reads")
    assert [pin.checkpoint for pin in job.root.head().entry.pinned] == [kept]
