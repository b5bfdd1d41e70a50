"""What Spark makes of tables that the sink wrote: rows, data skipping, and its own commits in between."""

from __future__ import annotations

import math
import random
import shutil
from collections import Counter
from collections.abc import Iterator
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any
from uuid import UUID

import msgspec
import pytest
from pyspark.sql import SparkSession

from stateflow.api.sink import CatalogEntry, SinkRewind
from stateflow.config.spark_versions import running_version
from stateflow.connectors import DeltaSink
from stateflow.connectors.delta import versions
from stateflow.errors import ConfigError, SinkDiverged, SinkRefused
from stateflow.runtime.spark.table_registration import check_entry, register_tables, warn_of_lost_names
from tests.support.delta_tables import Colour, Every, Inner, checkpoint, context, ids, pairs, put, snapshot
from tests.support.errors import raises

pytestmark = [
    pytest.mark.spark,
    pytest.mark.skipif(not running_version().delta_package, reason="Delta has no JARs for this Spark"),
]

_EVERY = context(Every)
_PAIR = context()
_naive = datetime.fromisoformat


def _utc(text: str) -> datetime:
    return _naive(text).replace(tzinfo=UTC)


_FILES = [
    [
        Every(
            id=1, amount=1.5, text="a", flag=True, raw=b"\x00\xff", day=date(2013, 1, 1),
            local=_naive("2013-01-01T05:00:00.123456"), instant=_utc("2013-01-01T05:00:00.123456"),
        ),
        Every(id=2, amount=-2.0, text="b"),
    ],
    [Every(id=3), Every(id=4)], [Every(id=5, amount=math.nan), Every(id=6, amount=7.0)],
    [Every(id=7, amount=math.nan)], [Every(id=8, amount=math.inf), Every(id=9, amount=-math.inf)],
    [Every(id=10, amount=0.0), Every(id=11, amount=-0.0)],
    [Every(id=12, text="x" * 31 + "yz" + "tail"), Every(id=13, text="")],
    [Every(id=14, text="é" * 40), Every(id=15, text="x" * 32 + "\U0010ffff" * 3)],
    [Every(id=16, text="q" * 5000), Every(id=17, text='"quoted"\\ \n\0')],
    [
        Every(id=-(2**63), day=date(1, 1, 1), local=_naive("0001-01-01T00:00:00"), instant=_utc("0001-01-01T00:00:00")),
        Every(
            id=2**63 - 1, day=date(9999, 12, 31), local=_naive("9999-12-31T23:59:59.999999"),
            instant=_utc("9999-12-31T23:59:59.999999"),
        ),
    ],
    [
        Every(
            id=18, day=date(1500, 2, 28), local=_naive("1500-03-01T00:00:00.000001"),
            instant=_utc("1899-12-31T23:59:59.999999"),
        )
    ],
    [
        Every(
            id=21, price=Decimal("1.50"), exact=Decimal("12345678901234567890.1234"), time=time(12, 0, 0, 1),
            lasting=timedelta(days=-1, microseconds=1), uid=UUID(int=7), colour=Colour.BLUE,
            inner=Inner(1, Decimal("-0.01"), [timedelta(1), timedelta(0)]), numbers=[1.5, None, math.nan],
            named={"a": Inner(2), "b": None},
        ),
        Every(id=22, price=Decimal("-9999999999.99"), exact=Decimal("0.0001"), time=time(), inner=Inner(-1)),
    ],
    [
        Every(
            id=23, price=Decimal("9999999999.99"), exact=Decimal("9" * 34 + ".0000"), time=time.max,
            lasting=timedelta(9999),
        ),
        Every(id=24, price=Decimal("0.00"), numbers=[], named={}, colour=Colour.RED),
    ],
    [Every(id=19, flag=False, raw=b""), Every(id=20, local=_naive("2013-01-01T05:00:00.124"))],
]  # fmt: skip

