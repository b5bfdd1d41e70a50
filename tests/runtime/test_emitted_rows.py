"""What the error about an emitted row names: the operator, the class, the column and the row."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from stateflow import Context, KeyedProcessFunction, StreamExecutionEnvironment
from stateflow.errors import SchemaMismatch
from tests.support.local_jobs import LocalJobs


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


class Later(Sessions):
    """Emits at the end of the batch what the rows of a key come to."""

    def process_element(self, row: Payment, ctx: Context) -> Iterator[Session]:
        yield Session(row.card, row.amount)

    def on_batch_end(self, ctx: Context) -> Iterator[Session]:
        card = ctx.get_current_key()
        yield from super().process_element(Payment(card, 1.0), ctx)


@pytest.mark.parametrize("function", [Sessions(), Later()])
def test_the_error_names_operator_key_class_column_and_row(tmp_path: Path, function: Sessions) -> None:
    box = LocalJobs(tmp_path)

    def build(env: StreamExecutionEnvironment) -> None:
        rows = env.from_collection([Payment(f"c{n}", 1.0) for n in range(4)], Payment, uid="rows")
        made = rows.key_by("card").process(function, output=Session, uid="sessions")
        made.sink_to(box.sink("out"), uid="out")

    with pytest.raises(SchemaMismatch) as caught:
        box.run(build)
    facts = caught.value.facts
    assert (facts["operator"], facts["row_class"], facts["column"]) == ("sessions", "Session", "largest")
    assert facts["key"] == repr({"card": "c2"})
    assert facts["row"] == "Session(card='c2', largest=None)"
