"""The Iceberg sink keeps the contract of sinks."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, ClassVar

import pytest

from stateflow.api.sink import Sink
from stateflow.connectors.iceberg.sink import IcebergSink
from stateflow.testing.conformance.sink import SinkConformance
from tests.support import iceberg_tables


def iceberg_sink(address: str) -> Sink:
    return IcebergSink("db.conforming", catalog="tests", properties=iceberg_tables.properties(Path(address)))


@pytest.mark.long(reason="draws many histories of a table")
class TestIcebergSink(SinkConformance):
    factory = staticmethod(iceberg_sink)
    sweeps = False
    has_slow_drivers = True
    steps = 2
    actions = 12
    failpoints: ClassVar[tuple[str, ...]] = (*SinkConformance.failpoints, "iceberg.before-commit")

    @pytest.fixture
    def address(self, tmp_path: Path) -> str:
        iceberg_tables.create_catalog(tmp_path / "lake")
        return str(tmp_path / "lake")

    def read(self, sink: Sink) -> Iterable[Mapping[str, Any]]:
        table = iceberg_tables.catalog_in(_folder(sink)).load_table(sink.location.removeprefix("tests."))
        return iceberg_tables.rows(table)


def _folder(sink: Sink) -> Path:
    assert isinstance(sink, IcebergSink)
    return Path(dict(sink._settings.properties)["warehouse"].removeprefix("file://")).parent
