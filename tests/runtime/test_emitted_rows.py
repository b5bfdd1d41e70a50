"""What the error about an emitted row names: the operator, the class, the column and the row."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from stateflow import Context, KeyedProcessFunction, StreamExecutionEnvironment
from stateflow.errors import SchemaMismatch
from tests.runtime.local_box import Box


class Payment(msgspec.Struct):
    card: str
    amount: float


class Session(msgspec.Struct):
    card: str
    largest: float


class Sessions(KeyedProcessFunction[Payment, Session]):
    """Forgets the largest amount of one card."""

    def process_element(self, row: Payment, ctx: Context) -> Iterator[Session]:
        missing: Any = None
        yield Session(row.card, missing if row.card == "c2" else row.amount)


def test_the_error_names_operator_class_column_and_row(tmp_path: Path) -> None:
    box = Box(tmp_path)

    def build(env: StreamExecutionEnvironment) -> None:
        rows = env.from_collection([Payment(f"c{n}", 1.0) for n in range(4)], Payment, uid="rows")
        made = rows.key_by("card").process(Sessions(), output=Session, uid="sessions")
        made.sink_to(box.sink("out"), uid="out")

    with pytest.raises(SchemaMismatch) as caught:
        box.run(build)
    facts = caught.value.facts
    assert (facts["operator"], facts["row_class"], facts["column"]) == ("sessions", "Session", "largest")
    assert facts["row"] == "Session(card='c2', largest=None)"
