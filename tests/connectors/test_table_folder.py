"""The folder of a table keeps its contract on disks and in stores, also when answers are lost."""

from __future__ import annotations

import itertools
import os
import stat
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from stateflow import DeltaSink, FileSink
from stateflow.api.sink import Sink
from stateflow.connectors.table_folder import DiskFolder, StoreFolder, TableFolder, open_table_folder
from stateflow.errors import ConfigError, CorruptFile, EnvironmentUnsupported, StorageError
from stateflow.storage import MemoryStorage, PutResult, open_storage, register_memory, unregister_memory
from stateflow.storage.base import FolderList
from stateflow.storage.hdfs import WebHdfs
from tests.servers.hdfs import hdfs_server
from tests.servers.running import careless_s3_server
from tests.support.delta_tables import context
from tests.support.errors import raises
from tests.support.object_stores import bucket_of, serve_google, serve_hdfs

_numbers = itertools.count()
_LOG = "_log"


def _entry(number: int) -> str:
    return f"{_LOG}/{number:020d}.json"


class Conformance:
    """The contract of `TableFolder`."""

    def test_an_entry_is_created_once_by_one_of_many(self, folder: TableFolder) -> None:
        folder.make_folder(_LOG)
        start = threading.Barrier(8)

        def create(racer: int) -> bool:
            start.wait()
            return folder.create(_entry(0), b"%d" % racer * 1000)

        with ThreadPoolExecutor(8) as pool:
            results = list(pool.map(create, range(8)))
        assert results.count(True) == 1
        with folder.open(_entry(0)) as file:
            assert file.read() == b"%d" % results.index(True) * 1000

    def test_a_new_file_is_seen_when_it_is_published_and_not_before(self, folder: TableFolder) -> None:
        folder.make_folder(_LOG)
        path = "day=2026-01-01%20x/name-1.parquet"
        with folder.new_file() as discarded:
            discarded.write(b"x")
        with folder.new_file() as file:
            for _ in range(3):
                file.write(b"abc")
            assert (file.size, file.tell(), folder.files("")) == (9, 9, [])
            assert file.publish(path)
        assert [(found.key, found.size) for found in folder.files("")] == [(path, 9)]
        assert folder.sizes([path, "missing", path]) == [9, None, 9]

    def test_a_large_file_is_read_by_parts(self, folder: TableFolder) -> None:
        folder.make_folder(_LOG)
        block = bytes(range(256)) * 4096
        with folder.new_file() as file:
            for _ in range(18):
                file.write(block)
            assert file.publish("large")
        with folder.open("large") as opened:
            assert opened.seek(0, 2) == 18 << 20
            opened.seek((17 << 20) - 3)
            assert opened.read(6) == b"\xfd\xfe\xff\x00\x01\x02"

    def test_what_is_missing(self, folder: TableFolder, tmp_path: Path) -> None:
        assert folder.info(_entry(0)) is None
        assert (folder.names(), folder.files(_LOG), folder.sequence(_entry, 0)) == ([], [], [])
        with pytest.raises(FileNotFoundError), folder.open(_entry(0)):
            pass
        with pytest.raises(FileNotFoundError):
            folder.fetch(_entry(0), tmp_path / "copy")
        folder.delete([_entry(0), "none/x"])

    def test_a_sequence_ends_at_its_first_gap(self, folder: TableFolder) -> None:
        folder.make_folder(_LOG)
        for number in (0, 1, 2, 4, 10):
            assert folder.create(_entry(number), b"%d" % number)
        for first, found in ((0, [0, 1, 2]), (2, [2]), (3, []), (10, [10])):
            assert [file.key for file in folder.sequence(_entry, first)] == list(map(_entry, found))
        assert [file.key for file in folder.files(_LOG, f"{2:020d}")] == [_entry(n) for n in (2, 4, 10)]

    def test_a_long_sequence_is_found(self, folder: TableFolder) -> None:
        folder.make_folder(_LOG)
        for number in range(40):
            assert folder.create(_entry(number), b"x")
        assert [file.key for file in folder.sequence(_entry, 1)] == list(map(_entry, range(1, 40)))

    def test_a_file_of_the_same_name_is_another_version(self, folder: TableFolder) -> None:
        folder.make_folder(_LOG)
        assert folder.create(_entry(0), b"first")
        before = folder.info(_entry(0))
        assert before is not None and before.version == folder.files(_LOG)[0].version
        folder.delete([_entry(0)])
        assert folder.create(_entry(0), b"other")
        after = folder.info(_entry(0))
        assert after is not None and after.version != before.version

    def test_data_is_at_the_top_and_in_folders_of_partitions(self, folder: TableFolder) -> None:
        folder.make_folder(_LOG)
        folder.create(_entry(0), b"x")
        for path in ("a.parquet", "_day=1/x=2/b.parquet"):
            with folder.new_file() as file:
                file.write(b"x")
                assert file.publish(path)
        assert [file.key for file in folder.files("")] == ["_day=1/x=2/b.parquet", "a.parquet"]
        assert sorted(folder.names()) == ["_day=1", _LOG, "a.parquet"]

    def test_files_are_fetched(self, folder: TableFolder, tmp_path: Path) -> None:
        folder.make_folder(_LOG)
        for number in range(3):
            folder.create(_entry(number), b"%d" % number)
        folder.fetch_all([(_entry(n), tmp_path / f"copy-{n}") for n in range(3)])
        assert [(tmp_path / f"copy-{n}").read_bytes() for n in range(3)] == [b"0", b"1", b"2"]

    def test_the_probe_accepts_it_and_leaves_nothing(self, folder: TableFolder) -> None:
        folder.make_folder(_LOG)
        folder.check_put_if_absent()
        folder.check_writable()
        assert folder.files("") == folder.files(_LOG) == []


