"""Stored documents: damage is found, format version 1 stays readable, and lists too large for one document are divided.

A change that makes a file of ``tests/data/format-1`` unreadable needs a new format version and a way to read the old
one.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace
from syrupy.assertion import SnapshotAssertion

from stateflow.checkpoint.garbage_collector import Collector
from stateflow.checkpoint.log import documents, manifest_files
from stateflow.checkpoint.log.checkpoint_log import Appended, Head
from stateflow.checkpoint.log.completed_checkpoints import RetentionLimits
from stateflow.checkpoint.log.documents import (
    EntryRef,
    JobFormat,
    LogEntry,
    Manifest,
    OutputPart,
    PendingOutput,
    RequestAnswer,
    RetainedLink,
    RetainedSegment,
    SinkIntent,
    SourcePosition,
)
from stateflow.checkpoint.log.entry_lists import OutputLists, OutputSizes, SegmentSizes
from stateflow.checkpoint.log.manifest_files import LIMIT, read_manifest, seal, unseal, write_manifest
from stateflow.checkpoint.log.transitions import Settlement, pending_of
from stateflow.checkpoint.savepoints.create import newest_published_checkpoint
from stateflow.errors import CorruptFile, DataError, Fenced, MissingFile, TooLarge
from stateflow.state.handles import Committable, FileHandle, StateSchema
from stateflow.storage import MemoryStorage, PutResult
from stateflow.storage.paths import DATA, LOG, data_folder, log_entry
from tests.checkpoint.log.memory_job import MemoryJob
from tests.support.errors import raises
from tests.support.graphs import entry

DOCUMENT = JobFormat(
    version=1, job="jöb", job_uuid="0" * 32, max_parallelism=128, key_types={"op": ["string"]}, shadow=False
)
SEALED, DIGEST = seal(DOCUMENT)
LINE = SEALED.split(b"\n")[0]


def _check_refused(data: bytes, kind: Any = JobFormat) -> CorruptFile:
    with raises(CorruptFile, file="the/file") as refused:
        unseal(data, kind, "the/file")
    return refused.value


def test_a_document_comes_back_with_its_hash() -> None:
    assert unseal(SEALED, JobFormat, "FORMAT") == (DOCUMENT, DIGEST)
    assert hashlib.sha256(LINE).hexdigest() == DIGEST
    assert SEALED == LINE + b"\n" + DIGEST.encode() + b"\n"


def test_every_flipped_bit_every_cut_and_other_bytes_are_refused() -> None:
    flipped = [
        SEALED[:at] + bytes([SEALED[at] ^ 1 << bit]) + SEALED[at + 1 :] for at in range(len(SEALED)) for bit in range(8)
    ]
    cuts = [SEALED[:size] for size in range(len(SEALED))]
    others = [SEALED + b"x", SEALED + b"\n", b"\n" + SEALED, SEALED * 2, b"\n", b"\0" * 200, seal(entry(1))[0]]
    for data in (*flipped, *cuts, *others):
        _check_refused(data)
    for kind in (LogEntry, Manifest):
        _check_refused(SEALED, kind)


OTHER_SHAPES = [b"{}", b"[]", b"null", b'{"version": "one"}', b"not json", b'{"job": "\xff"}', b""]


@pytest.mark.parametrize("line", [*OTHER_SHAPES, LINE.replace(b"128", b'"128"')])
def test_a_whole_document_of_another_shape_is_refused(line: bytes) -> None:
    assert _check_refused(line + b"\n" + hashlib.sha256(line).hexdigest().encode() + b"\n").facts["reason"]


def test_a_table_to_restore_has_the_version_that_the_plan_saw() -> None:
    def sealed(seen: bytes) -> bytes:
        line = b'{"table_id":"t","mode":"restore","to_version":3,"seen_version":%s}' % seen
        return line + b"\n" + hashlib.sha256(line).hexdigest().encode() + b"\n"

    assert unseal(sealed(b"4"), SinkIntent, "the/file")[0].seen_version == 4
    assert _check_refused(sealed(b"null"), SinkIntent).facts["reason"]


@given(st.integers(0, 300), st.integers(-3, 3))
def test_the_writer_refuses_exactly_what_is_above_the_reader_s_limit(length: int, spare: int) -> None:
    document = RequestAnswer(id="q", status="done", message="é" * length, at="now")
    size = len(seal(document)[0])
    storage = MemoryStorage()
    if spare < 0:
        with raises(TooLarge, document="RequestAnswer", size_bytes=size, limit_bytes=size + spare):
            seal(document, size + spare)
    else:
        storage.put_new("answer", seal(document, size + spare)[0])
        assert unseal(storage.get("answer", size + spare), RequestAnswer, "answer")[0] == document


def _manifest(ordinal: int = 1, job: str = "j") -> Manifest:
    return Manifest(job_uuid=job, generation=1, ordinal=ordinal, operators=[], sources=[])


def _write(storage: MemoryStorage, manifest: Manifest) -> FileHandle:
    return write_manifest(storage, data_folder(1, manifest.ordinal, "driver"), manifest)


def test_a_manifest_is_read_by_its_hash_and_not_only_its_own() -> None:
    """Another whole manifest under its name is refused."""
    storage = MemoryStorage()
    first, second = _write(storage, _manifest(1)), _write(storage, _manifest(2))
    assert read_manifest(storage, first).ordinal == 1
    with raises(CorruptFile, file=second.key):
        read_manifest(storage, msgspec.structs.replace(first, key=second.key))
    storage.delete([first.key])
    with raises(MissingFile, key=first.key):
        read_manifest(storage, first)


def test_a_manifest_of_another_job_is_refused() -> None:
    job = MemoryJob()
    own, other = (_write(job.storage, _manifest(n, uuid)) for n, uuid in enumerate((job.root.job.job_uuid, "other"), 1))
    assert job.root.checkpoints.read_manifest(own).ordinal == 1
    with raises(DataError, file=other.key, job_uuid="other"):
        job.root.checkpoints.read_manifest(other)


@pytest.mark.parametrize(
    ("limit", "is_accepted"), [(1 << 20, False), (2 << 20, False), (8 << 20, True), (32 << 20, True)]
)
def test_the_writer_refuses_exactly_what_would_take_the_reader_too_much_memory(
    monkeypatch: pytest.MonkeyPatch, limit: int, is_accepted: bool
) -> None:
    """A child process decides, except with the largest limit."""
    columns = {f"{number:06x}": {"column": "bigint"} for number in range(10_000)}
    manifest = msgspec.structs.replace(_manifest(), columns=columns)
    stored, _ = seal(manifest)
    monkeypatch.setattr("stateflow.types.decoders.MEMORY_LIMIT", limit)
    monkeypatch.setattr(manifest_files, "MEMORY_LIMIT", limit)
    if is_accepted:
        assert unseal(seal(manifest)[0], Manifest, "file") == (manifest, seal(manifest)[1])
        return
    with raises(TooLarge, document="Manifest", size_bytes=len(stored), limit_bytes=limit):
        seal(manifest)
    with raises(CorruptFile, file="file"):
        unseal(stored, Manifest, "file")


FOLDER = Path(__file__).parents[2] / "data" / "format-1"
KINDS: dict[str, type[Any]] = {
    "FORMAT": JobFormat,
    "manifest": Manifest,
    "manifest-backends": Manifest,
    "savepoint-claim": documents.SavepointClaim,
    "schema": StateSchema,
}
"""The kinds of the stored documents that are not log entries."""


@pytest.mark.parametrize("path", sorted(FOLDER.iterdir()), ids=lambda path: path.name)
def test_what_was_written_is_read_also_with_fields_of_a_newer_version(path: Path, golden: SnapshotAssertion) -> None:
    """The golden file has the value of each field."""
    stored, kind = path.read_bytes(), KINDS.get(path.name, LogEntry)
    document = unseal(stored, kind, path.name)[0]
    assert "".join(f"{name}: {getattr(document, name)!r}\n" for name in kind.__struct_fields__) == golden
    line = stored.partition(b"\n")[0].replace(b"{", b'{"later":{"a":[1]},', 1)
    newer = line + b"\n" + hashlib.sha256(line).hexdigest().encode() + b"\n"
    assert unseal(newer, kind, path.name)[0] == document == unseal(seal(document)[0], kind, path.name)[0]


ONE = RetentionLimits(1)


def _files(count: int, stats: str = "") -> list[Committable]:
    return [Committable(path=f"f{n}.parquet", size=n, rows=n, stats=stats) for n in range(count)]


def _list_keys(job: MemoryJob) -> list[str]:
    return [blob.key for blob in job.storage.list(DATA) if "/output-" in blob.key]


def _read_by_others(job: MemoryJob) -> dict[int, list[Committable]]:
    root = job.opened()
    head = root.log.read_head()
    assert head == job.head
    return {p.checkpoint_id: root.outputs.read(p) for p in pending_of(job.head)}


def test_entries_name_the_same_objects_of_pending_output_until_the_output_is_settled() -> None:
    job = MemoryJob(outputs=OutputSizes(inline=1_000, part=2_000))
    job.commit(ONE, _files(100))
    first, names = job.head.entry.seq, _list_keys(job)
    assert len(names) > 1
    job.commit(ONE, _files(3))
    job.head = job.root.claim()
    job.commit(ONE, _files(100))
    Collector(job.opened()).collect()
    assert _list_keys(job)[: len(names)] == names
    assert _read_by_others(job) == {first: _files(100), first + 1: _files(3), job.head.entry.seq: _files(100)}
    everything = frozenset((p.checkpoint_id, p.sink) for p in pending_of(job.head))
    ended = job.root.settle(job.head, Settlement(settled=everything))
    assert isinstance(ended, Appended) and ended.head.entry.pending == []
    Collector(job.opened()).collect()
    assert _list_keys(job) == []


def test_a_missing_or_damaged_list_is_named() -> None:
    job = MemoryJob(outputs=OutputSizes(inline=0, part=1))
    job.commit(ONE, _files(2))
    first, _ = _list_keys(job)
    data = job.storage.get(first)
    job.storage.delete([first])
    with raises(MissingFile, key=first):
        _read_by_others(job)
    job.storage.put_new(first, data.replace(b"f0", b"g0"))
    with raises(CorruptFile, file=first):
        _read_by_others(job)


@pytest.mark.long(reason="draws many lists")
@given(st.lists(st.integers(0, 40), max_size=30), st.integers(0, 3_000), st.integers(1, 500))
def test_what_is_stored_is_read_and_no_part_is_larger_than_allowed(stats: list[int], inline: int, part: int) -> None:
    files = [Committable(path=f"{n}", size=n, rows=n, stats="é" * s) for n, s in enumerate(stats)]
    largest = max((len(msgspec.json.encode(f)) for f in files), default=0)
    storage = MemoryStorage()
    output = [PendingOutput(checkpoint_id=0, sink=sink, committables=files) for sink in ("a", "b")]
    stored = OutputLists(storage, OutputSizes(inline, part)).store(data_folder(1, 1, "driver"), "output-1", output)
    assert [OutputLists(storage).read(p) for p in stored] == [files, files]
    assert sum(len(msgspec.json.encode(f)) for p in stored for f in p.committables or []) <= inline
    framed = len(seal(OutputPart(committables=[]))[0]) + len(files)
    assert all(blob.size <= part + largest + framed for blob in storage.list(DATA))


def test_an_entry_that_is_still_too_large_is_refused_and_nothing_is_lost() -> None:
    """Source positions are in the entry itself."""
    job = MemoryJob()
    job.commit(ONE, _files(1))
    before = job.head
    huge = SourcePosition(uid="rows", description="d", offset="7" * LIMIT)
    with raises(TooLarge, document=LogEntry.__name__, limit_bytes=LIMIT):
        job.commit(ONE, _files(1), sources=[huge])
    assert job.opened().log.read_head() == before
    job.commit(ONE, _files(1))


def test_a_savepoint_copies_the_newest_checkpoint_without_pending_output() -> None:
    job = MemoryJob()
    job.commit(RetentionLimits(5))
    published = job.head.checkpoint
    assert newest_published_checkpoint(job.root, job.head) == published
    job.commit(RetentionLimits(5), files=_files(1))
    job.commit(RetentionLimits(5))
    assert newest_published_checkpoint(job.root, job.head) == published


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
    max_size=30,
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
    """May refuse to store segments."""

    refuses = False

    def put_new(self, key: str, data: bytes) -> PutResult:
        return PutResult.UNKNOWN if self.refuses and "/retained-" in key else super().put_new(key, data)


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


def _link(storage: MemoryStorage, key: str, newest: int, before: RetainedLink | None = None) -> RetainedLink:
    """Stores a segment as an attacker would, and links it."""
    data, _ = seal(RetainedSegment(refs=[], before=before))
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


@pytest.mark.parametrize("newest", [7, 10**9])
def test_a_segment_that_refers_to_newer_ones_is_corrupt(newest: int) -> None:
    job = MemoryJob()
    one, two, three = (f"data/{1:020d}/{1:010d}-driver/retained-{n}.json" for n in range(3))
    middle = _link(job.storage, two, 7, _link(job.storage, three, newest))
    head = _adopt_link(job, _link(job.storage, one, 10**10, middle))
    with raises(CorruptFile, file=two, newest=7, newest_before=newest):
        job.opened().checkpoints.restorable(head)


def test_only_a_checkpoint_that_the_newest_entry_keeps_can_be_pinned_and_not_by_a_fenced_run() -> None:
    job = ListedJob(SegmentSizes(2, 3))
    job.commit_keeping(1)
    released = job.head.checkpoint
    assert released is not None
    job.commit_keeping(1)
    kept = job.head.checkpoint
    assert kept is not None
    with raises(DataError, checkpoint_id=released.id, oldest_checkpoint_id=kept.id):
        job.root.admin.pin(released, "anna", "reads")
    job.root.admin.pin(kept, "anna", "reads")
    assert [pin.checkpoint for pin in job.root.head().entry.pinned] == [kept]
    newer = job.opened().claim().entry.generation
    with raises(Fenced, generation=job.head.entry.generation, newer=newer):
        job.root.admin.pin(kept, "the run before", "makes a savepoint", job.head.entry.generation)
