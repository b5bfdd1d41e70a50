"""The sinks keep the contract of sinks."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import pytest

from stateflow.api.sink import Sink
from stateflow.connectors import DeltaSink
from stateflow.connectors.files.sink import FileSink
from stateflow.testing.conformance.sink import SinkConformance
from stateflow.testing.sinks import FolderSink
from tests.support import delta_tables, file_tables, folder_tables


def folder_sink(address: str) -> Sink:
    return FolderSink(address)


def delta_append(address: str) -> Sink:
    return DeltaSink(address)


def delta_upsert(address: str) -> Sink:
    return DeltaSink(address, mode="upsert", keys="id")


def file_sink(address: str) -> Sink:
    return FileSink(address)


def partitioned_json(address: str) -> Sink:
    return FileSink(address, format="json", partition_by="text")


class InFolder(SinkConformance):
    """A sink whose table is a folder."""

    @pytest.fixture
    def address(self, tmp_path: Path) -> str:
        return str(tmp_path / "table")


class TestFolderSink(InFolder):
    factory = staticmethod(folder_sink)
    checks_columns = False

    def read(self, sink: Sink) -> Iterable[Mapping[str, Any]]:
        return folder_tables.rows(Path(sink.location))


class TestDeltaAppends(InFolder):
    factory = staticmethod(delta_append)

    def read(self, sink: Sink) -> Iterable[Mapping[str, Any]]:
        return delta_tables.visible(sink.location)


class TestDeltaUpserts(TestDeltaAppends):
    factory = staticmethod(delta_upsert)


class TestFileSink(InFolder):
    factory = staticmethod(file_sink)

    def read(self, sink: Sink) -> Iterable[Mapping[str, Any]]:
        return file_tables.rows(Path(sink.location))


class TestPartitionedFiles(TestFileSink):
    factory = staticmethod(partitioned_json)
