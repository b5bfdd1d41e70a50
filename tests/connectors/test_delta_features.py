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


ROWS = "env.from_collection([Row('a', 1)], Row, uid='rows')"
LOOKUP = f"{ROWS}.lookup_join({{table}}, on='number', output=Row)"
READERS = {
    "source": "env.from_source({table}, uid='rows')",
    "look-up": LOOKUP,
    "look-up with a cache": LOOKUP.replace("output", "cache=timedelta(minutes=1), output"),
    "followed table": f"{ROWS}.key_by('key').connect(env.from_table({{path}}, schema=Price, "
    "refresh=timedelta(minutes=1), uid='table')).process(Enrich(), output=Row, uid='join')",
}
HEAD = """
from datetime import timedelta
import msgspec
from stateflow import DeltaSink, DeltaSource, KeyedBroadcastProcessFunction

class Price(msgspec.Struct):
    id: int
    deleted: bool

class Enrich(KeyedBroadcastProcessFunction):
    def process_element(self, row, ctx):
        yield row

    def process_broadcast_element(self, row, ctx):
        return ()

def build(env):
"""


@pytest.mark.parametrize("role", [*READERS, "sink"])
def test_a_job_with_such_a_table_ends_before_spark_starts(tmp_path: Path, role: str) -> None:
    table = tmp_path / "table"
    _create(table, CATALOG)
    (tmp_path / "job").mkdir()
    rows = READERS.get(role, ROWS).format(table=f"DeltaSource({str(table)!r}, schema=Row)", path=repr(str(table)))
    sink = f"DeltaSink({str(table)!r})" if role == "sink" else "sink()"

    def make(b: CliFixture) -> None:
        b.write(f"{HEAD}    {rows}.sink_to({sink}, uid='out')")

    refused = Case(make, SinkRefused, {"feature": CATALOG}, hint="managed by a catalog")
    if role != "sink":
        refused = Case(make, EnvironmentUnsupported, {"features": [CATALOG]}, hint="an engine of the catalog")
    check(CliFixture(tmp_path / "job"), refused)
