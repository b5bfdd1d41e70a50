"""The sinks keep the contract of sinks."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest
from deltalake import DeltaTable

from stateflow.api.schema import RowSchema
from stateflow.api.sink import Sink, SinkContext, SinkTable
from stateflow.connectors import DeltaSink
from stateflow.connectors.files.sink import FileSink
from stateflow.errors import JobDefinitionError, SinkDiverged
from stateflow.state.handles import Committable
from stateflow.testing.conformance.sink import SinkConformance
from stateflow.testing.conformance.sink_table import TableUnderTest
from stateflow.testing.sinks import FolderSink, _Table
from tests.support import delta_tables, file_tables, folder_tables
from tests.support.errors import raises


class Other(msgspec.Struct):
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


@pytest.mark.long(reason="draws many histories of a table")
class InFolder(SinkConformance):
    @pytest.fixture
    def address(self, tmp_path: Path) -> str:
        return str(tmp_path / "table")


class TestFolderSink(InFolder):
    has_slow_drivers = True
    factory = staticmethod(folder_sink)
    checks_columns = False

    def read(self, sink: Sink) -> Iterable[Mapping[str, Any]]:
        return folder_tables.rows(Path(sink.location))

    def test_a_version_whose_files_are_gone_is_refused(self, published: TableUnderTest) -> None:
        to_version = published.open().plan_rewind(2).to_version
        for path in (Path(published.sink.location) / "data").iterdir():
            path.unlink()
        with raises(SinkDiverged, version=to_version):
            published.open().plan_rewind(2)
        with raises(SinkDiverged, version=to_version):
            published.open().rewind(to_version, 9)


class TestDeltaAppends(InFolder):
    factory = staticmethod(delta_append)

    def read(self, sink: Sink) -> Iterable[Mapping[str, Any]]:
        return delta_tables.visible(sink.location)


class TestDeltaUpserts(TestDeltaAppends):
    actions = 15
    has_slow_drivers = True
    factory = staticmethod(delta_upsert)


@pytest.mark.slow(reason="runs the suite of sinks once more")
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
    has_slow_drivers = True
    factory = staticmethod(file_sink)

    def read(self, sink: Sink) -> Iterable[Mapping[str, Any]]:
        return file_tables.rows(Path(sink.location))


class TestPartitionedFiles(TestFileSink):
    factory = staticmethod(partitioned_json)


# -- the conformance suite of sinks finds planted bugs ----------------------------------------------------------------


class _NeverStale(_Table):
    """Reads the version again when it commits, so that a paused driver publishes."""

    def commit(self, token: int, committables: list[Committable]) -> int | None:
        return _Table(self._folder, self._application).commit(token, committables)


class _TwoSteps(_Table):
    """Publishes the rows before the token."""

    def commit(self, token: int, committables: list[Committable]) -> int | None:
        if committables and _Table.commit(self, self.token or 0, committables) is None:
            return None
        return _Table(self._folder, self._application)._append(token, {"paths": []})


class _Broken(FolderSink):
    table: type[_Table]

    def open_table(self, context: SinkContext) -> SinkTable:
        return self.table(self.folder, context.application)


class NeverStale(_Broken):
    table = _NeverStale


class TwoSteps(_Broken):
    table = _TwoSteps


class SweepsAll(FolderSink):
    def sweep(self, context: SinkContext, is_leftover: Callable[[int, int, str], bool]) -> list[str]:
        return super().sweep(context, lambda *_: True)


def never_stale(address: str) -> Sink:
    return NeverStale(address)


def two_steps(address: str) -> Sink:
    return TwoSteps(address)


def sweeps_all(address: str) -> Sink:
    return SweepsAll(address)


class _Suite(SinkConformance):
    checks_columns = False
    steps = 40

    def read(self, sink: Sink) -> Iterable[Mapping[str, Any]]:
        return folder_tables.rows(Path(sink.location))


class NeverStaleSuite(_Suite):
    factory = staticmethod(never_stale)


class TwoStepsSuite(_Suite):
    factory = staticmethod(two_steps)


class SweepsAllSuite(_Suite):
    factory = staticmethod(sweeps_all)


def _table(suite: SinkConformance, folder: Path) -> TableUnderTest:
    return TableUnderTest(type(suite).factory, str(folder / "table"), suite.context(folder), suite.read)


def test_a_handle_that_is_never_out_of_date(tmp_path: Path) -> None:
    table = _table(NeverStaleSuite(), tmp_path)
    table.sink.prepare(table.context)
    with pytest.raises(AssertionError):
        NeverStaleSuite().test_of_two_handles_one_commits(table)


def test_a_sweep_that_removes_pending_output(tmp_path: Path) -> None:
    table = _table(SweepsAllSuite(), tmp_path)
    table.sink.prepare(table.context)
    with pytest.raises(AssertionError):
        SweepsAllSuite().test_a_sweep_removes_only_leftovers(table)


@pytest.mark.slow(reason="a driver is killed at 40 lines; the bug that it finds is in the handle of the other test")
def test_rows_and_token_in_two_steps(tmp_path: Path) -> None:
    suite = TwoStepsSuite()
    with pytest.raises(AssertionError):
        suite.test_drivers_that_are_interrupted_neither_lose_nor_repeat_a_row(
            _table(suite, tmp_path), tmp_path, "killed"
        )
