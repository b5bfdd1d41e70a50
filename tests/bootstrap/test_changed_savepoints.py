"""Changed copies of savepoints: operators removed and added, states transformed; the rest stays as it is."""

from __future__ import annotations

from collections import Counter
from datetime import timedelta
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from msgspec.structs import replace

from stateflow import (
    KeyedStateFrame,
    ListStateDescriptor,
    MapStateDescriptor,
    SavepointWriter,
    ValueStateDescriptor,
    read_state,
)
from stateflow.checkpoint.log.documents import PublishedOutput, SavepointFormat
from stateflow.checkpoint.log.manifest_files import seal
from stateflow.checkpoint.savepoints.catalog import savepoint_at
from stateflow.errors import ConfigError, DataError, SchemaMismatch
from stateflow.operations import SavepointRequest, create_savepoint_into
from tests.bootstrap.given_state import BRIEF_ENTRIES, ENTRIES, ITEMS, ONE, source_of
from tests.bootstrap.test_random_state import Story
from tests.support import root_files
from tests.support.errors import raises
from tests.support.moved_state import Row

UNION, RATES = ListStateDescriptor("union", int), MapStateDescriptor("rates", str, int)


def _savepoint(story: Story, format: SavepointFormat) -> str:
    old = story.jobs("old")
    story.rows.append(Row(0, "a", 7, "collect"))
    story.expected.apply(story.rows, timedelta(0))
    story.process(old)
    story.process(old)
    request = SavepointRequest("made", from_head=True, format=format)
    return create_savepoint_into(old.storage.uri, request, str(story.folder / "savepoints")).path


def _plus(batch: pa.RecordBatch, number: int, name: str = "value") -> pa.RecordBatch:
    return batch.set_column(batch.schema.get_field_index(name), name, pc.add(batch.column(name), number))


@pytest.mark.parametrize("format", list(SavepointFormat))
def test_a_job_continues_from_transformed_state(tmp_path: Path, format: SavepointFormat) -> None:
    story = Story(9, tmp_path)
    savepoint = _savepoint(story, format)
    before = root_files.digests(Path(savepoint.removeprefix("file://")))
    writer = SavepointWriter.from_savepoint(savepoint, clock=story.clock)
    writer.transform_timers("every", lambda batch: _plus(batch, 60_000, "time"))
    writer.transform_operator_state("every", UNION, lambda batch: _plus(batch, 1000))
    if format is SavepointFormat.NATIVE:
        writer.without_operator("rates")
    else:
        writer.transform_broadcast_state("rates", RATES, lambda batch: _plus(batch, 5))
    writer.transform_state("every", ONE, lambda batch: _plus(batch, 1000))
    writer.transform_state("every", ITEMS, lambda batch: batch.filter(pc.greater(batch.column("value"), 100)))
    writer.transform_state("every", ENTRIES, lambda batch: batch.slice(0, 0))
    writer.transform_state("every", BRIEF_ENTRIES, lambda batch: _plus(batch, 1))
    written = writer.write(tmp_path / "written")
    assert root_files.digests(Path(savepoint.removeprefix("file://"))) == before
    savepoint_at(written).verify()
    for of in story.expected.keys.values():
        of.one = None if of.one is None else of.one + 1000
        of.items = [item for item in of.items if item > 100]
        of.entries = {}
        for brief in of.brief_entries.values():
            brief.value += 1
    story.expected.timers = {(place, _later(text)) for place, text in story.expected.timers}
    story.expected.collected = [replace(row, number=row.number + 1000) for row in story.expected.collected]
    is_kept = format is SavepointFormat.CANONICAL
    story.expected.rates = Counter({name: rate + 5 for name, rate in story.expected.rates.items() if is_kept})
    new = story.begin(written)
    story.check(new)
    story.process(new)
    story.check(new)
    if is_kept:
        rates = read_state(new.storage.uri, "rates", "_operator/rates").read_all().to_pylist()
        assert {row["map_key"]: row["value"] for row in rates} == dict(story.expected.rates)
    story.check_timers(new)


def _later(timer: str) -> str:
    domain, time = timer.split()
    return f"{domain} {int(time) + 60_000}"


def test_the_copy_has_the_savepoint_s_job_positions_and_new_operators(tmp_path: Path) -> None:
    story = Story(8, tmp_path)
    savepoint = _savepoint(story, SavepointFormat.CANONICAL)
    before = savepoint_at(savepoint).document
    table = pa.table({"shop": [1, 2], "value": [1.5, 2.5]})
    rating = KeyedStateFrame(ValueStateDescriptor("rating", float), table)
    writer = SavepointWriter.from_savepoint(savepoint).with_operator("ratings", key="shop", states=[rating])
    writer.with_source("more", source_of(story.rows), {"row": 3})
    after = savepoint_at(writer.write(tmp_path / "written")).document
    assert (after.job, after.job_uuid, after.checkpoint_id) == (before.job, before.job_uuid, before.checkpoint_id)
    assert after.id != before.id and after.manifest.epoch == before.manifest.epoch
    offsets = {position.uid: position.offset for position in after.manifest.sources}
    assert offsets == {"more": '{"row": 3}', "rows": f'{{"row": {len(story.rows)}}}'}
    assert [operator.uid for operator in after.manifest.operators] == ["every", "rates", "ratings"]
    assert after.manifest.operators[:2] == before.manifest.operators


def test_a_copy_is_repeated_only_from_the_same_savepoint(tmp_path: Path) -> None:
    story = Story(8, tmp_path)
    base = Path(_savepoint(story, SavepointFormat.CANONICAL).removeprefix("file://"))
    document = savepoint_at(str(base)).document
    written = SavepointWriter.from_savepoint(base).write(tmp_path / "written")
    assert SavepointWriter.from_savepoint(base).write(tmp_path / "written") == written
    others = (
        replace(document, drained=not document.drained),
        replace(document, checkpoint_id=document.checkpoint_id + 1),
        replace(document, sinks={**document.sinks, "more": PublishedOutput(table_id="t", version=1, checkpoint_id=1)}),
    )
    for other in others:
        (base / "_savepoint").write_bytes(seal(other)[0])
        with raises(ConfigError, path=written):
            SavepointWriter.from_savepoint(base).write(tmp_path / "written")


def test_changes_that_cannot_be_made_are_refused(tmp_path: Path) -> None:
    story = Story(9, tmp_path)
    savepoint = _savepoint(story, SavepointFormat.CANONICAL)
    with raises(ConfigError, uid="evry"):
        SavepointWriter.from_savepoint(savepoint).without_operator("evry")
    with raises(ConfigError, uid="every"):
        SavepointWriter.from_savepoint(savepoint).with_operator("every", key={"key": "string"})
    with raises(ConfigError, uid="every"):
        SavepointWriter.new("job").without_operator("every")
    writer = SavepointWriter.from_savepoint(savepoint)
    writer.transform_state("every", ValueStateDescriptor("one", str), lambda batch: batch)
    with raises(SchemaMismatch, state="one"):
        writer.write(tmp_path / "w")
    double = SavepointWriter.from_savepoint(savepoint).transform_state(
        "every", ONE, lambda b: pa.RecordBatch.from_struct_array(pa.concat_arrays([b.to_struct_array()] * 2))
    )
    with raises(DataError, state="one", operator="every"):
        double.write(tmp_path / "w")
    with raises(ConfigError):
        savepoint_at(str(tmp_path / "w"))
