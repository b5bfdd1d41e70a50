"""Names of savepoints, and what counts as a savepoint in a storage."""

from __future__ import annotations

import pytest

from stateflow.checkpoint.savepoints.catalog import TOMBSTONE, list_savepoints, put_marker, read_savepoint
from stateflow.checkpoint.savepoints.names import check_savepoint_name
from stateflow.errors import ConfigError
from stateflow.storage import MemoryStorage
from tests.support.errors import raises


@pytest.mark.parametrize("name", ["latest", "7", "007"])
def test_a_name_that_means_a_checkpoint_is_refused(name: str) -> None:
    with raises(ConfigError, name=name):
        check_savepoint_name(name)
    assert check_savepoint_name(f"{name}-old") == f"{name}-old"


def test_an_abandoned_savepoint_does_not_exist_and_cannot_be_completed() -> None:
    storage, folder = MemoryStorage(), "savepoints/mine-00000000/"
    assert put_marker(storage, folder, TOMBSTONE)
    assert not put_marker(storage, folder, b"a document")
    assert read_savepoint(storage, folder) is None
    assert list_savepoints(storage) == []
