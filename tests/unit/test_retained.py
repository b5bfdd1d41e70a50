"""The list of retained checkpoints, in an entry and in segments, compared with a plain list."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from stateflow.checkpoint.gc.collector import Collector
from stateflow.checkpoint.log import transitions
from stateflow.checkpoint.log.checkpoint_log import Appended, Head
from stateflow.checkpoint.log.documents import EntryRef, Manifest
from stateflow.checkpoint.log.job_format import NewJob
from stateflow.checkpoint.log.job_root import JobRoot
from stateflow.checkpoint.log.manifest_files import write_manifest
from stateflow.checkpoint.log.retained import Retention, SegmentSizes, inline_retained, oldest_kept
from stateflow.checkpoint.log.sealed_json import seal
from stateflow.checkpoint.log.transitions import Author, Commit, Kept
from stateflow.clock import ManualClock
from stateflow.errors import CorruptFile, MissingFile
from stateflow.storage import MemoryStorage, PutResult
from stateflow.storage.paths import DATA, LOG, data_folder, log_entry
from tests.support.errors import raises
from tests.support.graphs import JOB, handle

HOUR = timedelta(hours=1)


def _hour(hour: int) -> str:
    return (datetime(2026, 1, 1, tzinfo=UTC) + hour * HOUR).isoformat()


def _refs(*hours: int | None) -> list[EntryRef]:
    return [EntryRef(id=n, sha256=f"sha{n}", at="" if hour is None else _hour(hour)) for n, hour in enumerate(hours, 1)]


@dataclass
class Job:
    """A job whose run does whatever a test says; `expected` has the ids of the line."""

    storage: MemoryStorage = field(default_factory=MemoryStorage)
    sizes: SegmentSizes = field(default_factory=SegmentSizes)
    expected: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.root = self.opened()
        self.head = self.root.claim()

    def opened(self) -> JobRoot:
        root = JobRoot.create_or_open(self.storage, ManualClock(), NewJob("job", 4, {}), "a test")
        root.checkpoints.retained.sizes = self.sizes
        return root

    def commit(self, number: int, max_age: timedelta | None = None) -> None:
        entry = self.head.entry
        ordinal, folder = entry.ordinal + 1, data_folder(entry.generation, entry.ordinal + 1, "driver")
        manifest = Manifest(
            job_uuid=self.root.job.job_uuid, generation=entry.generation, ordinal=ordinal, operators=[], sources=[]
        )
        handle = write_manifest(self.storage, folder, manifest)
        outcome = self.root.commit(self.head, Commit(ordinal, handle, []), Retention(number, max_age))
        assert isinstance(outcome, Appended)
        self.head = outcome.head
        self.expected = [*self.expected, self.head.entry.seq][-number:]

    def retain(self, keep: int) -> None:
        self.head = self.root.admin.retain(keep)
        self.expected = self.expected[-keep:]

    def restart(self) -> None:
        self.head = self.root.claim()

    def go_back(self, to: int) -> None:
        if self.expected:
            to %= len(self.expected)
            ref = self.root.checkpoints.restorable(self.head)[to]
            self.head = self.root.adopt(self.head, self.root.adoption(self.head, ref))
            self.expected = self.expected[: to + 1]


_STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("commit"), st.sampled_from([1, 3, 20, 50])),
        st.tuples(st.just("commit"), st.just(50)),
        st.tuples(st.just("retain"), st.integers(1, 30)),
        st.tuples(st.just("go_back"), st.integers(0, 40)),
        st.tuples(st.just("restart"), st.none()),
    ),
    max_size=60,
)


@settings(deadline=None)
@given(_STEPS, st.integers(0, 4), st.integers(1, 5))
def test_it_is_the_plain_list_whatever_happens(steps: list[tuple[str, int | None]], inline: int, segment: int) -> None:
    job = Job(sizes=SegmentSizes(inline, segment))
    for number in range(25):
        job.commit(50)
        if number % 10 == 5:
            job.restart()
    for name, argument in steps:
        getattr(job, name)(*(() if argument is None else (argument,)))
        # Known as this process remembers it, and as another one reads it.
        for root in (job.root, job.opened()):
            assert [ref.id for ref in root.checkpoints.restorable(root.head())] == job.expected
    collector = Collector(job.opened())
    collector.collect()
    head = job.opened().head()
    kept = [ref.manifest.key for ref in job.opened().checkpoints.restorable(head) if ref.manifest]
    segments = [handle.key for handle in job.root.checkpoints.retained.segment_handles(head.entry)]
    assert [blob.key for blob in job.storage.list(DATA)] == sorted({*kept, *segments})
    assert {blob.key for blob in job.storage.list(LOG)} <= {log_entry(n) for n in (head.entry.seq, head.checkpoint_id)}
    assert len(head.entry.retained) <= inline + 1


def test_an_entry_is_as_small_with_three_thousand_as_with_ten() -> None:
    """And a COMMIT writes no more, on the average: a segment that is full is never written again."""

    class Counting(MemoryStorage):
        written = 0

        def put_new(self, key: str, data: bytes) -> PutResult:
            self.written += len(data) if "/retained-" in key else 0
            return super().put_new(key, data)

    storage = Counting()
    job = Job(storage=storage)
    entry_sizes, written = [], []
    for _ in range(3_000):
        job.commit(3_000)
        entry_sizes.append(len(seal(job.head.entry)[0]))
        written.append(storage.written)
        storage.delete([log_entry(job.head.entry.seq - 1)])
    assert max(entry_sizes[2_000:]) <= 1.2 * max(entry_sizes[:16])
    assert written[-1] - written[1_999] <= 1.2 * (written[1_999] - written[999])
    assert [ref.id for ref in job.opened().checkpoints.restorable(job.head)] == job.expected


def test_a_list_that_cannot_be_stored_stays_in_the_entry() -> None:
    class Refusing(MemoryStorage):
        refuses = False

        def put_new(self, key: str, data: bytes) -> PutResult:
            if self.refuses and "/retained-" in key:
                return PutResult.UNKNOWN
            return super().put_new(key, data)

    storage = Refusing()
    job = Job(storage=storage, sizes=SegmentSizes(2, 2))
    storage.refuses = True
    for _ in range(5):
        job.commit(50)
    assert (len(job.head.entry.retained), job.head.entry.retained_before) == (4, None)
    storage.refuses = False
    job.commit(50)
    assert job.head.entry.retained == []
    assert [ref.id for ref in job.opened().checkpoints.restorable(job.head)] == job.expected


def test_a_reader_of_an_old_head_takes_the_newest_one_when_its_list_was_collected() -> None:
    job = Job(sizes=SegmentSizes(0, 3))
    for _ in range(3):
        job.commit(2)
    late, stale = job.opened(), job.head
    job.commit(2)
    Collector(job.opened()).collect()
    with raises(MissingFile):
        late.checkpoints.restorable(stale)
    reads = iter([stale, job.head])
    late.log.read_head = lambda: next(reads)  # type: ignore[method-assign]
    assert late.head() == job.head


# -- which ones -----------------------------------------------------------------------------------------------------


@given(st.integers(1, 6), st.integers(0, 6))
def test_so_many_are_retained_as_are_asked_for_and_the_newest(number: int, older: int) -> None:
    refs = _refs(*range(older))
    oldest = oldest_kept(refs, Retention(number), _hour(0), _hour(0))
    kept = [ref for ref in refs if oldest is not None and ref.id >= oldest]
    assert len(kept) == min(number - 1, older)
    assert kept == refs[len(refs) - len(kept) :]


@pytest.mark.parametrize(
    ("hours", "oldest"),
    [
        ((1, 2, 3, 4), 3),
        ((1,), None),
        ((), None),
        ((1, 2, 2, 3, 4), 4),
        ((1, 2), 2),  # at most half of them, and the last one next time
        ((None, 1), 1),  # nobody knows its time: it is never too old
        ((4, 1, 4), 1),  # a clock that went back takes nothing from between
    ],
)
def test_old_ones_go_by_the_time_of_their_own_commit(hours: tuple[int | None, ...], oldest: int | None) -> None:
    assert oldest_kept(_refs(*hours), Retention(9, 3 * HOUR), _hour(6), _hour(6)) == oldest


def _commits(times: list[timedelta], number: int = 10, max_age: timedelta = timedelta(days=7)) -> list[int]:
    """Commits at these times; the checkpoints that the newest entry retains."""
    begin = datetime(2026, 1, 1, tzinfo=UTC)

    def author(at: timedelta) -> Author:
        return Author("w", "n", (begin + at).isoformat())

    base = Head(transitions.claim(JOB, None, author(times[0]), None), "sha")
    for ordinal, at in enumerate(times, start=1):
        line = [*inline_retained(base.entry), *([base.checkpoint] if base.checkpoint else [])]
        oldest = oldest_kept(line, Retention(number, max_age), author(at).at, base.entry.at)
        new = Commit(ordinal, handle(1, ordinal), [])
        base = Head(transitions.commit(JOB, base, author(at), new, Kept(oldest or base.entry.seq + 1)), f"sha{ordinal}")
    return [ref.id for ref in base.entry.retained]


def test_one_jump_of_the_clock_drops_no_checkpoint() -> None:
    hours = [timedelta(hours=n) for n in range(8)]
    jumped = [*hours, timedelta(days=30)]
    assert _commits(jumped) == list(range(2, 10))
    assert _commits([*jumped, timedelta(hours=9)], number=20) == list(range(2, 11))


def test_a_clock_that_stays_wrong_takes_half_at_a_time() -> None:
    hours = [timedelta(hours=n) for n in range(8)]
    wrong = [timedelta(days=30, hours=n) for n in range(3)]
    left = [len([i for i in _commits([*hours, *wrong[:n]]) if i <= 9]) for n in range(4)]
    assert left == [7, 8, 3, 0]


def test_checkpoints_that_are_too_old_go() -> None:
    days = [timedelta(days=n) for n in range(30)]
    assert _commits(days, number=100) == list(range(23, 31))


def test_a_run_looks_at_the_clock_of_the_entry_before_as_well() -> None:
    job = Job()
    for _ in range(3):
        job.commit(50, HOUR)
    job.root.clock.sleep(timedelta(days=30))
    job.commit(50, HOUR)
    assert len(job.root.checkpoints.restorable(job.head)) == 4, "one jump drops none"
    job.commit(50, HOUR)
    assert len(job.root.checkpoints.restorable(job.head)) == 3, "half of the four go, the new one comes"


# -- what older versions wrote --------------------------------------------------------------------------------------


def _as_older_versions(job: Job) -> Head:
    """The newest entry as they would have it: references without a manifest, times apart, no run's nonce."""
    entry = job.head.entry
    old = replace(
        entry,
        run="",
        retained=[EntryRef(id=r.id, sha256=r.sha256) for r in entry.retained],
        times={str(ref.id): ref.at for ref in job.root.checkpoints.restorable(job.head)},
        seq=entry.seq + 1,
        parent=job.head.sha256,
        checkpoint=EntryRef(id=entry.seq, sha256=job.head.sha256),
        kind=transitions.EntryKind.ADMIN,
    )
    data, digest = seal(old)
    assert job.storage.put_new(log_entry(old.seq), data) is PutResult.CREATED
    return Head(old, digest)


