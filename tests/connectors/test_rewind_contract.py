"""Rewinds as every sink offers them: the Delta sink, and the folder sink of the testing kit."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from stateflow.api.sink import SinkRewind
from stateflow.checkpoint.sink_commit import Decision, decide
from stateflow.connectors import DeltaSink
from stateflow.errors import SinkDiverged
from stateflow.testing.sinks import FolderSink
from tests.support import folder_tables
from tests.support.delta_tables import context, ids, pairs, put, snapshot, write
from tests.support.errors import raises

_ABOUT, _OTHER = context(), context(uid="other")
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


def test_a_rewind_is_one_version_with_the_old_rows_and_the_new_token(sink: AnySink) -> None:
    before = snapshot(_folder(sink))
    assert sink.open_table(_ABOUT).plan_rewind(2) == SinkRewind(4, 2, 2, 0, ())
    assert snapshot(_folder(sink)) == before
    _go_back(sink, 2, token=7)
    assert _ids(sink) == [1, 2]


def test_a_kept_table_gets_only_the_token(sink: AnySink) -> None:
    assert sink.open_table(_ABOUT).plan_rewind(6) == SinkRewind(4, None, 0, 0, ())
    assert _go_back(sink, 4, token=7) == SinkRewind(4, None, 0, 0, ())
    assert _ids(sink) == [1, 2, 3, 4]


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


@pytest.mark.parametrize(
    "change",
    [lambda sink: put(sink, _OTHER, 50, pairs(50, 1)), lambda sink: sink.open_table(_ABOUT).rewind(2, token=7)],
    ids=["commit", "rewind"],
)
def test_a_handle_of_an_older_version_changes_nothing(sink: AnySink, change: Callable[[Any], object]) -> None:
    stale = sink.open_table(_ABOUT)
    change(sink)
    before = snapshot(_folder(sink))
    assert stale.rewind(2, token=7) is None
    assert stale.rewind(None, token=7) is None
    assert snapshot(_folder(sink)) == before


@pytest.mark.parametrize(("to_version", "kept"), [(2, [1, 2]), (None, [1, 2, 3, 4])])
def test_a_driver_that_was_paused_during_a_rewind_publishes_nothing(
    sink: AnySink, to_version: int | None, kept: list[int]
) -> None:
    """It is about to publish checkpoint 5 when entry 6 rewinds the job."""
    files = write(sink, _ABOUT, pairs(5, 1))
    paused = sink.open_table(_ABOUT)
    assert sink.open_table(_ABOUT).rewind(to_version, token=6) == 5
    assert paused.commit(5, files) is None
    token = sink.open_table(_ABOUT).token
    assert token is not None
    assert decide(token, published=4, checkpoint=5, head=5) is Decision.UNKNOWN_FUTURE
    assert _ids(sink) == kept


def test_commits_of_other_sinks_are_listed_once(sink: AnySink) -> None:
    put(sink, _OTHER, 50, pairs(50, 2))
    [commit] = _go_back(sink, 3, token=7).others
    assert (commit.version, commit.applications, commit.rows) == (5, frozenset({_OTHER.application}), 2)
    assert _OTHER.application in commit.text
    assert _go_back(sink, 2, token=8).others == ()
    assert sink.open_table(_OTHER).token == 50


def test_a_sweep_keeps_what_a_rewind_removed(sink: AnySink) -> None:
    for checkpoint_id, token in ((1, 7), (4, 8), (2, 9)):
        _go_back(sink, checkpoint_id, token)
        lost = write(sink, _ABOUT, pairs(99, 1))
        assert sink.sweep(_ABOUT, lambda generation, ordinal, path: True) == [lost[0].path]
    _go_back(sink, 4, token=10)
    assert _ids(sink) == [1, 2, 3, 4]


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


def test_a_shadow_is_a_separate_table_next_to_the_original(sink: AnySink) -> None:
    shadow = sink.shadow()
    assert _folder(shadow) == _folder(sink).with_name("out_shadow")
    assert shadow.check(_ABOUT) is None
    assert shadow.prepare(_ABOUT) != sink.prepare(_ABOUT)
    before = snapshot(_folder(sink))
    put(shadow, _ABOUT, 50, pairs(50, 1))
    assert (_ids(shadow), _ids(sink)) == ([50], [1, 2, 3, 4])
    shadow.open_table(_ABOUT).rewind(0, token=51)
    assert _ids(shadow) == []
    assert snapshot(_folder(sink)) == before
