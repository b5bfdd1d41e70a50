"""Pending output that is too large for a log entry: stored once, named by every entry that carries it on."""

from __future__ import annotations

import random

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stateflow.checkpoint.garbage_collector import Collector
from stateflow.checkpoint.log.checkpoint_log import Appended
from stateflow.checkpoint.log.documents import LogEntry, OutputPart, PendingOutput, SourcePosition
from stateflow.checkpoint.log.entry_lists import OutputLists, OutputSizes, RetentionLimits
from stateflow.checkpoint.log.manifest_files import LIMIT, seal
from stateflow.checkpoint.log.transitions import Settlement, pending_of
from stateflow.checkpoint.savepoints.create import newest_published_checkpoint
from stateflow.errors import CorruptFile, MissingFile, TooLarge
from stateflow.state.handles import Committable
from stateflow.storage import MemoryStorage
from stateflow.storage.paths import DATA, data_folder
from tests.checkpoint.log.memory_job import MemoryJob
from tests.support.errors import raises

ONE = RetentionLimits(1)
INPUTS_OF_TEST, INPUTS_OF_TEST_ALL = 300, 100_000


def _files(count: int, stats: str = "") -> list[Committable]:
    return [Committable(path=f"f{n}.parquet", size=n, rows=n, stats=stats) for n in range(count)]


def _list_keys(job: MemoryJob) -> list[str]:
    return [blob.key for blob in job.storage.list(DATA) if "/output-" in blob.key]


def _read_by_others(job: MemoryJob) -> dict[int, list[Committable]]:
    root = job.opened()
    head = root.log.read_head()
    assert head == job.head
    return {p.checkpoint_id: root.outputs.read(p) for p in pending_of(job.head)}


def test_output_larger_than_a_document_may_be_is_committed_and_read() -> None:
    """60,000 files with statistics, 70 MB in all."""
    job = MemoryJob()
    files = _files(60_000, "s" * 1_100)
    job.commit(ONE, files)
    assert sum(len(job.storage.get(key)) for key in _list_keys(job)) > LIMIT
    assert len(seal(job.head.entry)[0]) < 10_000
    assert _read_by_others(job) == {job.head.entry.seq: files}


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


def check_lists(stats: list[int], sizes: OutputSizes) -> None:
    """Others read what is stored; the entry's part of it and each object are at most as large as they may be."""
    files = [Committable(path=f"{n}", size=n, rows=n, stats="é" * s) for n, s in enumerate(stats)]
    largest = max((len(msgspec.json.encode(f)) for f in files), default=0)
    storage = MemoryStorage()
    output = [PendingOutput(checkpoint_id=0, sink=sink, committables=files) for sink in ("a", "b")]
    stored = OutputLists(storage, sizes).store(data_folder(1, 1, "driver"), "output-1", output)
    assert [OutputLists(storage).read(p) for p in stored] == [files, files]
    assert sum(len(msgspec.json.encode(f)) for p in stored for f in p.committables or []) <= sizes.inline
    framed = len(seal(OutputPart(committables=[]))[0]) + len(files)
    assert all(blob.size <= sizes.part + largest + framed for blob in storage.list(DATA))


@settings(max_examples=INPUTS_OF_TEST)
@given(st.lists(st.integers(0, 40), max_size=30), st.integers(0, 3_000), st.integers(1, 500))
def test_what_is_stored_is_read(stats: list[int], inline: int, part: int) -> None:
    check_lists(stats, OutputSizes(inline, part))


@pytest.mark.slow
def test_what_is_stored_is_read_for_many_sizes_around_both_limits() -> None:
    for seed in range(INPUTS_OF_TEST_ALL):
        rng = random.Random(seed)
        stats = [rng.randint(0, 40) for _ in range(rng.randint(0, 12))]
        both = 2 * sum(len(msgspec.json.encode(f)) for f in _files(len(stats))) + 4 * sum(stats)
        check_lists(stats, OutputSizes(max(0, both + rng.randint(-60, 60)), rng.randint(1, 500)))


def test_an_entry_that_is_still_too_large_is_refused_and_nothing_is_lost() -> None:
    """Source positions are in the entry itself."""
    job = MemoryJob()
    job.commit(ONE, _files(1))
    before = job.head
    huge = SourcePosition(uid="rows", description="d", offset="7" * LIMIT)
    with raises(TooLarge, document=LogEntry.__name__, limit=LIMIT):
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
