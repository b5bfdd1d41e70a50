"""Object storage over a real server of its protocol."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import pytest

from stateflow.storage import Storage
from stateflow.storage.objects import ObjectStorage
from stateflow.testing.storage import StorageConformance
from tests.servers.running import s3_server

_numbers = itertools.count()


@pytest.fixture(scope="module")
def s3(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    with s3_server(tmp_path_factory.mktemp("s3"), "bucket") as environment:
        yield environment


class TestS3(StorageConformance):
    @pytest.fixture
    def storage(self, s3: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> Storage:
        for name, value in s3.items():
            monkeypatch.setenv(name, value)
        return ObjectStorage("s3", "bucket", f"jobs/{next(_numbers)}")
