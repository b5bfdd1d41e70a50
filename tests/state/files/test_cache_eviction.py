"""Caches of a host stay below their limit, and the least recently used go first."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from stateflow.state.host_cache import mark_used, trim


def _cache(folder: Path, subtask: int, used: int, *sizes: int) -> Path:
    cache = folder / "job" / "op" / str(subtask) / "cache"
    cache.mkdir(parents=True)
    for number, size in enumerate(sizes):
        (cache / f"{number:064x}").write_bytes(bytes(size))
    os.utime(cache, (used, used))
    return cache


def _size(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.glob("*/*/*/cache/*"))


def test_the_least_recently_used_goes_first(tmp_path: Path) -> None:
    old, new, newest = (_cache(tmp_path, n, 100 + n, 50, 50) for n in range(3))
    assert trim(tmp_path, 200) == 100
    assert [len(list(cache.iterdir())) for cache in (old, new, newest)] == [0, 2, 2]
    mark_used(new)
    assert trim(tmp_path, 150) == 100
    assert [len(list(cache.iterdir())) for cache in (old, new, newest)] == [0, 2, 0]


def test_a_file_that_a_store_has_as_well_counts_for_nothing_and_stays(tmp_path: Path) -> None:
    cache = _cache(tmp_path, 0, 100, 70, 30)
    (tmp_path / "store").mkdir()
    os.link(cache / f"{0:064x}", tmp_path / "store" / "000001.sst")
    assert trim(tmp_path, 30) == 0
    assert trim(tmp_path, 29) == 30
    assert [path.stat().st_size for path in cache.iterdir()] == [70]


def test_what_is_being_fetched_stays(tmp_path: Path) -> None:
    cache = _cache(tmp_path, 0, 100, 70)
    (cache / "incoming-1-abc").write_bytes(bytes(1000))
    assert trim(tmp_path, 0) == 70
    assert [path.name for path in cache.iterdir()] == ["incoming-1-abc"]


def test_a_folder_that_does_not_exist_is_empty(tmp_path: Path) -> None:
    assert trim(tmp_path / "nowhere", 0) == 0
    mark_used(tmp_path / "nowhere")


@given(
    st.lists(st.tuples(st.integers(0, 9), st.lists(st.integers(0, 50), max_size=4)), max_size=6), st.integers(0, 200)
)
def test_never_more_than_the_limit_is_left(caches: list[tuple[int, list[int]]], limit: int) -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for subtask, (used, sizes) in enumerate(caches):
            _cache(folder, subtask, used, *sizes)
        before = _size(folder)
        assert trim(folder, limit) == before - _size(folder)
        assert _size(folder) <= limit
        assert before > limit or _size(folder) == before
