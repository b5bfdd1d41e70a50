"""Stores for tests of what lies over them: over dictionaries and over RocksDB, with their reads counted."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from stateflow.state.kinds.keyed_state import KeyedState
from tests.support.stores import CountingStore, DictStoreFixture, RocksStoreFixture, StoreFixture


@pytest.fixture(scope="module", params=["dict", "rocksdb"])
def stores(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> StoreFixture:
    return DictStoreFixture() if request.param == "dict" else RocksStoreFixture(tmp_path_factory.mktemp("rocksdb"))


@pytest.fixture
def store(stores: StoreFixture) -> Iterator[CountingStore]:
    watched = CountingStore(stores.new())
    yield watched
    watched.close()


@pytest.fixture
def state(store: CountingStore) -> KeyedState:
    return KeyedState(store)
