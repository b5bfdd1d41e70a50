"""Rows of every type: read from files, keyed, kept in state, emitted by rows and by columns, and written to Delta."""

from __future__ import annotations

import datetime
from collections import Counter
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable

from stateflow.api.schema import RowSchema
from stateflow.runtime.task.row_conversion import to_batch, to_rows
from tests.spark.jobs import typed
from tests.spark.processes import ModuleJob

MICRO = datetime.timedelta(microseconds=1)


def _write(folder: Path) -> None:
    """Writes the orders as files that another program would write."""
    schema = RowSchema.of(typed.Order)
    half = len(typed.ORDERS) // 2
    for format in ("parquet", "json"):
        (folder / format).mkdir()
    for n, rows in enumerate((typed.ORDERS[:half], typed.ORDERS[half:])):
        table = to_batch(rows, schema)
        pq.write_table(_to_micros(table), folder / "parquet" / f"{n}.parquet")
        lines = [msgspec.json.encode(_as_json(row)) for row in rows]
        (folder / "json" / f"{n}.json").write_bytes(b"\n".join(lines))


def _to_micros(batch: pa.RecordBatch) -> pa.Table:
    """Returns times in the unit of other programs: Spark does not read nanoseconds."""
    kinds = [pa.time64("us") if pa.types.is_time(f.type) else f.type for f in batch.schema]
    return pa.table([c.cast(kind) for c, kind in zip(batch.columns, kinds, strict=True)], batch.schema.names)


def _as_json(order: typed.Order) -> dict[str, Any]:
    found: dict[str, Any] = msgspec.to_builtins(order)
    # Spark reads a Decimal from a number or a text, and an interval from its own form.
    sign, size = ("-" if order.lasting < MICRO * 0 else ""), abs(order.lasting)
    time = str(datetime.datetime.min.replace(tzinfo=datetime.UTC) + size)[11:].partition("+")[0]
    found["lasting"] = f"INTERVAL '{sign}{size.days} {time}' DAY TO SECOND"
    return found


def _rows(folder: Path, row_class: type[Any]) -> list[Any]:
    """Returns the rows of a Delta table: times and durations are microseconds there."""
    schema = RowSchema.of(row_class)
    found = []
    for uri in DeltaTable(str(folder)).file_uris():
        table = pq.read_table(uri).combine_chunks()
        columns = [_from_micros(table.column(c.name), c.arrow_type) for c in schema.columns]
        found += to_rows(columns, schema)
    return found


def _from_micros(column: pa.ChunkedArray, kind: pa.DataType) -> pa.Array:
    return column.combine_chunks().cast(_in_micros(kind)).cast(kind)


def _in_micros(kind: pa.DataType) -> pa.DataType:
    if pa.types.is_struct(kind):
        return pa.struct([field.with_type(_in_micros(field.type)) for field in kind])
    return pa.time64("us") if pa.types.is_time(kind) else kind


def _json(rows: list[Any]) -> Counter[bytes]:
    return Counter(map(msgspec.json.encode, rows))


def _key(order: typed.Order) -> tuple[Any, ...]:
    return tuple(getattr(order, name) for name in typed.KEY)


def _expected_total(colour: typed.Colour) -> tuple[Any, ...]:
    own = [order for order in typed.ORDERS if order.colour is colour]
    prices = [order.price for order in own]
    return sum(prices), min(prices), max(o.at for o in own), max(o.lasting for o in own)


@pytest.mark.parametrize(
    ("runner", "given"),
    [
        ("local", "listed"),
        pytest.param(
            "spark", "listed", marks=[pytest.mark.spark, pytest.mark.slow(reason="starts Spark for its jobs")]
        ),
        pytest.param("spark", "parquet", marks=[pytest.mark.spark]),
        pytest.param("spark", "json", marks=[pytest.mark.spark, pytest.mark.slow(reason="starts Spark for its jobs")]),
    ],
)
def test_rows_of_every_type_pass_a_job_unchanged(runner: str, given: str, tmp_path: Path) -> None:
    _write(tmp_path)
    job = ModuleJob(tmp_path, typed, spark=runner == "spark", parallelism=2, job__given=given)
    job.finish()
    orders = _rows(tmp_path / "orders", typed.Order)
    assert _json(orders) == _json(typed.ORDERS)

    per_key = Counter(map(_key, typed.ORDERS))
    counted = [(_key(row.order), row.count, row.prices) for row in _rows(tmp_path / "counted", typed.Counted)]
    assert Counter(counted) == Counter((k, n, k[-1] * n) for k, total in per_key.items() for n in range(1, total + 1))
    timed = Counter((_key(row.order), row.count) for row in _rows(tmp_path / "timed", typed.Counted))
    assert timed == Counter(per_key.items())

    latest = _rows(tmp_path / "latest", typed.Order)
    assert set(map(_key, latest)) == per_key.keys()
    assert not _json(latest) - _json(typed.ORDERS)

    totals = {row.colour: row for row in sorted(_rows(tmp_path / "totals", typed.Total), key=lambda row: row.sum)}
    for colour in typed.Colour:
        found = totals[colour]
        assert (found.sum, found.least, found.latest, found.longest) == _expected_total(colour)
        assert found.last in {order.id for order in typed.ORDERS if order.colour is colour}


@pytest.mark.spark
@pytest.mark.slow(reason="starts Spark for its jobs")
def test_a_file_with_a_value_that_does_not_parse_ends_the_run_with_its_name(tmp_path: Path) -> None:
    _write(tmp_path)
    corrupt = tmp_path / "json" / "1.json"
    corrupt.write_bytes(corrupt.read_bytes().replace(b"INTERVAL", b"interwal"))
    job = ModuleJob(tmp_path, typed, parallelism=2, job__given="json")
    job.run().check_error(4, "corrupt-input", file=str(corrupt))
