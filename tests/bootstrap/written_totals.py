"""A savepoint of totals by shop, written in this process or as the only work of another one."""

from __future__ import annotations

import os
from pathlib import Path

import pyarrow as pa

from stateflow import KeyedStateFrame, MapStateDescriptor, SavepointWriter, ValueStateDescriptor
from stateflow.clock import ManualClock
from stateflow.errors import StateflowError
from tests.recovery.failing_disks import disk_from_environment

TOTAL = ValueStateDescriptor("total", int)
RULES = MapStateDescriptor("rules", str, bytes)


def write_totals(path: Path, totals: dict[str, int]) -> None:
    """Writes a savepoint with two files of keyed state, and one of broadcast state."""
    given = SavepointWriter.new("job", max_parallelism=16, parallelism=2, clock=ManualClock())
    frame = pa.table({"shop": list(totals), "value": list(totals.values())})
    given.with_operator("sum", key="shop", states=[KeyedStateFrame(TOTAL, frame)])
    rules = pa.table({"map_key": ["large"], "value": [bytes([len(totals)]) * 100_000]})
    given.with_broadcast_state("sum", RULES, rules).write(path)


def write_in_process(path: Path, totals: dict[str, int], outcome: Path, environment: dict[str, str]) -> None:
    """As `write_totals`; writes the code of an error, or nothing, to a file."""
    os.environ.update(environment)
    try:
        with disk_from_environment():
            write_totals(path, totals)
        outcome.write_text("")
    except StateflowError as e:
        outcome.write_text(e.code)
