"""Delta tables that cannot be read or written directly are refused by name before Spark starts, on disk and in buckets.

Nothing of them is changed.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from stateflow import DeltaSink, DeltaSource
from stateflow.api.schema import RowSchema
from stateflow.api.sink import SinkContext
from stateflow.config.settings import SourceSettings
from stateflow.errors import EnvironmentUnsupported, SinkRefused
from stateflow.storage import open_storage
from tests.support.cli_fixture import Case, CliFixture, check, invoke
from tests.support.errors import raises


class Row(msgspec.Struct):
    id: int


_ID = "5fba94ed-9794-4965-ba6e-6ee3c0d22af9"
_FIELDS = [{"name": "id", "type": "long", "nullable": True, "metadata": {}}]
_ENTRY = f"_delta_log/{0:020}.json"
_ONLY_WRITERS = ("inCommitTimestamp", "rowTracking")


@pytest.fixture(params=["disk", "s3"])
def table(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """The address of a table, on disk and in a bucket; afterwards, it has only the entry that a test has written."""
    address: str = str(tmp_path / "table") if request.param == "disk" else request.getfixturevalue("s3")
    yield address
    assert [blob.key for blob in open_storage(address).list("")] == [_ENTRY]


def _create(table: str, *features: str) -> None:
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
    open_storage(table).put_new(_ENTRY, "\n".join(map(json.dumps, actions)).encode())


CATALOG, UNKNOWN = "catalogManaged", "futureFeature"
TABLES = {
    "managed by Unity": (("inCommitTimestamp", "vacuumProtocolCheck", CATALOG), CATALOG, "managed by a catalog"),
    "managed by Unity, preview": (("catalogOwned-preview",), CATALOG, "managed by a catalog"),
    "not on the list": ((UNKNOWN,), UNKNOWN, f"DROP FEATURE {UNKNOWN}"),
}


@pytest.mark.parametrize("name", TABLES)
def test_a_source_and_a_sink_refuse_a_table_with_such_a_feature_by_its_name(table: str, name: str) -> None:
    features, feature, way_out = TABLES[name]
    _create(table, *features)
    with raises(SinkRefused, feature=feature, table=table) as refused:
        DeltaSink(table).check(SinkContext("job", "out", RowSchema.of(Row)))
    assert way_out in refused.value.hint
    with raises(EnvironmentUnsupported, features=[feature], table=table) as unread:
        DeltaSource(table, schema=Row).check_settings(SourceSettings())
    assert "another table" in unread.value.hint or "copy it to a table" in unread.value.hint


def test_a_feature_that_matters_to_writers_is_refused_by_the_sink_only(table: str) -> None:
    _create(table, "rowTracking")
    DeltaSource(table, schema=Row).check_settings(SourceSettings())
    with raises(SinkRefused, feature="rowTracking", table=table):
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


def _write_job(cli: CliFixture, role: str, table: str) -> None:
    rows = READERS.get(role, ROWS).format(table=f"DeltaSource({table!r}, schema=Row)", path=repr(table))
    sink = f"DeltaSink({table!r})" if role == "sink" else "sink()"
    cli.write(f"{HEAD}    {rows}.sink_to({sink}, uid='out')")


@pytest.fixture
def job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> CliFixture:
    """A job that must not start Spark."""

    def start_spark(*_: object) -> None:
        raise AssertionError("Spark is started")

    monkeypatch.setattr("stateflow.launch.start_spark", start_spark)
    (tmp_path / "job").mkdir()
    return CliFixture(tmp_path / "job")


@pytest.mark.parametrize("role", [*READERS, "sink"])
def test_a_job_with_such_a_table_ends_before_spark_starts(job: CliFixture, table: str, role: str) -> None:
    _create(table, CATALOG)
    refused = Case(lambda cli: _write_job(cli, role, table), SinkRefused, {"feature": CATALOG, "table": table},
                   hint="managed by a catalog")  # fmt: skip
    if role != "sink":
        facts = {"features": [CATALOG], "table": table}
        refused = Case(refused.make, EnvironmentUnsupported, facts, hint="an engine of the catalog")
    check(job, refused)


@pytest.mark.parametrize("feature", [CATALOG, UNKNOWN])
@pytest.mark.parametrize("role", ["source", "sink"])
def test_a_check_reports_such_a_table_without_spark(job: CliFixture, table: str, role: str, feature: str) -> None:
    job.run()
    _create(table, feature)
    _write_job(job, role, table)
    before = job.on_disk()
    checked = invoke("check", str(job.job), "--against", job.root, *job.command()[4:], "--json")
    assert checked.exit_code == 20, checked.output
    (problem,) = (each for each in json.loads(checked.stdout)["problems"] if repr(table) in each["message"])
    assert problem["code"] == ("sink-refused" if role == "sink" else "environment-unsupported")
    assert repr(feature) in problem["message"] and problem["hint"]
    assert job.on_disk() == before