_X, _E = "x" * 32, "é" * 40
_FILTERS = f"""
id = 5; id > 9223372036854775000; id < 0; id IN (1, 12); id BETWEEN 3 AND 4; id != 7; id IS NULL;
amount = 1.5; amount > 6.5; amount > 1e300; amount < -1e300; amount = double('NaN'); amount = -0.0; amount < 0.0;
amount >= 0.0; amount <= double('NaN'); amount = double('Infinity'); amount IS NULL; NOT (amount > 1); isnan(amount);
text = 'a'; text > 'w'; text = '{_X[1:]}yztail'; text > '{_X[1:]}y'; text >= '{_X}'; text LIKE 'xxx%'; text = '{_E}';
text > 'é'; text = ''; text < '#'; text = '{"q" * 5000}'; text IS NULL; text > '{_X}{chr(0x10FFFF) * 2}';
flag; NOT flag; flag IS NULL; raw = X'00FF'; raw IS NOT NULL; day = DATE'2013-01-01'; day < DATE'1600-01-01';
day > DATE'9999-01-01'; day <= DATE'0001-01-01'; local = TIMESTAMP_NTZ'2013-01-01 05:00:00.123456';
local > TIMESTAMP_NTZ'2013-01-01 05:00:00.1239'; local < TIMESTAMP_NTZ'1500-03-01 00:00:00.000002';
local >= TIMESTAMP_NTZ'9999-12-31 23:59:59.999999'; local IS NULL; instant = TIMESTAMP'2013-01-01 05:00:00.123456';
instant > TIMESTAMP'2013-01-01 05:00:00.1234'; instant < TIMESTAMP'1900-01-01 00:00:00';
instant > TIMESTAMP'9999-12-31 23:59:59.999'; instant <= TIMESTAMP'0001-01-01 00:00:00'; price = 1.5;
price > 9999999999.98; price < -9999999999.98; exact > 12345678901234567890.1233; exact < 0.0002; time = 43200000001;
time >= 86399999999; lasting < 0; lasting > 1000; uid = '{UUID(int=7)}'; colour > 'blue'; inner.number = 1;
inner.price < 0; size(numbers) = 0; named['a'].number = 2
""".replace("\n", " ").split(";")


