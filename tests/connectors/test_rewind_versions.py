"""Rewinds of sinks whose versions have numbers and whose rows are in files: Delta, and the testing kit's folder."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from stateflow.api.sink import SinkRewind
from stateflow.connectors import DeltaSink
from stateflow.errors import SinkDiverged
from stateflow.testing.sinks import FolderSink
from tests.support import folder_tables
from tests.support.delta_tables import context, ids, pairs, put, snapshot
from tests.support.errors import raises

_ABOUT = context()
AnySink = DeltaSink | FolderSink


@pytest.fixture(params=[DeltaSink, FolderSink])
def sink(request: pytest.FixtureRequest, tmp_path: Path) -> AnySink:
    """A table whose version and token are equal: checkpoint n published row n, up to 4."""
    made: AnySink = request.param(tmp_path / "out")
    made.prepare(_ABOUT)
    for token in range(1, 5):
        put(made, _ABOUT, token, pairs(token, 1))
    return made


def _folder(sink: AnySink) -> Path:
    return Path(sink.table) if isinstance(sink, DeltaSink) else sink.folder


def _ids(sink: AnySink) -> list[int]:
    """The rows, as an independent reader sees them."""
    if isinstance(sink, DeltaSink):
        return ids(sink.table)
    rows = folder_tables.rows(sink.folder)
    assert rows == sink.rows()
    return sorted(row["id"] for row in rows)


def _go_back(sink: AnySink, checkpoint_id: int, token: int) -> SinkRewind:
    """Rewinds, and compares the plan with the rows before and after."""
    handle = sink.open_table(_ABOUT)
    plan = handle.plan_rewind(checkpoint_id)
    before = Counter(_ids(sink))
    assert handle.rewind(plan.to_version, token) == plan.from_version + 1
    after = Counter(_ids(sink))
    opened = sink.open_table(_ABOUT)
    assert (opened.token, opened.version) == (token, plan.from_version + 1)
    assert (plan.rows_removed, plan.rows_returned) == ((before - after).total(), (after - before).total())
    return plan


def test_a_table_is_rewound_and_published_to_again_and_again(sink: AnySink) -> None:
    _go_back(sink, 1, token=10)
    for token in (11, 12):
        put(sink, _ABOUT, token, pairs(token, 1))
    assert _go_back(sink, 11, token=13).to_version == 6
    assert _ids(sink) == [1, 11]
    # To a version that was undone.
    assert _go_back(sink, 3, token=14) == SinkRewind(8, 3, 1, 2, ())
    assert _go_back(sink, 3, token=15) == SinkRewind(9, 3, 0, 0, ())
    put(sink, _ABOUT, 18, pairs(18, 2))
    assert _ids(sink) == [1, 2, 3, 18, 19]
    # Checkpoint 16 published nothing.
    assert sink.open_table(_ABOUT).plan_rewind(16).to_version == 10
    assert _go_back(sink, 0, token=20).to_version == 0
    assert _ids(sink) == []


def test_a_version_whose_files_are_gone_cannot_be_restored(sink: AnySink) -> None:
    [file] = put(sink, _ABOUT, 5, pairs(5, 1))
    _go_back(sink, 1, token=7)
    folder = _folder(sink)
    (folder / file.path if isinstance(sink, DeltaSink) else folder / "data" / file.path).unlink()
    before = snapshot(folder)
    calls: list[Callable[[Any], object]] = [lambda t: t.plan_rewind(5), lambda t: t.rewind(5, token=8)]
    for call in calls:
        with raises(SinkDiverged, table=str(folder), version=5, files=[file.path]):
            call(sink.open_table(_ABOUT))
    assert snapshot(folder) == before
