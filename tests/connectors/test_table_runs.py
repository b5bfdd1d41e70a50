"""Sweeps of tables in stores: what they delete, and how many requests they send in a table with many files."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

import msgspec
import pytest

from stateflow import DeltaSink, FileSink
from stateflow.api.sink import Sink, Writing
from stateflow.connectors.delta.log import entry_path
from stateflow.storage import MemoryStorage, open_storage, register_memory, unregister_memory
from stateflow.storage.base import FolderList
from stateflow.storage.hdfs import WebHdfs
from tests.support.delta_tables import Pair, context, put, write
from tests.support.object_stores import EACH_STORE, Serve, bucket_of, serve_google, serve_s3

_ABOUT = context(Pair)
_numbers = itertools.count()


class Counting(MemoryStorage):
    """Counts lists and the data files that they return, and how often an object is opened."""

    lists = 0
    listed = 0

    def __init__(self, uri: str) -> None:
        super().__init__(uri)
        self.opened: Counter[str] = Counter()

    @contextmanager
    def open(self, key: str) -> Iterator[BinaryIO]:
        self.opened[key] += 1
        with super().open(key) as file:
            yield file

    def list(self, prefix: str, start_after: str = "") -> Any:
        self.lists += 1
        found = super().list(prefix, start_after)
        self.listed += sum(f"/{blob.key}".rpartition("/")[2].startswith("stateflow-") for blob in found)
        return found

    def list_folder(self, prefix: str) -> FolderList:
        before, found = self.listed, super().list_folder(prefix)
        # Only what the answer of a store would have.
        self.listed = before + len([file for file in found.files if "stateflow-" in file.key])
        return found


@pytest.fixture
def store() -> Iterator[Counting]:
    storage = Counting(f"memory://runs-{next(_numbers)}")
    register_memory(storage)
    yield storage
    unregister_memory(storage.uri)


_SINKS: dict[str, Callable[[str], Sink]] = {
    "delta": DeltaSink,
    "delta partitions": lambda address: DeltaSink(address, partition_by="text"),
    "upserts in partitions": lambda address: DeltaSink(address, mode="upsert", keys="id", partition_by="text"),
    "files": FileSink,
    "files in partitions": lambda address: FileSink(address, partition_by="text"),
}


def _begin(sink: Sink, generation: int) -> list[str]:
    """Begins a run, whose driver knows that all output of earlier ones is published; returns the deleted files."""
    sink.begin_run(_ABOUT, generation)
    return sink.sweep(_ABOUT, lambda written, ordinal, path: written < generation)


@pytest.mark.parametrize("kind", _SINKS)
def test_a_start_lists_what_the_last_runs_wrote_and_not_the_table(store: Counting, kind: str) -> None:
    sink = _SINKS[kind](store.uri)
    sink.prepare(_ABOUT)
    assert _begin(sink, 1) == []
    for token in range(1, 40):
        put(sink, _ABOUT, token, [Pair(token, "ab"[token % 2])])
    left = [file.path for file in write(sink, _ABOUT, [Pair(100, "a"), Pair(101, "b")], Writing(1, 41, 0, "y"))]
    assert _begin(sink, 5) == sorted(left)
    # A task of the run before that wrote late, and one of the run itself that was killed.
    late = write(sink, _ABOUT, [Pair(102, "a")], Writing(1, 41, 0, "z"))
    own = write(sink, _ABOUT, [Pair(103, "b")], Writing(5, 41, 0, "x"))
    assert _begin(sink, 9) == sorted(file.path for file in [*late, *own])
    assert _begin(sink, 12) == _begin(sink, 13) == []
    write(sink, _ABOUT, [Pair(104, "a")], Writing(13, 42, 1, "x"))
    store.listed = 0
    assert len(_begin(sink, 17)) == 1
    # The one file, perhaps also as one beside the folders of partitions; none of the 39.
    assert store.listed <= 2


@pytest.mark.parametrize("serve", EACH_STORE)
def test_leftovers_are_found_by_prefix_in_every_store(tmp_path: Path, serve: Serve) -> None:
    with bucket_of(serve, tmp_path) as bucket:
        sink = DeltaSink(f"{bucket}/table", partition_by="text")
        sink.prepare(_ABOUT)
        left: list[str] = []
        for generation in (1, 10, 12, 101):
            assert _begin(sink, generation) == sorted(left)
            put(sink, _ABOUT, generation, [Pair(generation, "a b/é")], generation)
            written = write(sink, _ABOUT, [Pair(0, "a b/é"), Pair(1, "c")], Writing(generation, 500, 0, "x"))
            left = [file.path for file in written]
        assert _begin(sink, 103) == sorted(left)
        names = {blob.key.rpartition("/")[2] for blob in open_storage(f"{bucket}/table").list(".stateflow-runs/")}
        registered = {f"{generation:020d}{end}" for generation in (12, 101, 103) for end in ("", ".swept")}
        assert names == (registered if serve in (serve_s3, serve_google) else set())


def test_a_start_in_hdfs_lists_each_folder_once(hdfs: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A list of a prefix there would be one of the whole folder."""
    listed: list[str] = []
    list_folder = WebHdfs.list

    def noted(client: WebHdfs, path: str, after: str = "") -> Any:
        listed.append(path.removeprefix(f"/{hdfs.split('/', 3)[3]}"))
        return list_folder(client, path, after)

    monkeypatch.setattr(WebHdfs, "list", noted)
    sink = FileSink(hdfs, partition_by="text")
    sink.prepare(_ABOUT)
    for generation in range(1, 5):
        put(sink, _ABOUT, generation, [Pair(generation, "a"), Pair(generation, "b")], generation)
        left = write(sink, _ABOUT, [Pair(0, "b")], Writing(generation, 500, 0, "x"))
        listed.clear()
        assert _begin(sink, generation + 1) == [file.path for file in left]
    assert sorted(path for path in listed if "text=" in path) == ["/text=a", "/text=b"]
    assert listed.count("") == 1