@pytest.fixture(scope="module")
def every(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A table of many small files with unusual values."""
    table = tmp_path_factory.mktemp("every") / "out"
    sink = DeltaSink(table)
    sink.prepare(_EVERY)
    for token, rows in enumerate(_FILES, 1):
        put(sink, _EVERY, token, rows)
    return table


@pytest.mark.slow(reason="many queries of Spark; test_delta_table.py has the bounds")
def test_filters_find_the_rows_that_a_full_scan_finds(spark: SparkSession, every: Path) -> None:
    filtered = [f"SELECT {i} AS filter, id FROM delta.`{every}` WHERE {f}" for i, f in enumerate(_FILTERS)]
    found: dict[str, set[int]] = {f: set() for f in _FILTERS}
    for row in spark.sql(" UNION ALL ".join(filtered)).collect():
        found[_FILTERS[row.filter]].add(row.id)
    flags = ", ".join(f"({f}) AS f{i}" for i, f in enumerate(_FILTERS))
    scanned = spark.sql(f"SELECT id, {flags} FROM delta.`{every}`").collect()
    assert found == {f: {row.id for row in scanned if row[f"f{i}"]} for i, f in enumerate(_FILTERS)}


@pytest.mark.parametrize(
    ("condition", "files"),
    [
        ("id = 5", 2), ("amount = 1.5", 4), ("text = 'b'", 3), ("day = DATE'1500-02-28'", 2), ("flag IS NOT NULL", 2),
        ("local > TIMESTAMP_NTZ'2013-01-01 05:00:00.130'", 1), ("price > 9999999999.98", 1), ("lasting < 0", 1),
    ],
)  # fmt: skip
@pytest.mark.slow(reason="Spark reads a table for each condition")
def test_files_that_cannot_match_are_skipped(spark: SparkSession, every: Path, condition: str, files: int) -> None:
    assert len(spark.sql(f"SELECT * FROM delta.`{every}` WHERE {condition}").inputFiles()) <= files


@pytest.mark.slow(reason="several jobs of Spark")
def test_spark_reads_columns_that_a_sink_has_added_and_writes_to_the_table(spark: SparkSession, tmp_path: Path) -> None:
    table = tmp_path / "out"
    sink = DeltaSink(table)
    sink.prepare(_PAIR)
    put(sink, _PAIR, 1, pairs(1, 1))
    wider = DeltaSink(table, schema_evolution="add-columns")
    about = context(msgspec.defstruct("Wider", [("id", int), ("text", str | None), ("at", datetime), ("inner", Inner)]))
    wider.prepare(about)
    put(wider, about, 2, [about.schema.row_class(2, "b", _naive("2026-01-01T00:00:00"), Inner(5))])
    _fresh(spark).sql(f"INSERT INTO delta.`{table}` VALUES (3, 'c', TIMESTAMP_NTZ'2026-01-02', NULL)")
    put(wider, about, 3, [about.schema.row_class(4, "d", _naive("2026-01-03T00:00:00"), Inner(6))])
    found = _fresh(spark).sql(f"SELECT id, day(at) AS day, inner.number FROM delta.`{table}` ORDER BY id").collect()
    assert [tuple(row) for row in found] == [(1, None, None), (2, 1, 5), (3, 2, None), (4, 3, 6)]


# --- Spark's own commits in between


def _fresh(spark: SparkSession) -> SparkSession:
    """Makes Spark read tables from their logs again."""
    jvm: Any = spark._jvm
    jvm.org.apache.spark.sql.delta.DeltaLog.clearCache()
    return spark


def _ids(spark: SparkSession, table: Path) -> list[int]:
    return sorted(row.id for row in _fresh(spark).sql(f"SELECT id FROM delta.`{table}`").collect())


@pytest.mark.matrix
@pytest.mark.slow(reason="several jobs of Spark")
def test_spark_and_the_sink_see_each_others_tokens(spark: SparkSession, sink: DeltaSink, table: Path) -> None:
    put(sink, _PAIR, 4, pairs(0, 1))
    rows = spark.createDataFrame([(1, "x")], "id BIGINT, text STRING").coalesce(1)
    for token in (4, 5):
        options = {"txnAppId": _PAIR.application, "txnVersion": token}
        rows.write.format("delta").mode("append").options(**options).save(str(table))
    assert _ids(spark, table) == [0, 1]
    assert sink.open_table(_PAIR).token == 5


@pytest.mark.slow(reason="eleven commits of Spark")
def test_spark_and_the_sink_read_delta_checkpoints_of_each_other(
    spark: SparkSession, sink: DeltaSink, table: Path
) -> None:
    put(sink, _PAIR, 3, pairs(0, 1))
    for i in range(1, 11):
        spark.sql(f"INSERT INTO delta.`{table}` VALUES ({i}, 'x')").collect()
    made = [p.name for p in (table / "_delta_log").glob("*.checkpoint*")]
    assert made, "Spark made none"
    for entry in sorted((table / "_delta_log").glob("*.json"))[:10]:
        entry.unlink()
    for reader in (sink, DeltaSink(table)):
        assert reader.open_table(_PAIR).token == 3
    put(sink, _PAIR, 4, pairs(50, 1))
    checkpoint(table)
    assert ids(table) == _ids(spark, table) == [*range(11), 50]


# -- tables that spark made, feature by feature -----------------------------------------------------------------------


_COLUMNS = "id BIGINT, text STRING"


def _create(spark: SparkSession, table: Path, definition: str) -> None:
    for statement in definition.split(";"):
        spark.sql(statement.format(t=f"delta.`{table}`")).collect()


def _with(properties: str) -> str:
    return f"CREATE TABLE {{t}} ({_COLUMNS}) USING delta TBLPROPERTIES ({properties})"


_PLAIN = f"CREATE TABLE {{t}} ({_COLUMNS}) USING delta"

_HONOURED = {
    "plain": _PLAIN,
    "appendOnly": _with("delta.appendOnly = true"),
    "deletionVectors": _with("delta.enableDeletionVectors = true"),
    "changeDataFeed": _with("delta.enableChangeDataFeed = true"),
    "v2Checkpoint": _with("delta.checkpointPolicy = 'v2'"),
    "timestampNtz": f"CREATE TABLE {{t}} ({_COLUMNS}, more TIMESTAMP_NTZ) USING delta",
    "checkConstraints": f"{_with('delta.enableDeletionVectors = true')};"
    "ALTER TABLE {t} ADD CONSTRAINT positive CHECK (id > 0); ALTER TABLE {t} DROP CONSTRAINT positive",
    "generatedColumns": _with("delta.feature.generatedColumns = 'supported'"),
    "old protocol, comments, further columns": "CREATE TABLE {t} (more STRUCT<a: INT>, text STRING COMMENT 'x', "
    "id BIGINT) USING delta COMMENT 'y' TBLPROPERTIES (delta.minReaderVersion = 1, delta.minWriterVersion = 4)",
}

_REFUSED = {
    "property delta.columnMapping.mode": _with(
        "delta.minReaderVersion = 2, delta.minWriterVersion = 5,delta.columnMapping.mode = 'name'"
    ),
    "property delta.constraints.positive": f"{_PLAIN}; ALTER TABLE {{t}} ADD CONSTRAINT positive CHECK (id > 0)",
    "property delta.generationExpression, column more": (
        f"CREATE TABLE {{t}} ({_COLUMNS}, more BIGINT GENERATED ALWAYS AS (id + 1)) USING delta"
    ),
    "feature identityColumns": f"CREATE TABLE {{t}} ({_COLUMNS}, more BIGINT GENERATED ALWAYS AS IDENTITY) USING delta",
    "feature allowColumnDefaults": f"CREATE TABLE {{t}} ({_COLUMNS}, more INT DEFAULT 7) USING delta "
    "TBLPROPERTIES (delta.feature.allowColumnDefaults = 'supported')",
    "feature clustering": f"{_PLAIN} CLUSTER BY (id)",
    "feature variantType": f"CREATE TABLE {{t}} ({_COLUMNS}, more VARIANT) USING delta",
}


@pytest.mark.parametrize("feature", _HONOURED)
@pytest.mark.slow(reason="Spark writes tables with each feature")
def test_a_table_with_a_supported_feature_is_published_to(spark: SparkSession, tmp_path: Path, feature: str) -> None:
    table = tmp_path / "out"
    _create(spark, table, _HONOURED[feature])
    sink = DeltaSink(table)
    sink.prepare(_PAIR)
    put(sink, _PAIR, 1, pairs(1, 3))
    spark.sql(f"INSERT INTO delta.`{table}` (id, text) VALUES (10, 'x')").collect()
    checkpoint(table)
    put(sink, _PAIR, 2, pairs(4, 1))
    assert _ids(spark, table) == [1, 2, 3, 4, 10]


@pytest.mark.slow(reason="Spark creates a table for each feature")
@pytest.mark.parametrize("named", _REFUSED)
def test_a_table_with_an_unsupported_feature_is_refused_by_name(
    spark: SparkSession, tmp_path: Path, named: str
) -> None:
    table = tmp_path / "out"
    _create(spark, table, _REFUSED[named])
    facts = dict(fact.split(" ", 1) for fact in named.split(", "))
    before = snapshot(table)
    for call in (DeltaSink(table).check, DeltaSink(table).prepare, DeltaSink(table).open_table):
        with raises(SinkRefused, table=str(table)) as caught:
            call(_PAIR)
        found = caught.value.facts
        also: Any = found.get("also", [])
        assert facts.items() <= found.items() or " ".join(facts.values()) in also, found
        assert caught.value.hint
    assert snapshot(table) == before


# -- upserts into tables from which Spark deletes rows by deletion vectors -------------------------------------------


class Item(msgspec.Struct):
    """A row with a key that may be a partition column, whose folders' names are encoded."""

    id: int
    place: str
    text: str | None = None


_ITEMS = context(Item)
_PLACES = ("x", "A B%/ü&+")


def _items(spark: SparkSession, table: Path) -> dict[tuple[int, str], str | None]:
    found = _fresh(spark).sql(f"SELECT id, place, text FROM delta.`{table}`").collect()
    rows = {(row.id, row.place): row.text for row in found}
    assert len(rows) == len(found)
    return rows


def _with_vectors(spark: SparkSession, sink: DeltaSink, rows: list[Item]) -> str:
    """Creates a table with deletion vectors; returns its name in SQL."""
    sink.prepare(_ITEMS)
    put(sink, _ITEMS, 1, rows)
    name = f"delta.`{sink.table}`"
    spark.sql(f"ALTER TABLE {name} SET TBLPROPERTIES (delta.enableDeletionVectors = true)")
    return name


@pytest.mark.parametrize("partition_by", [pytest.param((), marks=pytest.mark.slow(reason="Spark")), ("place",)])
def test_rows_that_spark_deletes_do_not_come_back(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, partition_by: tuple[str, ...]
) -> None:
    draw = random.Random(7)
    # Reached through a symbolic link, which deltalake resolves.
    (tmp_path / "real folder").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "real folder")
    sink = DeltaSink(tmp_path / "link" / "ta ble", mode="upsert", keys=("id", "place"), partition_by=partition_by)
    expected = {(number, place): "0" for number in range(20) for place in _PLACES}
    table = _with_vectors(spark, sink, [Item(*key, text) for key, text in expected.items()])
    for token in range(2, 4):
        deleted = draw.sample(sorted(expected), 5)
        for at, (number, place) in enumerate(deleted):
            del expected[number, place]
            deleted[at] = (number, place.replace("'", "''"))
        condition = " OR ".join(f"(id = {number} AND place = '{place}')" for number, place in deleted)
        spark.sql(f"DELETE FROM {table} WHERE {condition}").collect()
        # Each file is written again by itself, or all of them together; from entries of the log, or a checkpoint.
        monkeypatch.setattr(versions, "_COMBINED_BYTES", 0 if token % 2 else 1 << 30)
        if token == 3:
            checkpoint(Path(sink.table))
        changed = [(draw.randrange(22), draw.choice(_PLACES)) for _ in range(4)]
        put(sink, _ITEMS, token, [Item(*key, str(token)) for key in changed])
        expected |= dict.fromkeys(changed, str(token))
        assert _items(spark, Path(sink.table)) == expected
    assert list((tmp_path / "real folder").rglob("deletion_vector_*.bin"))


