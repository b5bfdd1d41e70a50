"""The conformance suite of sinks finds planted bugs."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import pytest

from stateflow.api.sink import Sink, SinkContext, SinkTable
from stateflow.state.handles import Committable
from stateflow.testing.conformance.sink import SinkConformance
from stateflow.testing.conformance.sink_table import TableUnderTest
from stateflow.testing.sinks import FolderSink, _Table
from tests.support import folder_tables


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


def test_rows_and_token_in_two_steps(tmp_path: Path) -> None:
    suite = TwoStepsSuite()
    with pytest.raises(AssertionError):
        suite.test_drivers_that_are_interrupted_neither_lose_nor_repeat_a_row(
            _table(suite, tmp_path), tmp_path, "killed"
        )
