"""Columns of a source of Spark that are not those of the row class: refused, ignored, null or widened."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from typing import Any, Literal

import msgspec
import pytest
from pyspark.sql.types import (
    ArrayType,
    ByteType,
    DataType,
    DecimalType,
    DoubleType,
    FloatType,
    IntegerType,
    LongType,
    StringType,
    StructType,
)

from stateflow import ColumnPolicy, DeltaSource, FileSource, KafkaSource, SparkSource
from stateflow.api.schema import RowSchema
from stateflow.api.source import check_limits, limits_of
from stateflow.config.settings import LIMITS, SourceSettings
from stateflow.config.sources import resolve
from stateflow.connectors.column_policy import check_source_columns
from stateflow.errors import ConfigError, SchemaMismatch
from tests.connectors.partitioned_lists import Lists
from tests.support.errors import raises


class Part(msgspec.Struct):
    size: int
    note: str | None


class Row(msgspec.Struct):
    number: int
    ratio: float
    label: str | None
    parts: list[Part]


def _parts(**fields: DataType) -> ArrayType:
    return ArrayType(_struct(fields))


def _struct(fields: Mapping[str, DataType]) -> StructType:
    struct = StructType()
    for name, kind in fields.items():
        struct.add(name, kind)
    return struct


LONG, INT, BYTE, DOUBLE, FLOAT, TEXT = LongType(), IntegerType(), ByteType(), DoubleType(), FloatType(), StringType()
FITTING: dict[str, DataType] = {"number": LONG, "ratio": DOUBLE, "label": TEXT, "parts": _parts(size=LONG, note=TEXT)}
Added = Literal["ignore", "refuse"]
Missing = Literal["refuse", "null"]


def _check(columns: dict[str, DataType], added: Added = "ignore", missing: Missing = "refuse") -> None:
    check_source_columns(_struct(columns), RowSchema.of(Row), ColumnPolicy(added, missing), "source")


def _without(name: str) -> dict[str, DataType]:
    return {column: kind for column, kind in FITTING.items() if column != name}


@pytest.mark.parametrize(
    "changed",
    [
        {}, {"number": INT}, {"number": BYTE}, {"ratio": FLOAT}, {"ratio": INT}, {"parts": _parts(note=TEXT, size=INT)},
        {"parts": _parts(size=LONG)}, {"parts": _parts(size=LONG, note=TEXT, more=INT)},
    ],
    ids=str,
)  # fmt: skip
def test_narrower_types_are_widened_and_nested_fields_are_found_by_name(changed: dict[str, DataType]) -> None:
    _check(FITTING | changed, added="refuse")


@pytest.mark.parametrize(
    ("changed", "column"),
    [
        ({"number": DOUBLE}, "number"), ({"number": TEXT}, "number"), ({"number": DecimalType(20, 0)}, "number"),
        ({"ratio": LONG}, "ratio"), ({"label": INT}, "label"),
        ({"parts": _parts(size=TEXT, note=TEXT)}, "parts[].size"), ({"parts": _parts(note=TEXT)}, "parts[].size"),
        ({"parts": TEXT}, "parts"),
    ],
    ids=str,
)  # fmt: skip
def test_other_types_are_refused_by_every_policy(changed: dict[str, DataType], column: str) -> None:
    for missing in ("refuse", "null"):
        with raises(SchemaMismatch, column=column, path="source"):
            _check(FITTING | changed, missing=missing)


def test_further_columns_are_ignored_or_refused() -> None:
    more = FITTING | {"more": INT, "another": INT}
    _check(more)
    with raises(SchemaMismatch, columns=["another", "more"]):
        _check(more, added="refuse")


def test_missing_columns_are_refused_or_null_if_they_may_be() -> None:
    for name, missing in (("label", "refuse"), ("number", "refuse"), ("number", "null"), ("parts", "null")):
        with raises(SchemaMismatch, column=name):
            _check(_without(name), missing=missing)  # type: ignore[arg-type]
    _check(_without("label"), missing="null")


@pytest.mark.parametrize("missing", ["refuse", "null"])
def test_a_column_of_a_fitting_type_in_the_place_of_another_is_taken_for_a_rename(missing: Missing) -> None:
    renamed = {"name" if column == "label" else column: kind for column, kind in FITTING.items()}
    with raises(SchemaMismatch, column="name", renamed_to="label", position=3):
        _check(renamed, missing=missing)
    # With another type or place, one column was removed and another one was added.
    others: list[dict[str, DataType]] = [renamed | {"name": INT}, _without("label") | {"name": TEXT}]
    for columns in others:
        if missing == "null":
            _check(columns, missing=missing)
        else:
            with raises(SchemaMismatch, column="label"):
                _check(columns, missing=missing)


# -- limits of a batch ------------------------------------------------------------------------------------------------


class Limited(msgspec.Struct):
    id: int


SOURCES: dict[str, Any] = {
    "json": FileSource("/in", schema=Limited, format="json"), "parquet": FileSource("/in", schema=Limited),
    "bucket": FileSource("s3a://bucket/in", schema=Limited), "delta": DeltaSource("/table", schema=Limited),
    "kafka": KafkaSource("host:1", schema=Limited, topics="t"), "lists": Lists({}),
    "rate": SparkSource("rate", schema=Limited, name="ticks"),
}  # fmt: skip
FILES, ROWS = LIMITS


def test_each_source_has_the_limits_that_change_batches() -> None:
    found = {uid: set(source.limited_by) for uid, source in SOURCES.items()}
    assert found == {
        "json": {FILES}, "parquet": {FILES, ROWS}, "bucket": {FILES}, "delta": {FILES}, "kafka": {ROWS},
        "lists": {ROWS}, "rate": set(),
    }  # fmt: skip


@pytest.mark.parametrize(("one", "other"), list(itertools.combinations(SOURCES, 2)))
def test_two_sources_can_be_limited_and_no_hint_names_a_limit_that_is_refused(one: str, other: str) -> None:
    sources = {uid: SOURCES[uid] for uid in (one, other)}
    for limit in LIMITS:
        settings = resolve({f"source.{limit}": "7"}).source
        if any(limit in source.limited_by for source in sources.values()):
            check_limits(sources, settings)
            for uid, source in sources.items():
                assert limits_of(uid, source, settings).given == ({limit: 7} if limit in source.limited_by else {})
            continue
        with raises(ConfigError, setting=f"source.{limit}") as refused:
            check_limits(sources, settings)
        for name in LIMITS:
            if f"source.{name}" in refused.value.hint:
                check_limits(sources, resolve({f"source.{name}": "7"}).source)
    own = {f"source.of.{uid}.{limit}": 3 for uid, source in sources.items() for limit in sorted(source.limited_by)[:1]}
    settings = resolve({"source.max_rows_per_batch": "9", **own}).source
    for uid, source in sources.items():
        if source.limited_by:
            assert limits_of(uid, source, settings).given == {sorted(source.limited_by)[0]: 3}


def test_a_limit_that_one_source_does_not_have_is_refused() -> None:
    with raises(ConfigError, setting="source.of.delta.max_rows_per_batch") as refused:
        check_limits(SOURCES, resolve({"source.of.delta.max_rows_per_batch": 1}).source)
    assert "source.of.delta.max_files_per_batch" in refused.value.hint
    with raises(ConfigError, uid="delt", known=sorted(SOURCES)):
        check_limits(SOURCES, resolve({"source.of.delt.max_rows_per_batch": 1}).source)
    for name in ("source.of.delta", "source.of.delta.max_bytes", "source.of.max_rows_per_batch"):
        with pytest.raises(ConfigError):
            resolve({name: 1})
    dotted = resolve({"source.of.a.b.max_rows_per_batch": 2}).source.of
    assert dotted == {"a.b": SourceSettings(max_rows_per_batch=2)}