@pytest.mark.slow(reason="Spark deletes rows with vectors")
def test_a_lost_vector_is_an_error_and_changes_nothing(spark: SparkSession, tmp_path: Path) -> None:
    sink = DeltaSink(tmp_path / "table", mode="upsert", keys="id")
    table = _with_vectors(spark, sink, [Item(number, "x") for number in range(4)])
    spark.sql(f"DELETE FROM {table} WHERE id = 2").collect()
    version = sink.open_table(_ITEMS).version
    for vector in (tmp_path / "table").glob("deletion_vector_*.bin"):
        shutil.move(vector, tmp_path / "kept.bin")
    with raises(SinkDiverged, version=version):
        put(sink, _ITEMS, 2, [Item(1, "x", "new")])
    assert sink.open_table(_ITEMS).version == version


# -- going back in delta tables that spark writes to as well, and what spark reads then -------------------------------


_VECTORS = "delta.enableDeletionVectors = true"


def _made(spark: SparkSession, table: Path, properties: str = "") -> DeltaSink:
    """A table that Spark made, with checkpoint 1: rows 0 to 9."""
    spark.sql(
        f"CREATE TABLE delta.`{table}` (id BIGINT, text STRING) USING delta"
        + (f" TBLPROPERTIES ({properties})" if properties else "")
    )
    sink = DeltaSink(table)
    sink.prepare(_PAIR)
    put(sink, _PAIR, 1, pairs(0, 10))
    return sink


