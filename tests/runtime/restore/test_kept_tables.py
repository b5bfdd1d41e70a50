"""Which tables a restore keeps, and which it refuses to restore."""

from __future__ import annotations

from collections.abc import Set
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from stateflow.api.schema import RowSchema
from stateflow.api.sink import SinkContext
from stateflow.checkpoint.log.documents import RestoreFacts, Rewind, SinkIntent, SinkMode
from stateflow.errors import ConfigError
from stateflow.runtime.publisher import BoundSink
from stateflow.runtime.restore.planner import CheckedTarget, RestoreContext, plan_sink_changes
from stateflow.testing.sinks import FolderSink


class _Row(msgspec.Struct):
    number: int


@pytest.fixture
def restore(tmp_path: Path) -> Any:
    """A restore of a job with the sinks *a* and *b* of one table, and *c* of another one."""
    tables = {"a": "shared", "b": "shared", "c": "own"}
    sinks = {}
    for uid, table in tables.items():
        sink, context = FolderSink(tmp_path / table), SinkContext("job", uid, RowSchema.of(_Row))
        sink.prepare(context)
        sinks[uid] = BoundSink(sink, context)
    head = SimpleNamespace(entry=SimpleNamespace(published={}))
    return SimpleNamespace(
        job=SimpleNamespace(sinks=sinks), head=head, plan_rewind=lambda _, table: table.plan_rewind(0)
    )


@pytest.mark.parametrize("kept", [set(), {"a"}, {"b", "c"}], ids=["none", "one of them", "the other one"])
def test_a_table_of_several_sinks_is_not_restored_for_one_of_them(restore: Any, kept: Set[str]) -> None:
    """It would remove the rows of the sink whose table is to be kept."""
    with pytest.raises(ConfigError) as caught:
        plan_sink_changes(restore, SinkMode.RESTORE, kept)
    assert caught.value.facts == {"sinks": [["a", "b"]]}


@pytest.mark.parametrize(("token", "checkpoint"), [(9, 9), (8, 3)], ids=["rewound", "not rewound"])
def test_after_a_restore_that_is_not_completed_each_table_has_its_target_under_its_own_token(
    token: int, checkpoint: int
) -> None:
    intent = SinkIntent(table_id="t", mode=SinkMode.RESTORE, seen_version=5)
    facts = RestoreFacts(request="r", by="ada", label="3", base=3, left=7, at="2026-01-01T00:00:00+00:00")
    head: Any = SimpleNamespace(entry=SimpleNamespace(rewind=Rewind(seq=9, sinks={"a": intent}, restore=facts)))
    target: Any = SimpleNamespace(checkpoint_id=3)
    planned: list[int] = []
    table: Any = SimpleNamespace(token=token, plan_rewind=planned.append)
    unused: Any = None
    checked = CheckedTarget(unused, unused, head, target, unused)
    RestoreContext(unused, checked).plan_rewind("a", table)
    assert planned == [checkpoint]
