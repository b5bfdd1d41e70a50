"""Which job roots a server of pages shows."""

from __future__ import annotations

from pathlib import Path
from unittest import mock

import pytest

from stateflow.checkpoint.log.job_root import JobRoot, NewJob
from stateflow.clock import SystemClock
from stateflow.errors import ConfigError, StorageError
from stateflow.storage import MemoryStorage, PosixStorage, Storage, register_memory, unregister_memory
from stateflow.ui.catalog import RootCatalog, SearchLimits, find_job_roots, job_at
from stateflow.ui.jobs import JobList
from tests.support.errors import raises
from tests.ui.pages_job import Pages


def make_root(storage: Storage, name: str = "job") -> None:
    JobRoot.create_or_open(storage, SystemClock(), NewJob(name, 4, {}), "test").claim()


def make_roots(folder: Path, *names: str) -> None:
    for name in names:
        make_root(PosixStorage(folder / name), name.rpartition("/")[2])


def test_job_roots_in_a_folder_are_found_whatever_their_names(tmp_path: Path) -> None:
    names = ["a", "team/b", "team/x/c", "s3: b", "ü %41 #?", "<b>", "deep/1/2/3/4"]
    make_roots(tmp_path, *names)
    (tmp_path / "other").mkdir()
    (tmp_path / "file").write_text("")
    catalog = RootCatalog([], [str(tmp_path)])
    catalog.search(str(tmp_path))
    rows = Pages(catalog).get("jobs", JobList)
    assert {row["job_root"] for row in rows["jobs"]} == {str(tmp_path / name) for name in names[:-1]}
    assert {row["problem"] for row in rows["jobs"]} == {None}
    assert len({row["id"] for row in rows["jobs"]}) == len(names) - 1
    assert rows["searches"] == [
        {"location": str(tmp_path), "job_roots_count": len(names) - 1, "truncated": False, "problem": None}
    ]
    for row in rows["jobs"]:
        assert Pages(catalog).http.get(f"/api/v1/jobs/{row['id']}").status_code == 200


def test_a_job_root_itself_and_objects_in_a_bucket_are_found() -> None:
    storage = MemoryStorage("memory://catalog")
    register_memory(storage)
    try:
        for name in ("a", "team/b"):
            part = MemoryStorage("memory://part")
            make_root(part)
            for blob in part.list(""):
                storage.put_new(f"{name}/{blob.key}", part.get(blob.key))
        assert find_job_roots(storage) == (["a/", "team/b/"], False)
        make_root(storage)
        assert find_job_roots(storage) == ([""], False)
    finally:
        unregister_memory(storage.uri)


@pytest.mark.parametrize("limits", [SearchLimits(folders=5), SearchLimits(job_roots=3)])
def test_a_search_ends_at_its_limits_and_says_so(tmp_path: Path, limits: SearchLimits) -> None:
    make_roots(tmp_path, *(f"job{at}" for at in range(8)))
    found, truncated = find_job_roots(PosixStorage(tmp_path), limits)
    assert truncated and 0 < len(found) < 8


def test_a_search_that_fails_keeps_what_was_found(tmp_path: Path) -> None:
    make_roots(tmp_path, "a")
    folder = str(tmp_path)
    catalog = RootCatalog([], [folder])
    catalog.search(folder)
    with mock.patch.object(PosixStorage, "folders", side_effect=StorageError("no answer", hint="wait")):
        catalog.search(folder)
    (search,) = catalog.searches()
    assert search.problem is not None and search.problem.message == "no answer" and len(catalog.jobs()) == 1


def test_a_folder_that_does_not_exist_is_a_problem_until_it_does(tmp_path: Path) -> None:
    folder = tmp_path / "none"
    catalog = RootCatalog([], [str(folder)])
    catalog.search(str(folder))
    (search,) = catalog.searches()
    assert catalog.jobs() == {} and search.location == str(folder)
    assert search.problem is not None and search.problem.hint and search.problem.facts == {"folder": str(folder)}
    make_roots(folder, "job")
    catalog.search(str(folder))
    assert len(catalog.jobs()) == 1 and catalog.searches()[0].problem is None


def test_ids_are_the_same_in_each_process_and_different_for_each_root(tmp_path: Path) -> None:
    one, same, other = job_at(str(tmp_path / "a")), job_at(f"{tmp_path}/a/"), job_at(str(tmp_path / "b" / "a"))
    assert one.id == same.id != other.id and one.id.startswith("a-")
    assert job_at("s3://bucket/flights").id == job_at("s3://bucket/flights/").id


@pytest.mark.parametrize("address", ["", "s3://key:secret@bucket/x", "ftp://host/x", "s3:bucket"])
def test_an_address_that_cannot_be_used_is_refused_at_the_start(address: str) -> None:
    for roots, folders in (([address], []), ([], [address])):
        with raises(ConfigError):
            RootCatalog(roots, folders)