def _do(spark: SparkSession, table: Path, *statements: str) -> list[Any]:
    """What the last statement gives."""
    found: list[Any] = []
    for statement in statements:
        found = spark.sql(statement.format(t=f"delta.`{table}`")).collect()
    return found


def _counted(spark: SparkSession, table: Path, version: int | None = None) -> Counter[str]:
    at = "" if version is None else f" VERSION AS OF {version}"
    return Counter(str(row) for row in _fresh(spark).sql(f"SELECT * FROM delta.`{table}`{at}").collect())


def _go_back(spark: SparkSession, sink: DeltaSink, checkpoint_id: int, token: int) -> SinkRewind:
    """Rewinds, and compares the plan, and the stored rows, with what Spark reads of both versions."""
    table = Path(sink.table)
    handle = sink.open_table(_PAIR)
    plan = handle.plan_rewind(checkpoint_id)
    before = _counted(spark, table)
    assert handle.rewind(plan.to_version, token) == plan.from_version + 1
    after = _counted(spark, table)
    assert after == _counted(spark, table, plan.to_version)
    counted = ((before - after).total(), (after - before).total())
    assert (plan.rows_removed, plan.rows_returned) == counted
    assert spark.sql(f"SELECT count(*) FROM delta.`{table}`").collect()[0][0] == after.total()
    return plan


