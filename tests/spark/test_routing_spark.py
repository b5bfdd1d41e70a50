"""Targets and orders of rows: the SQL that Spark evaluates and the NumPy arrays of the local executor agree."""

from __future__ import annotations

import random
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from stateflow import KeyedBroadcastProcessFunction
from stateflow.api.graph import Keying
from stateflow.runtime.executor import BROADCAST_ORDER, PHASE_SHIFT, POSITION_SHIFT, Numbers
from stateflow.runtime.local_run import _key_hashes, _LocatedRow
from stateflow.runtime.planning.physical_plan import Level, plan_job
from stateflow.runtime.planning.routing import (
    KEY_HASH,
    ROW_PHASE,
    ROW_POSITION,
    FieldExpression,
    LevelRouting,
    Route,
    evaluate,
    to_sql,
)
from stateflow.types.key_groups import range_of, subtask_of
from tests.support.graphs import Nothing, Nowhere, Pass, Row, environment

PARALLELISM, MAX_PARALLELISM = 3, 4096
EDGES = [0, 1, -1, (1 << 63) - 1, -(1 << 63), (1 << 46) - 1, 1 << 46]
COLUMNS = {ROW_POSITION: "position", ROW_PHASE: "phase", KEY_HASH: "hash"}


class _Broadcast(KeyedBroadcastProcessFunction[Row, Row, Row]):
    """A function that is only declared."""


def _routes() -> list[tuple[Level, Route]]:
    """The routes of a job with keyed, unkeyed and broadcast inputs, a sink without operator, and a relay."""
    env = environment()
    rows = env.from_source(Nothing(), uid="rows")
    rows.sink_to(Nowhere(), uid="raw")
    first = rows.key_by("key").process(Pass(), output=Row, uid="first")
    second = first.key_by("number").process(Pass(), output=Row, uid="second")
    joined = second.union(first).key_by("key", "number").connect(rows.broadcast())
    joined.process(_Broadcast(), output=Row, uid="third").sink_to(Nowhere(), uid="end")
    return [
        (level, route)
        for level in plan_job(env.graph, PARALLELISM).levels
        for node in level.inputs
        for route in LevelRouting(level, MAX_PARALLELISM).routes(node, POSITION_SHIFT)
    ]


def _fields() -> dict[FieldExpression, Numbers]:
    rng = random.Random(7)
    hashes = [*EDGES, *(rng.randrange(-(1 << 63), 1 << 63) for _ in range(500))]
    numbers = {ROW_POSITION: [abs(h) >> 1 for h in hashes], ROW_PHASE: [n % 2 for n in range(len(hashes))]}
    return {field: np.array(values, np.int64) for field, values in {**numbers, KEY_HASH: hashes}.items()}


def test_a_keyed_row_goes_to_the_owner_of_its_key_group() -> None:
    fields = _fields()
    phases, groups = fields[ROW_PHASE].tolist(), [h % MAX_PARALLELISM for h in fields[KEY_HASH].tolist()]
    for level, route in _routes():
        if route.keying is None:
            continue
        targets, orders = (evaluate(each, fields, len(groups)).tolist() for each in (route.target, route.order))
        first = min(targets) // PARALLELISM * PARALLELISM
        assert max(targets) < level.targets
        for group, target in zip(groups, targets, strict=True):
            assert target - first == subtask_of(group, PARALLELISM, MAX_PARALLELISM)
            assert group in range_of(target - first, PARALLELISM, MAX_PARALLELISM)
        assert [order >> PHASE_SHIFT for order in orders] == phases
        assert min(orders) > BROADCAST_ORDER


@pytest.mark.matrix
@pytest.mark.spark
def test_spark_and_numpy_compute_the_same_targets_and_orders(spark_session: Any) -> None:
    fields = _fields()
    values = list(zip(*(fields[field].tolist() for field in COLUMNS), strict=True))
    frame = spark_session.createDataFrame(values, ", ".join(f"{name} bigint" for name in COLUMNS.values())).coalesce(1)
    expressions = [each for _, route in _routes() for each in (route.target, route.order)]
    texts = [f"{to_sql(each, COLUMNS)} AS e{n}" for n, each in enumerate(expressions)]
    found = frame.selectExpr(*COLUMNS.values(), *texts).toArrow()
    numbers = {row: n for n, row in enumerate(values)}
    order = [numbers[row] for row in zip(*(found.column(c).to_pylist() for c in COLUMNS.values()), strict=True)]
    for n, each in enumerate(expressions):
        assert found.schema.field(f"e{n}").type == "int64"
        assert found.column(f"e{n}").to_pylist() == evaluate(each, fields, len(values))[order].tolist(), texts[n]


@pytest.mark.spark
def test_a_null_in_a_key_changes_no_hash(spark_session: Any) -> None:
    keying = Keying(("key", "number"), (), ("string", "bigint"))
    frame = spark_session.createDataFrame([(None, 5), ("a", None), (None, None)], "key string, number bigint")
    expected = [row[0] for row in frame.selectExpr("xxhash64(key, number)").collect()]
    rows = [_LocatedRow(n, 1, SimpleNamespace(**row.asDict())) for n, row in enumerate(frame.collect())]
    assert _key_hashes(keying, rows).tolist() == expected
