"""The sinks keep the contract of sinks."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest
from deltalake import DeltaTable

from stateflow.api.schema import RowSchema
from stateflow.api.sink import Sink
from stateflow.connectors import DeltaSink
from stateflow.connectors.files.sink import FileSink
from stateflow.errors import JobDefinitionError
from stateflow.testing.conformance.sink import SinkConformance
from stateflow.testing.conformance.sink_table import TableUnderTest
from stateflow.testing.sinks import FolderSink
from tests.support import delta_tables, file_tables, folder_tables


class Other(msgspec.Struct):
    """A row whose `text` has another type than in the suite."""

    id: int
    text: float


def folder_sink(address: str) -> Sink:
    return FolderSink(address)


def delta_append(address: str) -> Sink:
    return DeltaSink(address)


def delta_upsert(address: str) -> Sink:
    return DeltaSink(address, mode="upsert", keys="id")


def delta_partitions(address: str) -> Sink:
    return DeltaSink(address, mode="upsert", keys="id", partition_by="text")


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


@pytest.mark.slow
class TestDeltaPartitions(InFolder):
    factory = staticmethod(delta_partitions)

    def read(self, sink: Sink) -> Iterable[Mapping[str, Any]]:
        rows: list[dict[str, Any]] = DeltaTable(sink.location).to_pyarrow_table().to_pylist()
        return rows

    def test_a_table_with_other_columns_is_refused(self, table: TableUnderTest) -> None:
        """Its other column would be a partition of floats."""
        with pytest.raises(JobDefinitionError):
            table.sink.check(replace(table.context, schema=RowSchema.of(Other)))


class TestFileSink(InFolder):
    factory = staticmethod(file_sink)

    def read(self, sink: Sink) -> Iterable[Mapping[str, Any]]:
        return file_tables.rows(Path(sink.location))


class TestPartitionedFiles(TestFileSink):
    factory = staticmethod(partitioned_json)