def _others(plan: SinkRewind) -> list[tuple[int, str, int | None]]:
    return [(commit.version, commit.operation, commit.rows) for commit in plan.others]


_STATISTICS = "delta.checkpoint.writeStatsAsJson = false, delta.checkpoint.writeStatsAsStruct = true"


@pytest.mark.slow(reason="a dozen jobs of Spark; the model of rewinds is fast, without Spark")
@pytest.mark.parametrize(
    "properties",
    [
        f"delta.checkpointPolicy = 'v2', delta.checkpointInterval = 3, {_VECTORS}",
        f"{_STATISTICS}, delta.checkpointInterval = 3",
    ],
)
def test_a_rewind_undoes_what_spark_did_after_the_target(spark: SparkSession, table: Path, properties: str) -> None:
    sink = _made(spark, table, properties)
    _do(spark, table, "INSERT INTO {t} VALUES (50, 'x'), (51, 'x')", "DELETE FROM {t} WHERE id = 0")
    put(sink, _PAIR, 2, pairs(20, 2))
    _do(
        spark,
        table,
        "DELETE FROM {t} WHERE id = 3",
        "UPDATE {t} SET text = 'y' WHERE id IN (4, 5)",
        "INSERT INTO {t} VALUES (60, 'x')",
        "DELETE FROM {t} WHERE id = 20",
    )
    plan = _go_back(spark, sink, 1, token=5)
    assert plan.to_version == 3
    assert _others(plan) == [(5, "DELETE", -1), (6, "UPDATE", 0), (7, "WRITE", 1), (8, "DELETE", -1)]
    put(sink, _PAIR, 6, pairs(70, 1))
    _do(spark, table, "INSERT INTO {t} VALUES (80, 'x')")
    assert _counted(spark, table).total() == 9 + 2 + 2
    # Checkpoint 2, which was undone, with all that others did until then.
    assert _go_back(spark, sink, 2, token=7).to_version == 8
    checkpoint(table)
    found = _do(spark, table, "SELECT id FROM {t} WHERE id > 2 AND id < 30 ORDER BY id")
    assert [row.id for row in found] == [4, 5, 6, 7, 8, 9, 21]


@pytest.mark.slow(reason="several jobs of Spark")
def test_a_rewind_to_a_missing_deletion_vector_is_refused(spark: SparkSession, table: Path) -> None:
    sink = _made(spark, table, _VECTORS)
    _do(spark, table, "DELETE FROM {t} WHERE id = 2")
    [vector] = table.glob("deletion_vector_*")
    put(sink, _PAIR, 2, pairs(20, 1))
    _do(spark, table, "DELETE FROM {t} WHERE id = 3")
    vector.unlink()
    before = snapshot(table)
    with raises(SinkDiverged, files=[vector.name], missing=1):
        sink.open_table(_PAIR).plan_rewind(1)
    with raises(SinkDiverged, files=[vector.name], missing=1):
        sink.open_table(_PAIR).rewind(2, token=5)
    assert snapshot(table) == before


# -- tables under their names in the catalog of a session -------------------------------------------------------------

_ABOUT = context()


