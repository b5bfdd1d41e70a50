"""Stores for tests of what lies over them: over dictionaries and over RocksDB, with their reads counted."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from stateflow.state.keyed import KeyedState
from tests.state.kit import DictShelf, RocksShelf, Shelf, Watched


@pytest.fixture(scope="module", params=["dict", "rocksdb"])
def shelf(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Shelf:
    return DictShelf() if request.param == "dict" else RocksShelf(tmp_path_factory.mktemp("rocksdb"))


@pytest.fixture
def store(shelf: Shelf) -> Iterator[Watched]:
    watched = Watched(shelf.new())
    yield watched
    watched.close()


@pytest.fixture
def state(store: Watched) -> KeyedState:
    return KeyedState(store)
