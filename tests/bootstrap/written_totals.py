"""A savepoint of totals by shop, written in this process or as the only work of another one."""

from __future__ import annotations

import os
from pathlib import Path
from uuid import uuid4

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from stateflow import FileSource, KeyedStateFrame, MapStateDescriptor, SavepointWriter, ValueStateDescriptor
from stateflow.clock import ManualClock
from stateflow.errors import StateflowError
from tests.recovery.failing_disks import disk_from_environment


class Sale(msgspec.Struct):
    shop: str


TOTAL = ValueStateDescriptor("total", int)
RULES = MapStateDescriptor("rules", str, bytes)


def write_totals(path: Path, totals: dict[str, int]) -> None:
    """Writes a savepoint with two files of keyed state, one of broadcast state, and one of a position.

    Time and the newest position have moved since the previous call.
    """
    sales = path.with_suffix(".sales")
    sales.mkdir(exist_ok=True)
    for number in range(100):
        (sales / f"{number:0100}.json").touch()
    (sales / f"{uuid4()}.json").touch()
    given = SavepointWriter.new("job", max_parallelism=16, parallelism=2)
    given.with_source("sales", FileSource(sales, schema=Sale, format="json"), "latest", watermark=7)
    frame = pa.table({"shop": list(totals), "value": list(totals.values())})
    given.with_operator("sum", key="shop", states=[KeyedStateFrame(TOTAL, frame)])
    rules = pa.table({"map_key": ["large"], "value": [bytes([len(totals)]) * 100_000]})
    given.with_broadcast_state("sum", RULES, rules).write(path)


def write_more(path: Path, base: Path) -> None:
    """Writes the savepoint in `base` with totals that are larger by one, and rules that are shorter by one byte."""
    given = SavepointWriter.from_savepoint(base, clock=ManualClock())
    given.transform_state("sum", TOTAL, lambda batch: _with_values(batch, pc.add(batch.column("value"), 1)))
    shorter = lambda batch: _with_values(batch, pc.binary_slice(batch.column("value"), 1))  # noqa: E731
    given.transform_broadcast_state("sum", RULES, shorter).write(path)


def _with_values(batch: pa.RecordBatch, values: pa.Array) -> pa.RecordBatch:
    return batch.set_column(batch.schema.get_field_index("value"), "value", values)


def write_in_process(path: Path, given: dict[str, int] | Path, outcome: Path, environment: dict[str, str]) -> None:
    """As `write_totals`, or as `write_more` of a savepoint; writes the code of an error, or nothing, to a file."""
    os.environ.update(environment)
    try:
        with disk_from_environment():
            if isinstance(given, Path):
                write_more(path, given)
            else:
                write_totals(path, given)
        outcome.write_text("")
    except StateflowError as e:
        outcome.write_text(e.code)