@pytest.fixture
def named(spark_session: SparkSession, tmp_path: Path) -> Iterator[SparkSession]:
    """A session with an empty schema ``named``."""
    spark_session.sql(f"CREATE SCHEMA named LOCATION '{tmp_path / 'named'}'")
    yield spark_session
    spark_session.sql("DROP SCHEMA named CASCADE")


def _sink(table: Path, name: str = "named.pairs") -> DeltaSink:
    return DeltaSink(table, register_as=name)


def _entry(table: Path, name: str = "named.pairs") -> CatalogEntry:
    entry = _sink(table, name).catalog_entry
    assert entry is not None
    return entry


@pytest.mark.matrix
@pytest.mark.slow(reason="needs a catalog of Spark's own")
def test_a_registered_table_is_read_by_name_and_not_changed(named: SparkSession, tmp_path: Path) -> None:
    table = tmp_path / "it's a table; `really`"
    sink = _sink(table)
    check_entry(named, _entry(table))
    sink.prepare(_ABOUT)
    put(sink, _ABOUT, 1, pairs(1, 2))
    before = snapshot(table)
    # By two runs, and by a run that was killed before it knew.
    for _ in range(2):
        check_entry(named, _entry(table))
        register_tables(named, [sink])
    assert snapshot(table) == before
    assert [row.id for row in named.table("named.pairs").orderBy("id").collect()] == [1, 2]
    put(sink, _ABOUT, 2, pairs(3, 1))
    assert named.table("spark_catalog.named.pairs").count() == 3
    assert warn_of_lost_names(named, [_entry(table)]) and not warn_of_lost_names(
        named, [_entry(table, "other.named.pairs")]
    )


@pytest.mark.parametrize(
    ("statement", "kind"),
    [
        ("CREATE TABLE named.pairs (id INT) USING delta", "delta"),
        ("CREATE TABLE named.pairs (Location INT) USING parquet LOCATION '{table}'", "parquet"),
        ("CREATE VIEW named.pairs AS SELECT 1 AS id", "VIEW"),
    ],
)
def test_a_name_of_something_else_is_refused_before_the_table_is_created(
    named: SparkSession, tmp_path: Path, statement: str, kind: str
) -> None:
    table = tmp_path / "table"
    named.sql(statement.format(table=table))
    with raises(ConfigError, name="named.pairs", table=str(table), kind=kind):
        check_entry(named, _entry(table))


def test_a_name_whose_folder_was_deleted_is_still_the_name_of_that_folder_only(
    named: SparkSession, tmp_path: Path
) -> None:
    sink = _sink(tmp_path / "table")
    sink.prepare(_ABOUT)
    register_tables(named, [sink])
    shutil.rmtree(sink.table)
    with raises(ConfigError, name="named.pairs", found=f"file:{sink.table}"):
        check_entry(named, _entry(tmp_path / "other"))
    check_entry(named, _entry(tmp_path / "table"))
    sink = _sink(tmp_path / "table")
    sink.prepare(_ABOUT)
    put(sink, _ABOUT, 1, pairs(7, 1))
    register_tables(named, [sink])
    assert named.table("named.pairs").count() == 1


def test_a_missing_schema_catalog_or_extension_is_an_error_of_the_settings(named: SparkSession, tmp_path: Path) -> None:
    with raises(ConfigError, name="nowhere.pairs"):
        check_entry(named, _entry(tmp_path, "nowhere.pairs"))
    with raises(ConfigError, missing=["spark.sql.catalog.unity"]):
        check_entry(named, _entry(tmp_path, "unity.named.pairs"))
    other = named.newSession()
    other.conf.set("spark.sql.catalog.spark_catalog", "")
    with raises(ConfigError, missing=["spark.sql.catalog.spark_catalog"]):
        check_entry(other, _entry(tmp_path))


@pytest.mark.parametrize("name", ["pairs", "a.b.c.d", "a..b", "a.`b`", "a.b; DROP TABLE c", "a.b\n", "a.b c", "ä.b"])
def test_a_name_that_would_have_to_be_quoted_is_refused(tmp_path: Path, name: str) -> None:
    with raises(ConfigError, given=name):
        DeltaSink(tmp_path / "table", register_as=name)
