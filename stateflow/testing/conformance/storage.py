"""The conformance suite of storages.

To test a storage, subclass `StorageConformance` in a test module with a fixture::

    import pytest
    from stateflow.testing.conformance.storage import StorageConformance

    class TestMyStorage(StorageConformance):
        @pytest.fixture
        def storage(self, tmp_path):
            return MyStorage(...)          # empty, and not shared with other tests

A storage that passes is fit for a job root, as far as tests in one process can show; each start also runs the race
probe. To see values in assertion failures, add this to a conftest:
``pytest.register_assert_rewrite("stateflow.testing.conformance.storage")``.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import TypeVar

import pytest

from stateflow.errors import CorruptFile, DataError, MissingFile, StorageError
from stateflow.storage import BlobInfo, MemoryStorage, PutResult, Storage

R = TypeVar("R")

ESCAPES = ("", "/", "/a", "a/", "a//b", ".", "..", "../a", "a/..", "a/../../b", "./a", "a/./b", "a\0b")
"""Keys that could escape a storage, or that are not in normal form."""

_KEYS = ("a", "a-b", "a.b", "ab/1", "ab/10", "ab/2", "ab/x/y/z", "abc", "b/a", "Ä", "é/e")


class StorageConformance:
    """Tests of the contract of `stateflow.storage.Storage`."""

    racers = 8
    """Number of threads that race for a key."""
    rounds = 20
    """Number of keys that they race for."""

    # -- one object ---------------------------------------------------------------------------------------------

    @pytest.mark.parametrize("data", [b"", b"x", b"\0\r\n\xff", bytes(range(256)) * 5000], ids=len)
    def test_a_stored_object_is_read(self, storage: Storage, data: bytes) -> None:
        assert storage.put_new("folder/object", data) is PutResult.CREATED
        assert storage.get("folder/object") == data
        assert storage.size("folder/object") == len(data)
        assert storage.list("") == [BlobInfo("folder/object", len(data))]

    def test_an_existing_key_is_not_overwritten(self, storage: Storage) -> None:
        storage.put_new("a/b", b"first")
        assert storage.put_new("a/b", b"second") is PutResult.EXISTS
        assert storage.put_new("a/b", b"first") is PutResult.EXISTS
        assert storage.get("a/b") == b"first"

    def test_a_missing_object(self, storage: Storage, tmp_path: Path) -> None:
        storage.put_new("folder/object", b"x")
        for key in ("nothing", "folder/nothing", "folder", "folder/objec", "folder/object/below"):
            assert storage.size(key) is None
            for read in (
                lambda k: storage.get(k),
                lambda k: storage.fetch(k, tmp_path / "target"),
                lambda k: storage.fetch_part(k, 0, 0, tmp_path / "target"),
                lambda k: storage.fetch_part(k, 0, 1, tmp_path / "target"),
            ):
                with pytest.raises(MissingFile) as missing:
                    read(key)
                assert missing.value.facts["key"] == key
        assert not (tmp_path / "target").exists()

    def test_an_object_above_the_size_limit_is_refused(self, storage: Storage) -> None:
        storage.put_new("object", b"12345")
        assert storage.get("object", 5) == b"12345"
        with pytest.raises(DataError) as refused:
            storage.get("object", 4)
        assert refused.value.facts["key"] == "object"

    def test_an_object_that_is_larger_than_recorded_is_not_fetched(self, storage: Storage, tmp_path: Path) -> None:
        storage.put_new("object", b"12345")
        with pytest.raises(CorruptFile) as refused:
            storage.fetch("object", tmp_path / "target", 4)
        assert refused.value.facts["file"] == "object"
        assert not (tmp_path / "target").exists()
        storage.fetch("object", tmp_path / "target", 5)
        assert (tmp_path / "target").read_bytes() == b"12345"

    # -- files --------------------------------------------------------------------------------------------------

    def test_a_file_is_stored_and_fetched(self, storage: Storage, tmp_path: Path) -> None:
        source, target = tmp_path / "source", tmp_path / "target"
        data = bytes(range(256)) * 5000
        source.write_bytes(data)
        storage.put_file("folder/file", source)
        source.unlink()
        assert storage.get("folder/file") == data
        storage.fetch("folder/file", target)
        assert target.read_bytes() == data
        target.unlink()
        assert storage.size("folder/file") == len(data)

    @pytest.mark.parametrize(("offset", "size"), [(0, 10), (100, 0), (1_000_000, 200_000), (1_279_990, 100)])
    def test_a_part_of_an_object_is_fetched(self, storage: Storage, tmp_path: Path, offset: int, size: int) -> None:
        data = bytes(range(256)) * 5000
        storage.put_new("folder/object", data)
        storage.fetch_part("folder/object", offset, size, tmp_path / "target")
        assert (tmp_path / "target").read_bytes() == data[offset : offset + size]

    def test_parts_of_an_open_object_are_read_in_any_order(self, storage: Storage) -> None:
        data = bytes(range(256)) * 5000
        storage.put_new("folder/object", data)
        with storage.open_parts("folder/object") as read:
            for offset, size in ((1_000_000, 200_000), (0, 10), (1_279_990, 100), (5, 1)):
                assert read(offset, size) == data[offset : offset + size]
        with pytest.raises(MissingFile), storage.open_parts("folder/missing") as read:
            read(0, 1)

    @pytest.mark.parametrize("size", [0, 100, 6_000_000])
    def test_an_object_is_read_as_a_file(self, storage: Storage, size: int) -> None:
        data = bytes(range(250)) * (size // 250) + b"x" * (size % 250)
        storage.put_new("folder/object", data)
        with storage.open("folder/object") as file:
            assert file.seek(0, 2) == size
            assert file.read(10) == b""
            for offset, length in ((size // 2, 70_000), (0, 10), (max(0, size - 40), 100), (size // 3, 3_000_000)):
                file.seek(offset)
                assert file.read(length) == data[offset : offset + length]
        with pytest.raises(MissingFile), storage.open("folder/missing"):
            pass

    def test_an_object_has_a_version_of_its_own(self, storage: Storage) -> None:
        assert storage.info("folder/object") is None
        storage.put_new("folder/object", b"first")
        first, (listed,) = storage.info("folder/object"), storage.list("folder/")
        assert first is not None
        assert (first, first.version) == (BlobInfo("folder/object", 5), listed.version)
        assert abs(first.modified_ms - listed.modified_ms) < 1000
        storage.delete(["folder/object"])
        storage.put_new("folder/object", b"other")
        again = storage.info("folder/object")
        assert again is not None and again.version != first.version

    def test_a_file_does_not_overwrite_an_object(self, storage: Storage, tmp_path: Path) -> None:
        source = tmp_path / "source"
        source.write_bytes(b"second")
        storage.put_new("a/b", b"first")
        with pytest.raises(StorageError):
            storage.put_file("a/b", source)
        assert storage.get("a/b") == b"first"

    def test_storing_an_equal_file_again_succeeds(self, storage: Storage, tmp_path: Path) -> None:
        """A response may be lost after the write; and content-addressed files with equal bytes have one name."""
        for number, data in enumerate([b"", b"x", bytes(range(256)) * 5000]):
            for copy in range(2):
                source = tmp_path / f"{number}-{copy}"
                source.write_bytes(data)
                storage.put_file(f"files/{number}", source)
            assert storage.get(f"files/{number}") == data

    # -- copies -------------------------------------------------------------------------------------------------

    def test_an_object_is_copied_from_the_same_and_another_storage(self, storage: Storage) -> None:
        data = bytes(range(256)) * 5000
        for source in (storage, MemoryStorage()):
            source.put_new("folder/object", data)
            for _ in range(2):
                storage.copy_from(source, "folder/object", "copies/object")
            assert storage.get("copies/object") == data
            with pytest.raises(MissingFile):
                storage.copy_from(source, "folder/nothing", "copies/nothing")
            storage.delete(["copies/object"])

    def test_concurrent_copies_of_equal_objects_to_one_key(self, storage: Storage) -> None:
        keys = [f"folder/{number}" for number in range(self.racers)]
        for key in keys:
            storage.put_new(key, b"equal")
        at_once([partial(storage.copy_from, storage, key, "copies/equal") for key in keys])
        assert storage.get("copies/equal") == b"equal"

    def test_a_local_path_has_the_content_of_the_object(self, storage: Storage) -> None:
        storage.put_new("folder/object", b"x")
        path = storage.local_path("folder/object")
        assert path is None or path.read_bytes() == b"x"

    # -- listing ------------------------------------------------------------------------------------------------

    @pytest.mark.parametrize("prefix", ["", "a", "a-", "ab", "ab/", "ab/1", "ab/x/", "b/", "c", "é/", "ab/x/y/z"])
    def test_a_list_has_all_keys_with_a_prefix_in_order(self, storage: Storage, prefix: str) -> None:
        for key in reversed(_KEYS):
            storage.put_new(key, key.encode())
        wanted = [BlobInfo(key, len(key.encode())) for key in sorted(_KEYS) if key.startswith(prefix)]
        assert storage.list(prefix) == wanted
        for after in (*_KEYS, "", "ab", "ab/", "ab/100", "zz"):
            assert storage.list(prefix, after) == [blob for blob in wanted if blob.key > after]

    def test_the_folders_below_a_folder_are_listed_by_name(self, storage: Storage) -> None:
        assert storage.folders("") == storage.folders("none/") == ()
        for key in ("a/x/1", "a/x/2/3", "a/y/1", "a/file", "ab/z/1"):
            storage.put_new(key, b"x")
        assert (storage.folders("a/"), storage.folders("ab/"), storage.folders("")) == (("x", "y"), ("z",), ("a", "ab"))

    def test_an_empty_storage_lists_nothing(self, storage: Storage) -> None:
        assert storage.list("") == [] and storage.list("a/") == [] and storage.list("a/", "a/b") == []

    # -- deleting -----------------------------------------------------------------------------------------------

    def test_only_deleted_objects_are_missing(self, storage: Storage) -> None:
        for key in _KEYS:
            storage.put_new(key, b"x")
        storage.delete(["ab/1", "ab/x/y/z", "nothing", "ab", "ab/2/below"])
        storage.delete(iter(["ab/1"]))
        storage.delete([])
        assert [blob.key for blob in storage.list("")] == sorted({*_KEYS} - {"ab/1", "ab/x/y/z"})
        assert storage.size("ab/1") is None
        assert storage.put_new("ab/1", b"again") is PutResult.CREATED

    # -- races --------------------------------------------------------------------------------------------------

    def test_one_of_many_concurrent_writers_creates_a_key(self, storage: Storage) -> None:
        for number in range(self.rounds):
            key = f"log/{number:020d}"
            contents = [f"{racer} ".encode() * 1000 for racer in range(self.racers)]
            results = at_once([partial(storage.put_new, key, content) for content in contents])
            assert results.count(PutResult.CREATED) == 1
            assert results.count(PutResult.EXISTS) == self.racers - 1
            assert storage.get(key) == contents[results.index(PutResult.CREATED)]

    def test_a_reader_never_sees_a_partial_object(self, storage: Storage) -> None:
        data = bytes(range(256)) * 4096
        done = threading.Event()

        def write() -> None:
            for number in range(4):
                storage.put_new(f"data/{number}", data)
            done.set()

        def read() -> list[int]:
            sizes: list[int] = []
            while not done.is_set():
                for blob in storage.list("data/"):
                    sizes += [blob.size, len(storage.get(blob.key))]
            return sizes

        _, *seen = at_once([write, read, read])
        assert {size for sizes in seen if sizes for size in sizes} <= {len(data)}

    def test_writes_succeed_while_other_threads_empty_the_folder(self, storage: Storage, tmp_path: Path) -> None:
        source = tmp_path / "source"
        source.write_bytes(b"x")

        def create_and_delete(racer: int) -> list[PutResult]:
            results = []
            for number in range(self.rounds):
                key = f"data/folder/{racer}-{number}"
                results.append(storage.put_new(key, b"x"))
                storage.put_file(f"{key}-file", source)
                storage.delete([key, f"{key}-file"])
            return results

        racers = [partial(create_and_delete, racer) for racer in range(4)]
        assert {result for results in at_once(racers) for result in results} == {PutResult.CREATED}
        assert storage.list("") == []

    # -- names --------------------------------------------------------------------------------------------------

    @pytest.mark.parametrize("key", ESCAPES)
    def test_a_key_cannot_leave_the_storage(self, storage: Storage, tmp_path: Path, key: str) -> None:
        file = tmp_path / "file"
        file.write_bytes(b"x")
        uses: list[Callable[[], object]] = [
            lambda: storage.put_new(key, b"x"),
            lambda: storage.put_file(key, file),
            lambda: storage.get(key),
            lambda: storage.fetch(key, tmp_path / "target"),
            lambda: storage.fetch_part(key, 0, 1, tmp_path / "target"),
            lambda: storage.size(key),
            lambda: storage.delete([key]),
        ]
        for use in uses:
            with pytest.raises(DataError) as refused:
                use()
            assert not isinstance(refused.value, MissingFile)
            assert refused.value.facts["key"] == key
        assert not (tmp_path / "target").exists()
        assert storage.list("") == []

    @pytest.mark.parametrize("prefix", ["../", "a/../", "a/../../", "./"])
    def test_a_list_does_not_leave_the_storage(self, storage: Storage, prefix: str) -> None:
        storage.put_new("a/b", b"x")
        try:
            found = storage.list(prefix)
        except DataError:
            found = []
        assert found == []


def at_once(works: Sequence[Callable[[], R]]) -> list[R]:
    """Calls all functions concurrently, in threads that start together. Returns their results in order."""
    start = threading.Barrier(len(works))

    def wait_and_work(work: Callable[[], R]) -> R:
        start.wait()
        return work()

    with ThreadPoolExecutor(len(works)) as pool:
        return list(pool.map(wait_and_work, works))
