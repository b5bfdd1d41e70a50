"""A null in a column that may have none: the error has the row, and what may be the cause."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest

from stateflow.errors import SchemaMismatch
from stateflow.runtime.task.operators.input_reader import Input, check_nulls


def test_a_null_is_refused_with_its_row_and_the_type_of_a_time_with_an_offset() -> None:
    chain: Any = SimpleNamespace(uid="count")
    rows = Input(("key", "time"), slice(0, 2), (0,), (1,), dict, None, None)
    columns = [pa.array(["a", "b"]), pa.array([0, None], pa.timestamp("us"))]
    check_nulls(chain, rows, [column[:1] for column in columns])
    with pytest.raises(SchemaMismatch) as refused:
        check_nulls(chain, rows, columns)
    assert refused.value.facts == {"operator": "count", "column": "time", "row": repr({"key": "b", "time": None})}
    assert "Annotated[datetime, msgspec.Meta(tz=True)]" in refused.value.hint
