"""Objects in memory."""

from __future__ import annotations

import pytest

from stateflow.storage import MemoryStorage, Storage, open_storage
from stateflow.testing.conformance.storage import StorageConformance
from tests.storage.savepoint_copies import SavepointCopies


class TestMemoryStorage(SavepointCopies, StorageConformance):
    @pytest.fixture
    def storage(self) -> Storage:
        return MemoryStorage()


def test_one_name_is_one_storage_in_a_process_which_copies_what_it_stores() -> None:
    first, again, other = (open_storage(uri) for uri in ("memory://a", "memory://a", "memory://b"))
    data = bytearray(b"1")
    first.put_new("x", data)
    data[0] = 0
    assert again.get("x") == b"1" and other.list("") == []
    assert first.local_path("x") is None
