# ruff: noqa: DTZ001 - moments without a zone are a type of their own
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

from stateflow.types.key_groups import key_group, key_hash

pytestmark = pytest.mark.spark

M = 128
UTC = datetime.UTC
ROWS = 300


def _ints(bits: int) -> st.SearchStrategy[int]:
    return st.integers(-(1 << bits - 1), (1 << bits - 1) - 1)


def _decimals(precision: int, scale: int) -> st.SearchStrategy[decimal.Decimal]:
    exact = decimal.Context(prec=100)
    largest = 10**precision - 1
    unscaled = st.integers(-largest, largest) | st.sampled_from([-largest, -1, 0, largest // 7, largest])
    return unscaled.map(lambda n: decimal.Decimal(n).scaleb(-scale, exact))


_nan = struct.unpack(">d", bytes.fromhex("fff8000000000123"))[0]
_specials = [0.0, -0.0, math.nan, -math.nan, _nan, math.inf, -math.inf]
_moments = st.datetimes(datetime.datetime(1, 1, 1), datetime.datetime(9999, 12, 31)) | st.sampled_from(
    [
        datetime.datetime(1969, 12, 31, 23, 59, 59, 999_999),
        datetime.datetime(1970, 1, 1),
        datetime.datetime(1582, 10, 10),
    ]
)
# XXH64 goes different ways below 4, 8 and 32 bytes, and above.
_lengths = [n for base in (0, 4, 8, 32, 64, 1000) for n in (base, base + 1, base + 31)]

TYPES: dict[str, tuple[pa.DataType, st.SearchStrategy[Any]]] = {
    "string": (pa.string(), st.text(max_size=80) | st.sampled_from(["é" * n for n in _lengths] + ["\0", "\U0001f600"])),
    "binary": (pa.binary(), st.binary(max_size=80) | st.sampled_from([bytes(range(256))[:n] for n in _lengths])),
    "boolean": (pa.bool_(), st.booleans()),
    "tinyint": (pa.int8(), _ints(8)),
    "smallint": (pa.int16(), _ints(16)),
    "int": (pa.int32(), _ints(32) | st.sampled_from([-1, -(1 << 31), (1 << 31) - 1])),
    "bigint": (pa.int64(), _ints(64) | st.sampled_from([-1, -(1 << 63), (1 << 63) - 1])),
    "float": (pa.float32(), st.floats(width=32) | st.sampled_from(_specials)),
    "double": (pa.float64(), st.floats() | st.sampled_from(_specials)),
    "date": (pa.date32(), st.dates() | st.sampled_from([datetime.date(1969, 12, 31), datetime.date(1582, 10, 10)])),
    "timestamp": (pa.timestamp("us", tz="UTC"), _moments.map(lambda at: at.replace(tzinfo=UTC))),
    "timestamp_ntz": (pa.timestamp("us"), _moments),
    "decimal(9,2)": (pa.decimal128(9, 2), _decimals(9, 2)),
    "decimal(18,4)": (pa.decimal128(18, 4), _decimals(18, 4)),
    "decimal(19,0)": (pa.decimal128(19, 0), _decimals(19, 0)),
    "decimal(38,10)": (pa.decimal128(38, 10), _decimals(38, 10) | _decimals(20, 10)),
}
NAMES = list(TYPES)


def _generated() -> list[tuple[Any, ...]]:
    """Rows with one value of each type."""
    rows: list[tuple[Any, ...]] = []

    @settings(max_examples=ROWS, phases=[Phase.generate])
    @given(st.tuples(*(values for _, values in TYPES.values())))
    def collect(row: tuple[Any, ...]) -> None:
        rows.append(row)

    collect()
    return rows


@pytest.fixture(scope="module")
def hashed(spark_session: Any) -> tuple[list[tuple[Any, ...]], list[dict[str, int]]]:
    """The rows, and what Spark makes of them, in one job."""
    rows = _generated()
    arrays = [pa.array([row[n] for row in rows], kind) for n, (kind, _) in enumerate(TYPES.values())]
    table = pa.table(arrays, names=[f"c{n}" for n in range(len(TYPES))])
    frame = spark_session.createDataFrame(table, ", ".join(f"c{n} {name}" for n, name in enumerate(NAMES)))
    found = [kind for _, kind in frame.dtypes]
    assert found == NAMES
    wanted = [f"xxhash64(c{n}) AS h{n}" for n in range(len(TYPES))]
    wanted += [f"pmod(xxhash64(c{n}), {M}L) AS g{n}" for n in range(len(TYPES))]
    wanted += [f"xxhash64({', '.join(f'c{n}' for n in range(len(TYPES)))}) AS every", "xxhash64(c0, c6, c0) AS three"]
    # As a run computes them: in compiled code, which the tests' session otherwise goes without.
    compiled = {"spark.sql.codegen.wholeStage": "true", "spark.sql.codegen.factoryMode": "CODEGEN_ONLY"}
    usual = {name: spark_session.conf.get(name) for name in compiled}
    try:
        for name, value in compiled.items():
            spark_session.conf.set(name, value)
        return rows, frame.selectExpr(*wanted).toArrow().to_pylist()
    finally:
        for name, value in usual.items():
            spark_session.conf.set(name, value)


Hashed = tuple[list[tuple[Any, ...]], list[dict[str, int]]]


@pytest.mark.parametrize("name", NAMES)
def test_a_column_of_each_type(hashed: Hashed, name: str) -> None:
    at = NAMES.index(name)
    for row, by_spark in zip(*hashed, strict=True):
        assert key_hash((row[at],), [name]) == by_spark[f"h{at}"], row[at]
        assert key_group((row[at],), [name], M) == by_spark[f"g{at}"], row[at]


def test_several_columns_are_chained(hashed: Hashed) -> None:
    for row, by_spark in zip(*hashed, strict=True):
        assert key_hash(row, NAMES) == by_spark["every"]
        assert key_hash((row[0], row[6], row[0]), ["string", "bigint", "string"]) == by_spark["three"]


def test_the_rows_are_worth_it(hashed: Hashed) -> None:
    """Special values are among them."""
    rows, _ = hashed
    assert len(rows) >= ROWS // 2
    column = {name: [row[n] for row in rows] for n, name in enumerate(NAMES)}
    for name in ("float", "double"):
        assert any(v != v for v in column[name]) and any(math.copysign(1, v) < 0 and v == 0 for v in column[name])
    assert any(v.year < 1970 for v in column["date"]) and any(v.year < 1970 for v in column["timestamp"])
    assert max(len(v.encode()) for v in column["string"]) > 1000
    assert min(column["bigint"]) < 0 and any(not v.isascii() for v in column["string"])
    assert max(len(v.as_tuple().digits) for v in column["decimal(38,10)"]) > 28
