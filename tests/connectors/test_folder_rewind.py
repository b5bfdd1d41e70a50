"""Going back in the testing kit's folder sink, which must be as good a sink as the real one."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import pyarrow as pa
import pytest

from stateflow.api.sink import SinkContext, SinkRewind, Writing
from stateflow.checkpoint.sink_commit import Decision, decide
from stateflow.errors import SinkDiverged
from stateflow.state.handles import Committable
from stateflow.testing.sinks import FolderSink
from tests.support import root_files
from tests.support.delta_tables import context, snapshot
from tests.support.errors import raises

_ABOUT = context()


@pytest.fixture
def sink(tmp_path: Path) -> FolderSink:
    """A table whose version and token are equal: checkpoint n brought row n, up to 4."""
    made = FolderSink(tmp_path / "table")
    made.prepare(_ABOUT)
    for token in range(1, 5):
        _put(made, token)
    return made


def _write(sink: FolderSink, token: int, about: SinkContext = _ABOUT) -> list[Committable]:
    writer = sink.writer(about, Writing(1, token, 0, "a"))
    writer.write(pa.RecordBatch.from_pylist([{"id": token, "text": "x"}]))
    return writer.close()


def _put(sink: FolderSink, token: int, about: SinkContext = _ABOUT) -> None:
    assert sink.open_table(about).commit(token, _write(sink, token, about)) is not None


def _ids(sink: FolderSink) -> list[int]:
    """The rows, as the sink and as the independent reader see them."""
    rows = [row["id"] for row in sink.rows()]
    assert [row["id"] for row in root_files.folder_rows(sink.folder)] == rows
    return rows


def _go_back(sink: FolderSink, checkpoint_id: int, token: int) -> SinkRewind:
    """Rewinds, and compares what was said with the rows before and after."""
    handle = sink.open_table(_ABOUT)
    plan = handle.plan_rewind(checkpoint_id)
    before = Counter(_ids(sink))
    assert handle.rewind(plan.to_version, token) == plan.from_version + 1
    after = Counter(_ids(sink))
    assert sink.open_table(_ABOUT).token == token
    assert (plan.rows_removed, plan.rows_returned) == ((before - after).total(), (after - before).total())
    return plan


def test_a_rewind_is_one_version_with_the_old_rows_and_the_new_token(sink: FolderSink) -> None:
    assert _go_back(sink, 2, token=7) == SinkRewind(4, 2, 2, 0, ())
    assert _ids(sink) == [1, 2]
    assert sink.open_table(_ABOUT).version == 5


def test_a_kept_table_gets_the_token_and_nothing_else(sink: FolderSink) -> None:
    assert _go_back(sink, 4, token=7) == SinkRewind(4, None, 0, 0, ())
    assert _ids(sink) == [1, 2, 3, 4]


def test_a_table_goes_back_again_and_again_and_to_what_was_undone(sink: FolderSink) -> None:
    _go_back(sink, 2, token=10)
    for token in (11, 12):
        _put(sink, token)
    assert _go_back(sink, 11, token=13).to_version == 6
    assert _ids(sink) == [1, 2, 11]
    assert _go_back(sink, 3, token=14).rows_returned == 1
    assert _ids(sink) == [1, 2, 3]
    _put(sink, 15)
    assert _ids(sink) == [1, 2, 3, 15]


def test_a_handle_that_somebody_overtook_changes_nothing(sink: FolderSink) -> None:
    stale = sink.open_table(_ABOUT)
    _go_back(sink, 2, token=7)
    before = snapshot(sink.folder)
    assert stale.rewind(2, token=7) is None
    assert stale.rewind(None, token=7) is None
    assert snapshot(sink.folder) == before


def test_a_driver_that_was_paused_finds_the_token(sink: FolderSink) -> None:
    files = _write(sink, 5)
    paused = sink.open_table(_ABOUT)
    _go_back(sink, 2, token=6)
    assert paused.commit(5, files) is None
    token = sink.open_table(_ABOUT).token
    assert decide(token, published=4, checkpoint=5, head=5) is Decision.UNKNOWN_FUTURE


def test_what_others_published_since_is_listed_once(sink: FolderSink) -> None:
    other = context(uid="other")
    _put(sink, 50, other)
    [commit] = _go_back(sink, 3, token=7).others
    assert (commit.version, commit.applications, commit.rows) == (5, {other.application}, 1)
    assert other.application in commit.text
    assert _go_back(sink, 2, token=8).others == ()
    assert sink.open_table(other).token == 50


def test_a_sweep_leaves_what_was_undone(sink: FolderSink) -> None:
    _go_back(sink, 1, token=7)
    lost = _write(sink, 9)
    assert sink.sweep(_ABOUT, lambda generation, ordinal, path: True) == [lost[0].path]
    _go_back(sink, 4, token=8)
    assert _ids(sink) == [1, 2, 3, 4]
    assert root_files.folder_leftovers(sink.folder) == []


def test_a_file_that_is_gone_does_not_come_back(sink: FolderSink) -> None:
    _go_back(sink, 1, token=7)
    [path] = json.loads((sink.folder / "versions" / "00000003").read_bytes())["paths"]
    (sink.folder / "data" / path).unlink()
    before = snapshot(sink.folder)
    for call in (lambda t: t.plan_rewind(4), lambda t: t.rewind(4, token=8)):
        with raises(SinkDiverged, table=str(sink.folder), version=4, files=[path]):
            call(sink.open_table(_ABOUT))
    assert snapshot(sink.folder) == before


def test_a_shadow_has_a_life_of_its_own(sink: FolderSink) -> None:
    shadow = sink.shadow()
    assert shadow.folder == sink.folder.with_name("table_shadow")
    assert shadow.prepare(_ABOUT) != sink.prepare(_ABOUT)
    before = snapshot(sink.folder)
    _put(shadow, 50)
    assert snapshot(sink.folder) == before
    assert (_ids(shadow), _ids(sink)) == ([50], [1, 2, 3, 4])