class TestDisk(Conformance):
    @pytest.fixture
    def folder(self, tmp_path: Path) -> TableFolder:
        return open_table_folder(str(tmp_path / "table"))


class TestMemory(Conformance):
    @pytest.fixture
    def folder(self) -> Iterator[TableFolder]:
        address = f"memory://table-{next(_numbers)}"
        yield open_table_folder(address)
        unregister_memory(address)


class TestS3(Conformance):
    @pytest.fixture
    def folder(self, s3: str) -> TableFolder:
        return open_table_folder(f"{s3}/")


@pytest.mark.long(reason="starts a server of Azure's API")
class TestAzure(Conformance):
    @pytest.fixture
    def folder(self, azure: str) -> TableFolder:
        return open_table_folder(azure)


class TestGoogle(Conformance):
    @pytest.fixture
    def folder(self, tmp_path: Path) -> Iterator[TableFolder]:
        with bucket_of(serve_google, tmp_path) as bucket:
            yield open_table_folder(f"{bucket}/tables")


@pytest.mark.parametrize(
    ("lists_from_names", "values", "listed"),
    [(True, 300, ["Day=", "text="]), (False, 2, ["Day=1/", "text=0/", "text=1/"]), (False, 300, [""])],
)
def test_files_of_partitions_are_listed_without_the_log(lists_from_names: bool, values: int, listed: list[str]) -> None:
    lists: list[str] = []

    class Noting(MemoryStorage):
        def list(self, prefix: str, start_after: str = "") -> Any:
            lists.append(prefix)
            return super().list(prefix, start_after)

        def list_folder(self, prefix: str) -> FolderList:
            found = super().list_folder(prefix)
            lists.pop()
            return found

    storage = Noting(f"memory://table-{next(_numbers)}")
    storage.lists_from_names = lists_from_names
    register_memory(storage)
    paths = ["Day=1/text=x/a", "a", "text=", *(f"text={value}/a" for value in range(values))]
    for path in (*paths, _entry(0), "text/a", ".other/a=1/a"):
        storage.put_new(path, b"x")
    assert [file.key for file in open_table_folder(storage.uri).files("")] == sorted(paths)
    assert sorted(lists) == listed
    unregister_memory(storage.uri)