def test_a_table_with_more_runs_than_lists_are_worth_is_listed_once(store: Counting) -> None:
    sink = FileSink(store.uri)
    sink.prepare(_ABOUT)
    for generation in range(1, 1100):
        sink.begin_run(_ABOUT, generation)
    left = write(sink, _ABOUT, [Pair(1, "a")], Writing(7, 1, 0, "x"))
    store.lists = 0
    assert _begin(sink, 1100) == [file.path for file in left]
    # The registrations, the data files, and the log.
    assert store.lists == 3


def test_a_run_is_registered_until_three_later_runs_have_swept_although_others_died(store: Counting) -> None:
    sink = FileSink(store.uri)
    sink.prepare(_ABOUT)
    for generation in range(1, 7):
        sink.begin_run(_ABOUT, generation)
    for generation in range(7, 10):
        # By a task of the first run, which nobody has stopped.
        late = write(sink, _ABOUT, [Pair(1, "a")], Writing(1, generation, 0, "x"))
        assert _begin(sink, generation) == [file.path for file in late]
    registered = [blob.key.rpartition("/")[2] for blob in store.list(".stateflow-runs/")]
    assert registered == [f"{generation:020d}{end}" for generation in (7, 8, 9) for end in ("", ".swept")]


def test_a_sweep_of_files_reads_the_log_back_to_the_runs_that_it_lists(store: Counting) -> None:
    sink = FileSink(store.uri)
    sink.prepare(_ABOUT)
    left: list[str] = []
    for generation in (1, 100, 110, 120):
        assert _begin(sink, generation) == left
        for token in range(generation, generation + (60 if generation == 1 else 5)):
            put(sink, _ABOUT, token, [Pair(token, "a")], generation)
        left = [file.path for file in write(sink, _ABOUT, [Pair(0, "a")], Writing(generation, 500, 0, "x"))]
    store.opened.clear()
    assert _begin(sink, 130) == left
    read = {int(key.rpartition("/")[2].partition(".")[0]) for key in store.opened if key.startswith("_spark_metadata/")}
    # Versions above 60 are of the listed runs. At most 16 entries are read at once.
    assert set(range(61, 76)) <= read and min(read) > 60 - 2 - 16


def test_a_table_without_registrations_is_listed_as_a_whole(store: Counting) -> None:
    sink = DeltaSink(store.uri)
    sink.prepare(_ABOUT)
    _begin(sink, 1)
    left = write(sink, _ABOUT, [Pair(1, "a")], Writing(1, 1, 0, "x"))
    store.delete([blob.key for blob in store.list(".stateflow-runs/")])
    assert _begin(sink, 2) == [file.path for file in left]


def test_files_that_an_entry_of_a_long_log_names_are_kept(store: Counting) -> None:
    """Also those of entries whose tombstones Delta has forgotten: the versions before them stay readable."""
    sink = DeltaSink(store.uri)
    sink.prepare(_ABOUT)
    _begin(sink, 1)
    left = [write(sink, _ABOUT, [Pair(n, "a")], Writing(1, 1, 0, f"x{n}"))[0].path for n in range(60)]
    for version, path in enumerate(left[1:], 1):
        entry = {"commitInfo": {"operation": "OTHER", "operationParameters": {"file": path}}}
        store.put_new(entry_path(version), msgspec.json.encode(entry))
    store.opened.clear()
    assert _begin(sink, 2) == left[:1]
    # Once for deltalake, because the table has no checkpoint, and once for the names.
    assert {store.opened[entry_path(version)] for version in range(1, 40)} == {2}