def test_checkpoints_of_older_versions_are_kept_with_their_entries_until_they_go() -> None:
    job = Job(sizes=SegmentSizes(99, 99))
    for _ in range(4):
        job.commit(4)
    old = list(job.expected)
    job.head = _as_older_versions(job)
    root = job.root = job.opened()
    root.checkpoints.retained.sizes = SegmentSizes(1, 2)
    job.restart()
    job.commit(4)
    assert all(ref.at for ref in root.checkpoints.restorable(job.head)), "their times are in the references now"
    Collector(root).collect()
    entry_keys = {blob.key for blob in job.storage.list(LOG)}
    assert entry_keys == {log_entry(n) for n in [*old[1:], job.head.entry.seq]}
    for ref in root.checkpoints.restorable(job.head):
        assert root.checkpoints.manifest_of(ref).job_uuid == root.job.job_uuid
    job.go_back(1)
    for _ in range(4):
        job.commit(4)
    Collector(root).collect()
    assert [blob.key for blob in job.storage.list(LOG)] == [log_entry(job.head.entry.seq)]


def test_a_slot_that_was_written_again_is_not_the_checkpoint_of_an_older_version() -> None:
    """A driver that slept while its slot's entry was collected creates it anew, with other content."""
    job = Job(sizes=SegmentSizes(99, 99))
    for _ in range(2):
        job.commit(4)
    head = _as_older_versions(job)
    (ref,) = head.entry.retained
    job.storage.delete([log_entry(ref.id)])
    with raises(MissingFile, file=log_entry(ref.id)):
        job.opened().checkpoints.manifest_of(ref)
    job.storage.put_new(log_entry(ref.id), seal(replace(head.entry, seq=ref.id))[0])
    with raises(CorruptFile, file=log_entry(ref.id)):
        job.opened().checkpoints.manifest_of(ref)
