"""Delta tables that cannot be read or written directly are refused by name before Spark starts."""

from __future__ import annotations

import json
from pathlib import Path

import msgspec
import pytest

from stateflow import DeltaSink, DeltaSource
from stateflow.api.schema import RowSchema
from stateflow.api.sink import SinkContext
from stateflow.config.settings import SourceSettings
from stateflow.errors import EnvironmentUnsupported, SinkRefused
from tests.support.cli_fixture import Case, CliFixture, check
from tests.support.errors import raises


class Row(msgspec.Struct):
    id: int


_ID = "5fba94ed-9794-4965-ba6e-6ee3c0d22af9"
_FIELDS = [{"name": "id", "type": "long", "nullable": True, "metadata": {}}]
_ONLY_WRITERS = ("inCommitTimestamp", "rowTracking")


def _create(table: Path, *features: str) -> None:
    """Writes the first entry of a table's log, as its protocol defines it."""
    readers = [feature for feature in features if feature not in _ONLY_WRITERS]
    protocol = {"minReaderVersion": 3, "minWriterVersion": 7, "readerFeatures": readers, "writerFeatures": features}
    metadata = {
        "id": _ID,
        "format": {"provider": "parquet", "options": {}},
        "schemaString": json.dumps({"type": "struct", "fields": _FIELDS}),
        "partitionColumns": [],
        "configuration": {},
        "createdTime": 1,
    }
    actions = [{"commitInfo": {"timestamp": 1, "inCommitTimestamp": 1}}, {"protocol": protocol}, {"metaData": metadata}]
    (table / "_delta_log").mkdir(parents=True)
    (table / "_delta_log" / f"{0:020}.json").write_text("\n".join(map(json.dumps, actions)))


CATALOG, UNKNOWN = "catalogManaged", "futureFeature"
TABLES = {
    "managed by Unity": (("inCommitTimestamp", "vacuumProtocolCheck", CATALOG), CATALOG, "managed by a catalog"),
    "managed by Unity, preview": (("catalogOwned-preview",), CATALOG, "managed by a catalog"),
    "not on the list": ((UNKNOWN,), UNKNOWN, f"DROP FEATURE {UNKNOWN}"),
}


@pytest.mark.parametrize("name", TABLES)
def test_a_source_and_a_sink_refuse_a_table_with_such_a_feature_by_its_name(tmp_path: Path, name: str) -> None:
    features, feature, way_out = TABLES[name]
    table = tmp_path / "table"
    _create(table, *features)
    with raises(SinkRefused, feature=feature, table=str(table)) as refused:
        DeltaSink(table).check(SinkContext("job", "out", RowSchema.of(Row)))
    assert way_out in refused.value.hint
    with raises(EnvironmentUnsupported, features=[feature], table=str(table)) as unread:
        DeltaSource(table, schema=Row).check_settings(SourceSettings())
    assert "another table" in unread.value.hint or "copy it to a table" in unread.value.hint


def test_a_feature_that_matters_to_writers_is_refused_by_the_sink_only(tmp_path: Path) -> None:
    table = tmp_path / "table"
    _create(table, "rowTracking")
    DeltaSource(table, schema=Row).check_settings(SourceSettings())
    with raises(SinkRefused, feature="rowTracking", table=str(table)):
        DeltaSink(table).check(SinkContext("job", "out", RowSchema.of(Row)))


@pytest.mark.parametrize("role", ["source", "sink"])
def test_a_job_with_such_a_table_ends_before_spark_starts(tmp_path: Path, role: str) -> None:
    table = tmp_path / "table"
    _create(table, CATALOG)
    files = tmp_path / "files"
    files.mkdir()
    (tmp_path / "job").mkdir()
    read = f"DeltaSource({str(table)!r}, schema=Row)" if role == "source" else f"FileSource({str(files)!r}, schema=Row)"
    write = "sink()" if role == "source" else f"DeltaSink({str(table)!r})"
    build = f"def build(env):\n    env.from_source({read}, uid='rows').sink_to({write}, uid='out')"

    def make(b: CliFixture) -> None:
        b.write(f"from stateflow import DeltaSink, DeltaSource, FileSource\n{build}")

    refused = Case(make, SinkRefused, {"feature": CATALOG}, hint="managed by a catalog")
    if role == "source":
        refused = Case(make, EnvironmentUnsupported, {"features": [CATALOG]}, hint="an engine of the catalog")
    check(CliFixture(tmp_path / "job"), refused)
