"""A task's operators over Arrow batches, without the task around them."""

from __future__ import annotations

import datetime
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import msgspec
import numpy as np

from stateflow.api.functions.process import KeyedFunction, TaskInfo
from stateflow.api.graph import Keying
from stateflow.api.schema import RowSchema
from stateflow.runtime.executor import GROUP_SHIFT, PHASE_SHIFT, SOURCE_PHASE, ChainSpec, InputSpec, OutputSpec
from stateflow.runtime.task.keyed_operator import KeyedOperator
from stateflow.runtime.task.operator_runtime import InitialState
from stateflow.runtime.task.row_conversion import to_batch
from stateflow.runtime.task.vector_operator import VectorOperator
from stateflow.state.backends.hash_maps import DictBackend
from stateflow.types.descriptors import AggregateFunction
from stateflow.types.key_groups import key_hash

MAX_PARALLELISM = 128
NOW = datetime.datetime(2026, 1, 1, tzinfo=datetime.UTC)


class Row(msgspec.Struct):
    key: str | None
    number: int = 0


class Mean(AggregateFunction[int, list[int], float]):
    """The accumulator is changed in place, as it may be."""

    def create_accumulator(self) -> list[int]:
        return [0, 0]

    def add(self, value: int, accumulator: list[int]) -> list[int]:
        accumulator[0] += 1
        accumulator[1] += value
        return accumulator

    def get_result(self, accumulator: list[int]) -> float:
        return accumulator[1] / accumulator[0]

    def merge(self, acc_a: list[int], acc_b: list[int]) -> list[int]:
        return [acc_a[0] + acc_b[0], acc_a[1] + acc_b[1]]


def chain_of(function: KeyedFunction[Any], row_class: type[Any] = Row, output: type[Any] = Row) -> ChainSpec:
    """An operator that is keyed by the column ``key``."""
    schema, emits = RowSchema.of(row_class), RowSchema.of(output)
    keying = Keying(("key",), (), (schema.column("key").spark_type,))
    return ChainSpec(
        uid="op", inputs=(InputSpec("i0_", schema, keying),), function=function,
        outputs=(OutputSpec("", (), emits, (), None),), bases=(b"",), emits=emits,
    )  # fmt: skip


def task_info(batch: int = 1) -> TaskInfo:
    return TaskInfo("op", 0, 1, MAX_PARALLELISM, NOW + datetime.timedelta(seconds=batch), batch)


def keyed_operator(chain: ChainSpec, store: DictBackend | None = None, batch: int = 1) -> KeyedOperator:
    return KeyedOperator(chain, task_info(batch), InitialState(store or DictBackend()))


def vector_operator(chain: ChainSpec, store: DictBackend | None = None, batch: int = 1) -> VectorOperator:
    return VectorOperator(chain, task_info(batch), store or DictBackend())


def pieces_of(chain: ChainSpec, rows: Sequence[Any], cuts: Sequence[int] = (), phase: int = SOURCE_PHASE) -> list[Any]:
    """(order, columns) of the sorted rows, cut as Spark may cut them."""
    assert chain.keying is not None
    at = sorted((_order(r, chain.keying.types, phase), n) for n, r in enumerate(rows))
    order = np.array([o for o, _ in at], np.int64)
    columns = to_batch([rows[n] for _, n in at], chain.inputs[0].schema).columns
    edges = sorted({0, *(c for c in cuts if c < len(at)), len(at)})
    return [(order[a:b], [c.slice(a, b - a) for c in columns]) for a, b in pairwise(edges)]


def outputs_of(operator: Any, pieces: Sequence[Any]) -> list[Any]:
    """What a keyed or vectorized operator emits for all pieces of a batch."""
    emitted = [row for piece in pieces for row in operator.process(*piece)]
    if isinstance(operator, KeyedOperator):
        return emitted + [row for ended in operator.finish() for row in ended]
    return [*emitted, *operator.finish()]


def _order(row: Any, types: Sequence[str], phase: int) -> int:
    """As both runners compute it: phase, key group, bits of the hash."""
    if row.key is None:
        return phase << PHASE_SHIFT
    digest = key_hash((row.key,), types)
    return phase << PHASE_SHIFT | digest % MAX_PARALLELISM << GROUP_SHIFT | (digest % (1 << 64)) >> (64 - GROUP_SHIFT)
