# ruff: noqa: DTZ001 - timestamps without a zone are a type of their own
"""Key groups of Python and of Spark are equal to the bit: rows are placed by one, and looked up by the other."""

from __future__ import annotations

import datetime
import decimal
import math
import struct
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from stateflow.config.spark_versions import running_version
from stateflow.types.key_groups import key_group, key_hash

M = 128
ROWS = 300


def _ints(bits: int) -> st.SearchStrategy[int]:
    return st.integers(-(1 << bits - 1), (1 << bits - 1) - 1) | st.sampled_from([-1, -(1 << bits - 1)])


def _decimals(precision: int, scale: int) -> st.SearchStrategy[decimal.Decimal]:
    exact, largest = decimal.Context(prec=100), 10**precision - 1
    unscaled = st.integers(-largest, largest) | st.sampled_from([-largest, -1, 0, largest // 7, largest])
    return unscaled.map(lambda n: decimal.Decimal(n).scaleb(-scale, exact))


_nan = struct.unpack(">d", bytes.fromhex("fff8000000000123"))[0]
_specials = [0.0, -0.0, math.nan, -math.nan, _nan, math.inf, -math.inf]
_early = [datetime.datetime(1969, 12, 31, 23, 59, 59, 999_999), datetime.datetime(1582, 10, 10)]
_times = st.datetimes(datetime.datetime(1, 1, 1), datetime.datetime(9999, 12, 31)) | st.sampled_from(
    [*_early, datetime.datetime(1970, 1, 1)]
)
# XXH64 treats lengths below 4, 8 and 32 bytes, and above, differently.
_long = datetime.timedelta(days=99_000_000)
_lengths = [n for base in (0, 4, 8, 32, 64, 1000) for n in (base, base + 1, base + 31)]

TYPES: dict[str, tuple[pa.DataType, st.SearchStrategy[Any]]] = {
    "string": (pa.string(), st.text(max_size=80) | st.sampled_from(["é" * n for n in _lengths] + ["\0", "\U0001f600"])),
    "binary": (pa.binary(), st.binary(max_size=80) | st.sampled_from([bytes(range(256))[:n] for n in _lengths])),
    "boolean": (pa.bool_(), st.booleans()),
    "tinyint": (pa.int8(), _ints(8)),
    "smallint": (pa.int16(), _ints(16)),
    "int": (pa.int32(), _ints(32)),
    "bigint": (pa.int64(), _ints(64)),
    "float": (pa.float32(), st.floats(width=32) | st.sampled_from(_specials)),
    "double": (pa.float64(), st.floats() | st.sampled_from(_specials)),
    "date": (pa.date32(), st.dates() | st.sampled_from([each.date() for each in _early])),
    "timestamp": (pa.timestamp("us", tz="UTC"), _times.map(lambda at: at.replace(tzinfo=datetime.UTC))),
    "timestamp_ntz": (pa.timestamp("us"), _times),
    "decimal(9,2)": (pa.decimal128(9, 2), _decimals(9, 2)),
    "decimal(18,4)": (pa.decimal128(18, 4), _decimals(18, 4)),
    "decimal(19,0)": (pa.decimal128(19, 0), _decimals(19, 0)),
    "time(6)": (pa.time64("ns"), st.times() | st.sampled_from([datetime.time.min, datetime.time.max])),
    "interval day to second": (pa.duration("us"), st.timedeltas(-_long, _long) | st.just(-_long)),
    "decimal(38,10)": (pa.decimal128(38, 10), _decimals(38, 10) | _decimals(20, 10)),
}
if not running_version().has_time_type:
    del TYPES["time(6)"]
NAMES = list(TYPES)
SEVERAL = ["string", "bigint", "string"]


def _generated() -> list[tuple[Any, ...]]:
    """Rows with one value of each type; special values are among them."""
    rows: list[tuple[Any, ...]] = []

    @settings(max_examples=ROWS, phases=[Phase.generate])
    @given(st.tuples(*(values for _, values in TYPES.values())))
    def collect(row: tuple[Any, ...]) -> None:
        rows.append(row)

    collect()
    column = {name: [row[n] for row in rows] for n, name in enumerate(NAMES)}
    assert len(rows) >= ROWS // 2
    for name in ("float", "double"):
        assert any(v != v for v in column[name]) and any(math.copysign(1, v) < 0 and v == 0 for v in column[name])
    assert any(v.year < 1970 for v in column["date"]) and any(v.year < 1970 for v in column["timestamp"])
    assert max(len(v.encode()) for v in column["string"]) > 1000
    assert max(len(v.as_tuple().digits) for v in column["decimal(38,10)"]) > 28
    nulls = [tuple(None if (at * 7 + n) % 3 else value for at, value in enumerate(row)) for n, row in enumerate(rows)]
    return [*rows, *nulls, (None,) * len(TYPES)]


@pytest.mark.matrix
@pytest.mark.spark
def test_hashes_and_key_groups_of_each_type_and_of_several_columns_are_equal(spark_session: Any) -> None:
    rows = _generated()
    arrays = [pa.array([row[n] for row in rows], kind) for n, (kind, _) in enumerate(TYPES.values())]
    columns = [f"c{n}" for n in range(len(TYPES))]
    schema = ", ".join(map(" ".join, zip(columns, NAMES, strict=True)))
    frame = spark_session.createDataFrame(pa.table(arrays, names=columns), schema)
    assert [kind for _, kind in frame.dtypes] == NAMES
    keys = [*([name] for name in NAMES), NAMES, SEVERAL]
    hashes = [f"xxhash64({', '.join(columns[NAMES.index(name)] for name in key)})" for key in keys]
    groups = [f"pmod({expression}, {M}L)" for expression in hashes]
    # A run evaluates them in compiled code, which the session of tests does not use.
    compiled = {"spark.sql.codegen.wholeStage": "true", "spark.sql.codegen.factoryMode": "CODEGEN_ONLY"}
    usual = {name: spark_session.conf.get(name) for name in compiled}
    try:
        for name, value in compiled.items():
            spark_session.conf.set(name, value)
        found = frame.selectExpr(*(f"{each} AS e{n}" for n, each in enumerate(hashes + groups))).toArrow()
    finally:
        for name, value in usual.items():
            spark_session.conf.set(name, value)
    for n, key in enumerate(keys):
        values = [tuple(row[NAMES.index(name)] for name in key) for row in rows]
        by_spark = zip(found.column(n).to_pylist(), found.column(len(keys) + n).to_pylist(), strict=True)
        wrong = [
            (value, spark)
            for value, spark in zip(values, by_spark, strict=True)
            if (key_hash(value, key), key_group(value, key, M)) != spark
        ]
        assert (key, wrong[:3]) == (key, [])
