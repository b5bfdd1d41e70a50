"""Pending output that is too large for a log entry: stored once, named by every entry that carries it on."""

from __future__ import annotations

import random
from collections.abc import Iterator

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stateflow.checkpoint.gc.collector import Collector
from stateflow.checkpoint.log.checkpoint_log import Appended, Head
from stateflow.checkpoint.log.documents import LogEntry, Manifest, OutputPart, PendingOutput, SourcePosition
from stateflow.checkpoint.log.job_format import NewJob
from stateflow.checkpoint.log.job_root import JobRoot
from stateflow.checkpoint.log.manifest_files import write_manifest
from stateflow.checkpoint.log.outputs import OutputLists, OutputSizes
from stateflow.checkpoint.log.retained import Retention
from stateflow.checkpoint.log.sealed_json import LIMIT, seal
from stateflow.checkpoint.log.transitions import Commit, Settled, Settlement, pending_of
from stateflow.clock import ManualClock
from stateflow.errors import CorruptFile, MissingFile, TooLarge
from stateflow.state.handles import Committable
from stateflow.storage import MemoryStorage
from stateflow.storage.paths import DATA, data_folder
from tests.support.errors import raises

FILES = 60_000
INPUTS_OF_TEST, INPUTS_OF_TEST_ALL = 300, 100_000


def _files(count: int, stats: int = 0) -> list[Committable]:
    return [Committable(path=f"f{n}.parquet", size=n, rows=n, stats="s" * stats) for n in range(count)]


class Job:
    """A run of a job with one sink, in memory."""

    def __init__(self, sizes: OutputSizes | None = None) -> None:
        self.storage = MemoryStorage()
        self.sizes = sizes or OutputSizes()
        self.root = self.opened()
        self.head = self.root.claim()

    def opened(self) -> JobRoot:
        root = JobRoot.create_or_open(self.storage, ManualClock(), NewJob("job", 4, {}), "a test")
        root.outputs.sizes = self.sizes
        return root

    def commit(
        self, files: list[Committable], settled: Settled = frozenset(), sources: list[SourcePosition] | None = None
    ) -> None:
        entry = self.head.entry
        ordinal, folder = entry.ordinal + 1, data_folder(entry.generation, entry.ordinal + 1, "driver")
        handle = write_manifest(
            self.storage,
            folder,
            Manifest(
                job_uuid=self.root.job.job_uuid, generation=entry.generation, ordinal=ordinal, operators=[], sources=[]
            ),
        )
        given = [PendingOutput(checkpoint_id=0, sink="out", committables=files)]
        output = self.root.outputs.store(folder, "output-1", given)
        new = Commit(ordinal, handle, sources or [], output, settled=settled)
        outcome = self.root.commit(self.head, new, Retention(1))
        assert isinstance(outcome, Appended)
        self.head = outcome.head

    @property
    def lists(self) -> list[str]:
        return [blob.key for blob in self.storage.list(DATA) if "/output-" in blob.key]


def _read(root: JobRoot, head: Head) -> dict[int, list[Committable]]:
    return {p.checkpoint_id: root.outputs.read(p) for p in pending_of(head)}


@pytest.fixture(scope="module")
def large() -> Iterator[Job]:
    """A COMMIT of 60,000 files with statistics, 70 MB in all: more than a document may have."""
    job = Job()
    job.commit(_files(FILES, stats=1_100))
    yield job


def test_a_commit_of_sixty_thousand_files_can_be_read(large: Job) -> None:
    size = sum(len(large.storage.get(key)) for key in large.lists)
    assert size > LIMIT
    other = large.opened()
    head = other.log.read_head()
    assert head == large.head
    assert head is not None and len(seal(head.entry)[0]) < 10_000
    assert _read(other, head) == {head.entry.seq: _files(FILES, stats=1_100)}


def test_entries_that_carry_it_on_name_the_same_objects_until_it_is_settled() -> None:
    job = Job(OutputSizes(inline=1_000, part=2_000))
    job.commit(_files(100))
    first, names = job.head.entry.seq, job.lists
    assert len(names) > 1
    job.commit(_files(3))
    job.head = job.root.claim()
    job.commit(_files(100))
    Collector(job.opened()).collect()
    assert job.lists[: len(names)] == names
    assert _read(job.opened(), job.head) == {first: _files(100), first + 1: _files(3), job.head.entry.seq: _files(100)}
    everything: Settled = frozenset((p.checkpoint_id, p.sink) for p in pending_of(job.head))
    ended = job.root.settle(job.head, Settlement(settled=everything))
    assert isinstance(ended, Appended) and ended.head.entry.pending == []
    Collector(job.opened()).collect()
    assert job.lists == []


def test_a_list_that_is_gone_or_damaged_is_named() -> None:
    job = Job(OutputSizes(inline=0, part=1))
    job.commit(_files(2))
    one, two = job.lists
    data = job.storage.get(one)
    job.storage.delete([one])
    with raises(MissingFile, key=one):
        _read(job.opened(), job.head)
    job.storage.put_new(one, data.replace(b"f0", b"g0"))
    with raises(CorruptFile, file=one):
        _read(job.opened(), job.head)
    assert two in job.lists


def check_lists(stats: list[int], sizes: OutputSizes) -> None:
    """What is stored is read by others, and neither the entry's part of it nor an object is larger than it may be."""
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
def test_what_is_stored_is_what_is_read(stats: list[int], inline: int, part: int) -> None:
    check_lists(stats, OutputSizes(inline, part))


@pytest.mark.slow
def test_what_is_stored_is_what_is_read_of_many_lists() -> None:
    """The same from plain dice: sizes around both limits."""
    for seed in range(INPUTS_OF_TEST_ALL):
        dice = random.Random(seed)
        stats = [dice.randint(0, 40) for _ in range(dice.randint(0, 12))]
        both = 2 * sum(len(msgspec.json.encode(f)) for f in _files(len(stats))) + 4 * sum(stats)
        check_lists(stats, OutputSizes(max(0, both + dice.randint(-60, 60)), dice.randint(1, 500)))


def test_an_entry_that_is_too_large_even_so_is_refused_and_nothing_is_lost() -> None:
    """Source positions are in the entry itself."""
    job = Job()
    job.commit(_files(1))
    before = job.root.log.read_head()
    huge = SourcePosition(uid="rows", description="d", offset="7" * LIMIT)
    with raises(TooLarge, document=LogEntry.__name__, limit=LIMIT):
        job.commit(_files(1), sources=[huge])
    assert job.opened().log.read_head() == before
    job.commit(_files(1))