@pytest.fixture(scope="module")
def namenode(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with hdfs_server(tmp_path_factory.mktemp("hdfs")) as server:
        yield server.address


@pytest.mark.slow(reason="needs a running NameNode")
class TestHdfs(Conformance):
    @pytest.fixture
    def folder(self, namenode: str) -> TableFolder:
        return open_table_folder(f"{namenode}/tables/{next(_numbers)}")

    def test_another_user_reads_a_table_and_no_job_root(
        self, folder: TableFolder, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        root = f"{folder}-root"
        _write_everything(folder)
        open_storage(root).put_new("log/0", b"x")
        monkeypatch.setenv("HADOOP_USER_NAME", "reader")
        other = open_table_folder(folder.address)
        for file in (*other.files(""), *other.files(_LOG)):
            with other.open(file.key) as opened:
                assert opened.read()
        with raises(ConfigError, exception="AccessControlException"):
            open_storage(root).get("log/0")


def _write_everything(folder: TableFolder) -> None:
    """Writes an entry of the log, a small file in a partition, and one that is not kept in memory."""
    assert folder.create(_entry(0), b"entry")
    for path, size in (("day=1/small", 1), ("day=1/large", (16 << 20) + 1)):
        with folder.new_file() as file:
            file.write(bytes(size))
            assert file.publish(path)


def test_the_next_entry_of_a_log_in_hdfs_is_looked_for_without_a_list(
    hdfs: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A list there has all entries, whatever it begins after."""
    folder = open_table_folder(hdfs)
    for number in range(3):
        assert folder.create(_entry(number), b"x")
    monkeypatch.delattr(WebHdfs, "list")
    assert [file.key for file in folder.sequence(_entry, 1)] == [_entry(1), _entry(2)]
    assert folder.sequence(_entry, 3) == []


def test_a_table_in_hdfs_has_its_default_permissions_and_a_job_root_is_private(tmp_path: Path) -> None:
    with bucket_of(serve_hdfs, tmp_path) as address:
        _write_everything(open_table_folder(f"{address}/table"))
        root = open_storage(f"{address}/root")
        root.put_new("log/0", b"x")
    assert _modes(tmp_path / "own/table") == ({0o755}, {0o644})
    assert _modes(tmp_path / "own/root/log") == ({0o700}, {0o600})


def _modes(folder: Path) -> tuple[set[int], set[int]]:
    """Returns the modes of a folder and the folders below it, and those of the files."""
    modes: tuple[set[int], set[int]] = (set(), set())
    for path in (folder, *folder.rglob("*")):
        modes[path.is_file()].add(stat.S_IMODE(path.stat().st_mode))
    return modes


class Lossy(MemoryStorage):
    """Memory that answers a put with `answer`; whether it is done first is the key of `lost`."""

    def __init__(self, answer: PutResult, *, does_it: bool) -> None:
        super().__init__(f"memory://lossy-{next(_numbers)}")
        self.answer, self.does_it = answer, does_it
        register_memory(self)

    def put_new(self, key: str, data: bytes) -> PutResult:
        if self.does_it:
            super().put_new(key, data)
        return self.answer


@pytest.mark.parametrize("answer", [PutResult.UNKNOWN, PutResult.EXISTS])
def test_an_entry_whose_answer_was_lost_is_the_writers_own(answer: PutResult) -> None:
    storage = Lossy(answer, does_it=True)
    folder = StoreFolder(storage.uri)
    assert folder.create(_entry(0), b"first")
    # The entry of another writer is not.
    assert not folder.create(_entry(0), b"second")
    with folder.new_file() as file:
        file.write(b"x")
        assert file.publish("data")
    unregister_memory(storage.uri)


def test_a_file_that_may_arrive_later_is_an_error_that_is_tried_again() -> None:
    storage = Lossy(PutResult.UNKNOWN, does_it=False)
    folder = StoreFolder(storage.uri)
    with raises(StorageError, file=_entry(0)):
        folder.create(_entry(0), b"first")
    with folder.new_file() as file, raises(StorageError, file="data"):
        file.write(b"x")
        file.publish("data")
    assert StorageError.retryable
    unregister_memory(storage.uri)


@pytest.mark.parametrize("size", [10, (16 << 20) + 1])
def test_a_name_that_several_writers_share_belongs_to_the_first(s3: str, size: int) -> None:
    """As the files of Delta's checkpoints do."""
    folder = open_table_folder(s3)
    published = []
    for content in (b"a", b"a", b"b"):
        with folder.new_file() as file:
            file.write(content * size)
            published.append(file.publish("checkpoint"))
    assert published == [True, True, False]
    with folder.open("checkpoint") as opened:
        assert opened.read() == b"a" * size


def test_a_store_without_put_if_absent_is_refused() -> None:
    storage = Lossy(PutResult.CREATED, does_it=True)
    with raises(EnvironmentUnsupported, winners=8):
        StoreFolder(storage.uri).check_put_if_absent()
    assert storage.list("") == []
    unregister_memory(storage.uri)


@pytest.mark.long(reason="starts a server")
@pytest.mark.parametrize("new_sink", [DeltaSink, FileSink])
def test_a_sink_refuses_a_server_that_ignores_conditions_and_leaves_nothing_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, new_sink: Callable[[str], Sink]
) -> None:
    with careless_s3_server(tmp_path, "bucket") as variables:
        for name, value in variables.items():
            monkeypatch.setenv(name, value)
        with raises(EnvironmentUnsupported, storage="s3://bucket/table") as refused:
            new_sink("s3://bucket/table").prepare(context())
        assert open_storage("s3://bucket/table").list("") == []
    winners = refused.value.facts["winners"]
    assert isinstance(winners, int) and winners > 1
    assert refused.value.hint and not refused.value.retryable


class Forgetful(MemoryStorage):
    """Memory of which the first answers to puts are lost."""

    def __init__(self, lost: int, answer: PutResult) -> None:
        super().__init__(f"memory://forgetful-{next(_numbers)}")
        self.lost, self.answer = lost, answer
        register_memory(self)

    def put_new(self, key: str, data: bytes) -> PutResult:
        result = super().put_new(key, data)
        if result is PutResult.CREATED and self.lost > 0:
            self.lost -= 1
            return self.answer
        return result


@pytest.mark.parametrize("answer", [PutResult.UNKNOWN, PutResult.EXISTS])
def test_a_lost_answer_does_not_refuse_a_store_and_one_that_never_answers_is_refused(answer: PutResult) -> None:
    lossy = Forgetful(3, answer)
    StoreFolder(lossy.uri).check_put_if_absent()
    assert lossy.lost == 0 and lossy.list("") == []
    never = Forgetful(1000, answer)
    with pytest.raises(StorageError if answer is PutResult.UNKNOWN else EnvironmentUnsupported):
        StoreFolder(never.uri).check_put_if_absent()
    for storage in (lossy, never):
        unregister_memory(storage.uri)


@pytest.mark.parametrize("path", ["link/x", "link", "fifo", "folder"])
def test_links_and_special_files_are_not_followed_or_opened(tmp_path: Path, path: str) -> None:
    other = tmp_path / "other"
    other.mkdir()
    (other / "x").write_text("secret")
    table = tmp_path / "table"
    (table / "folder").mkdir(parents=True)
    (table / "link").symlink_to(other)

    os.mkfifo(table / "fifo")
    folder = DiskFolder(table)
    with raises(CorruptFile, file=f"{table}/{path}"), folder.open(path):
        pass
    with raises(CorruptFile, file=f"{table}/{path}"):
        folder.info(path)


@pytest.mark.parametrize("address", ["s3://bucket/a?x=1", "s3://key:secret@bucket/a", "ftp://host/a", ""])
def test_addresses_that_are_not_valid_are_refused(address: str) -> None:
    with pytest.raises(ConfigError) as refused:
        open_table_folder(address)
    assert "secret" not in str(refused.value)
