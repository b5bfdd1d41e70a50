"""Savepoints from files: ``savepoint write`` makes the same savepoint of what ``state export`` writes of one."""

from __future__ import annotations

import json
import random
import shutil
import struct
from collections import Counter
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import stateflow
from stateflow.bootstrap.json_lines import read_lines
from stateflow.bootstrap.state_files import FileColumns, FileRows, find_files
from stateflow.checkpoint.log.documents import SavepointFormat
from stateflow.connectors.json_rows import encode, json_objects
from stateflow.errors import ConfigError, DataError
from stateflow.operations import SavepointRequest, create_savepoint_into
from stateflow.storage import open_storage
from tests.bootstrap.test_restored_values import Story
from tests.support.cli_fixture import invoke
from tests.support.errors import raises
from tests.support.local_jobs import LocalJobs
from tests.support.moved_state import Row, build_job
from tests.support.stored_state import keyed_content

JOB = """
from pathlib import Path

from tests.support.local_jobs import LocalJobs
from tests.support.moved_state import Row, build_job

build = build_job(LocalJobs(Path(__file__).parent / "unused"), [Row(0, "a", 1, "read")] * 1000, {groups})
"""


def _savepoint(jobs: LocalJobs, folder: Path) -> str:
    # A format that the test reads without the code under test.
    request = SavepointRequest("made", from_head=True, format=SavepointFormat.CANONICAL)
    return create_savepoint_into(jobs.storage.uri, request, str(folder)).path


def _exported(savepoint: str, folder: Path, name_of: Callable[[], str]) -> list[str]:
    """Exports every state of a savepoint; returns the options that write them."""
    options = []
    folder.mkdir()
    for number, state in enumerate(stateflow.read_metadata(savepoint, "states").to_pylist()):
        file = str(folder / f"{number}.{name_of()}")
        which = ["--operator", state["operator"], "--state", state["state"]]
        assert invoke("state", "export", savepoint, *which, "--output", file).exit_code == 0
        options += ["--state", f"{state['operator']}.{state['state']}={file}"]
    return options


def _written(folder: Path, *options: str, groups: int = 0) -> dict[str, Any]:
    (folder / "job.py").write_text(JOB.format(groups=groups))
    words = ["savepoint", "write", str(folder / "job.py"), "--output", str(folder / "written")]
    ended = invoke(*words, *options, "--json")
    assert ended.exit_code == 0, ended.output
    found: dict[str, Any] = json.loads(ended.stdout)
    return found


def stored_content(savepoint: str) -> tuple[Counter[tuple[str, bytes, bytes]], Counter[str]]:
    """All stored entries of keyed state and timers, without the positions of lists; and the operator state as text."""
    states = stateflow.read_metadata(savepoint, "states").to_pylist()
    names = [(s["operator"], s["state"]) for s in states if s["state"].startswith("_operator/")]
    names += [(uid, raw) for uid in {s["operator"] for s in states} for raw in ("_raw", "_raw_keyed")]
    kept: Counter[str] = Counter()
    for uid, name in names:
        for row in stateflow.read_state(savepoint, uid, name).read_all().to_pylist():
            row.pop("subtask")
            kept[f"{uid}.{name} {row}"] += 1
    return keyed_content(Path(savepoint.removeprefix("file://"))), kept


def test_exported_state_of_every_kind_is_written_again_and_a_job_continues(tmp_path: Path) -> None:
    seed = 7
    story, dice = Story(seed, tmp_path), random.Random(seed)
    old = story.jobs("old")
    story.process(old)
    story.clock.sleep(timedelta(minutes=20))
    story.process(old)
    savepoint = _savepoint(old, tmp_path)
    options = _exported(savepoint, tmp_path / "rows", lambda: dice.choice(["parquet", "jsonl"]))
    position = f'rows={{"row": {len(story.rows)}}}'
    made = _written(tmp_path, *options, "--source", position, "--max-parallelism", str(story.groups))
    assert made["offsets"] == {"rows": {"row": len(story.rows)}} and made["without_position"] == []
    assert stateflow.diff(savepoint, made["path"]).keys == 0
    assert stored_content(made["path"]) == stored_content(savepoint)
    new = story.begin(made["path"])
    story.check(new)
    story.process(new)
    story.check(new)
    story.check_timers(new)


def test_operator_state_and_raw_state_are_written_again(tmp_path: Path) -> None:
    story = Story(3, tmp_path)
    story.groups = 16
    story.rows += [Row(number, "ab"[number % 2], number, "collect") for number in range(5)]
    old = story.jobs("old")
    old.run(build_job(old, story.rows, 16))
    savepoint = _savepoint(old, tmp_path)
    options = _exported(savepoint, tmp_path / "rows", lambda: "jsonl")
    for raw in ("_raw", "_raw_keyed"):
        file = str(tmp_path / f"{raw}.parquet")
        ended = invoke("state", "export", savepoint, "--operator", "every", "--state", raw, "--output", file)
        assert ended.exit_code == 0, ended.output
        options += ["--state", f"every.{raw}={file}"]
    made = _written(tmp_path, *options, "--max-parallelism", "16", groups=16)
    assert made["without_position"] == ["rows"]
    assert stored_content(made["path"]) == stored_content(savepoint)
    rows = {state["state"]: state["rows"] for state in made["states"]}
    assert rows["_raw"] == rows["_operator/numbers"] == rows["_operator/union"] == 5 and rows["_raw_keyed"] > 0


# -- JSON lines -------------------------------------------------------------------------------------------------------

_FINITE = st.floats(allow_nan=False)
_TIMES = st.datetimes()
_COLUMNS: list[tuple[pa.DataType, st.SearchStrategy[Any]]] = [
    (pa.bool_(), st.booleans()), (pa.int64(), st.integers(-(1 << 63), (1 << 63) - 1)),
    (pa.int32(), st.integers(-(1 << 31), (1 << 31) - 1)), (pa.float64(), _FINITE),
    (pa.float32(), st.floats(width=32, allow_nan=False)), (pa.string(), st.text()), (pa.binary(), st.binary()),
    (pa.date32(), st.dates()), (pa.timestamp("us"), _TIMES),
    (pa.timestamp("us", "UTC"), _TIMES.map(lambda t: t.replace(tzinfo=UTC))), (pa.time64("us"), st.times()),
    (pa.duration("us"), st.timedeltas(timedelta(-1_000_000), timedelta(1_000_000))),
    (pa.decimal128(20, 3), st.decimals(-(10**16), 10**16, places=3)),
    (pa.list_(pa.duration("us")), st.lists(st.timedeltas(timedelta(-9), timedelta(9)) | st.none())),
    (pa.map_(pa.int64(), pa.float64()), st.dictionaries(st.integers(0, 9), _FINITE).map(lambda of: [*of.items()])),
    (pa.map_(pa.bool_(), pa.bool_()), st.dictionaries(st.booleans(), st.booleans()).map(lambda of: [*of.items()])),
    (
        pa.struct([("a b", pa.float64()), ("", pa.list_(pa.date32()))]),
        st.fixed_dictionaries({"a b": _FINITE | st.none(), "": st.none() | st.lists(st.dates())}),
    ),
]  # fmt: skip


def test_lines_of_json_have_the_values_that_were_exported(tmp_path: Path) -> None:
    schema = pa.schema([pa.field(f"column {number}", kind) for number, (kind, _) in enumerate(_COLUMNS)])
    rows = st.fixed_dictionaries({f"column {n}": st.none() | values for n, (_, values) in enumerate(_COLUMNS)})

    @settings(max_examples=max(1, settings().max_examples // 10))
    @given(rows=st.lists(rows, min_size=1, max_size=2))
    def check(rows: list[dict[str, Any]]) -> None:
        batch = pa.RecordBatch.from_pylist(rows, schema)
        (tmp_path / "rows").write_bytes(b"".join(encode(row) + b"\n\n" for row in json_objects(batch)))
        (found,) = read_lines(tmp_path / "rows", schema)
        assert found.equals(batch)

    check()
    batch = pa.RecordBatch.from_pylist([{"x": float("nan")}, {"x": 1.0}], pa.schema([("x", pa.float64())]))
    (tmp_path / "rows").write_bytes(b"\n".join(map(encode, json_objects(batch))))
    (found,) = read_lines(tmp_path / "rows", batch.schema)
    assert str(found.column("x").to_pylist()) == "[nan, 1.0]"


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        (pa.int64(), '"1"'), (pa.int64(), "1.5"), (pa.int64(), str(1 << 63)), (pa.float64(), '"x"'),
        (pa.float64(), "true"), (pa.float64(), "9007199254740993"), (pa.float32(), "1e39"), (pa.string(), "1"),
        (pa.binary(), '"é"'), (pa.date32(), '"2026-13-01"'), (pa.timestamp("us"), '"2026-01-01T00:00:00Z"'),
        (pa.timestamp("us", "UTC"), '"2026-01-01T00:00:00"'), (pa.duration("us"), '"a day"'),
        (pa.decimal128(4, 2), "123.45"), (pa.decimal128(4, 2), "1.234"), (pa.list_(pa.int64()), '["x"]'),
        (pa.list_(pa.int64()), "[" * 2000), (pa.int64(), "1, 2"),
        (pa.timestamp("us"), '"2026-01-01T00:00:00.1234567"'),
        (pa.timestamp("us", "UTC"), '"2026-01-01T00:00:00.000000\\u0031Z"'), (pa.time64("us"), '"01:02:03Z"'),
        (pa.time64("us"), '"01:02:03.0000001"'), (pa.duration("us"), '"PT0.0000001S"'),
        (pa.duration("us"), '"P0.123456789D"'),
        (pa.list_(pa.struct([("a", pa.time64("us"))])), '[{"a": "01:02:03.0000001"}]'),
        (pa.map_(pa.timestamp("us"), pa.time64("us")), '{"2026-01-01T00:00:00.1234567": null}'),
        (pa.map_(pa.timestamp("us"), pa.time64("us")), '{"2026-01-01T00:00:00": "01:02:03.1234567"}'),
        (pa.map_(pa.int64(), pa.int64()), '{"-0": 1, "0": 2}'),
        (pa.map_(pa.decimal128(4, 2), pa.int64()), '{"1.0": 1, "1.00": 2}'),
        (pa.map_(pa.bool_(), pa.int64()), '{"True": 1}'),
    ],
)  # fmt: skip
def test_a_value_of_another_type_is_an_error_with_its_line(tmp_path: Path, kind: pa.DataType, text: str) -> None:
    (tmp_path / "rows").write_text('{"x": null}\n\n{"x": ' + text + "}\n")
    with raises(DataError, line=3):
        list(read_lines(tmp_path / "rows", pa.schema([("x", kind)])))


@pytest.mark.parametrize(
    "line",
    [
        '{"a":1,"a":2}', '{"a":1,"b":{"c":"1","c":"2"}}', '{"a":1,"b":{"c":"\\"a\\":","c":"c"}}',
        '{"a":1,"b":{"c":"d"},"b":null}', '{"m":{"x":1,"x":1}}', '{"m":{"x\\"a":1,"x\\"a":1},"a":1}',
        '{"more":{"c":1},"more":1}', '{"m":{"a":null,"a":1}}',
    ],
)  # fmt: skip
def test_a_name_twice_is_an_error_at_any_depth(tmp_path: Path, line: str) -> None:
    below = pa.struct([("c", pa.string()), ("d", pa.string())])
    schema = pa.schema([("a", pa.int64()), ("b", below), ("m", pa.map_(pa.string(), pa.int64()))])
    (tmp_path / "rows").write_text('{"a":1,"b":{"c":"a:","d":null},"m":{"a":1,"b":2}}\n{"a":1,"b":{"c":"b"}}\n' + line)
    with raises(DataError, line=3):
        list(read_lines(tmp_path / "rows", schema, ["more"]))


def test_two_keys_of_a_map_with_one_text_are_an_error() -> None:
    of = pa.map_(pa.float64(), pa.duration("us"))
    nans = struct.unpack("<2d", struct.pack("<2Q", 0x7FF8 << 48, 0xFFF8 << 48))
    maps = [[(nans[0], None)], [(nans[0], None), (nans[1], None)]]
    batch = pa.RecordBatch.from_arrays([pa.array(maps, of)], names=["x"])
    assert [*json_objects(batch.slice(0, 1))] == [{"x": {"NaN": None}}]
    with raises(DataError, column="x", map_key="NaN"):
        json_objects(batch)


def test_a_line_with_another_column_or_without_an_object_is_an_error(tmp_path: Path) -> None:
    schema = pa.schema([("x", pa.int64())])
    for line in ('{"y": 1}', "[1]", "x", '{"x": 1} {"x": 2}'):
        (tmp_path / "rows").write_text(line)
        with raises(DataError, line=1):
            list(read_lines(tmp_path / "rows", schema))
    (tmp_path / "rows").write_text('{"x": 1, "y": [{}]}\n{}\n')
    (found,) = read_lines(tmp_path / "rows", schema, ["y"])
    assert found.to_pylist() == [{"x": 1}, {"x": None}]


_NESTED = pa.struct([("a", pa.int64()), ("of", pa.map_(pa.float64(), pa.list_(pa.struct([("b", pa.int64())]))))])


@pytest.mark.parametrize(
    ("value", "path"),
    [
        ('{"a": 1, "A": 2}', "$.value"), ('{"of": {"1": [null, {"b": 1, "c": null}]}}', "$.value.of[...][1]"),
        ('{"a": 1, "a": 1}', "a"), ('{"of": {"1": [{"b": 1, "\\u0062": 2}]}}', "b"),
        ('{"of": {"1": [], "1.0": []}}', ""), ('{"a": 1, "\\u0061": 2}', "a"), ('{"a": 1, "a" : 2}', "a"),
    ],
)  # fmt: skip
def test_a_name_that_a_struct_or_map_would_lose_is_an_error_with_its_path(
    tmp_path: Path, value: str, path: str
) -> None:
    schema = pa.schema([("key", pa.string()), ("value", _NESTED)])
    good = '{"key": "a", "value": {"of": {"1": null, "2": [{"b": 1}, {}]}}, "more": {"more": {}}}\n'
    (tmp_path / "rows").write_text(good + '{"key": "b", "value": ' + value + "}\n")
    with raises(DataError, line=2) as caught:
        list(read_lines(tmp_path / "rows", schema, ["more"]))
    assert path in str(caught.value.facts["reason"])
    (tmp_path / "rows").write_text(good)
    (found,) = read_lines(tmp_path / "rows", schema, ["more"])
    of = [(1.0, None), (2.0, [{"b": 1}, {"b": None}])]
    assert found.to_pylist() == [{"key": "a", "value": {"a": None, "of": of}}]


# -- files ------------------------------------------------------------------------------------------------------------


def test_a_location_is_a_file_a_folder_or_a_pattern(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    hidden = ("_SUCCESS", ".hidden.parquet", "_log/0.json", ".tmp/part-0")
    for name in ("b.parquet", "a.jsonl", "C.JSONL", "x[1].json", *hidden):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()

    def names(location: str) -> list[str]:
        return [file.key for file in find_files(location)]

    assert (
        names(str(tmp_path))
        == names(f"{tmp_path}/")
        == names(tmp_path.as_uri())
        == ["C.JSONL", "a.jsonl", "b.parquet", "x[1].json"]
    )
    others = ["below/c.parquet", "c.parq", "d.CSV", "e.parquet.crc", "notes.txt", "part-00000"]
    for name in others:
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    with raises(ConfigError, location=str(tmp_path), files=others):
        find_files(str(tmp_path))
    assert names(str(tmp_path / "notes.txt")) == ["notes.txt"]
    assert names(str(tmp_path / "x[1].json")) == ["x[1].json"]
    assert names(f"{tmp_path}/*.parquet") == ["b.parquet"]
    assert names(f"{tmp_path}/*/?.parquet") == ["below/c.parquet"]
    monkeypatch.chdir(tmp_path)
    assert names("a.jsonl") == ["a.jsonl"] and names("below/") == ["c.parquet"] and names("*.txt") == ["notes.txt"]
    (tmp_path / "a b").mkdir()
    (tmp_path / "a b" / "c d.json").touch()
    assert [file.uri for file in find_files((tmp_path / "a b" / "c d.json").as_uri())] == [
        (tmp_path / "a b" / "c d.json").as_uri()
    ]
    (tmp_path / "a?b#c.json").touch()
    for location in (f"file://{tmp_path}/a?b#c.json", f"file:{tmp_path}/a?b#*", f"file://localhost{tmp_path}/?[?]b*"):
        assert names(location) == ["a?b#c.json"]
    (tmp_path / "below" / "d.jsonl.gz").touch()
    with raises(ConfigError, location=f"{tmp_path}/below/", files=["d.jsonl.gz"]):
        find_files(f"{tmp_path}/below/")
    for missing in ("none.parquet", "below/*.json", "none/"):
        with raises(ConfigError, location=missing):
            find_files(missing)


def test_files_of_an_object_storage_are_read(tmp_path: Path) -> None:
    name = tmp_path.name
    pq.write_table(pa.table({"key": ["a"], "shop": [1], "value": [7]}), tmp_path / "rows")
    storage = open_storage(f"memory://{name}")
    storage.put_new("one.parquet", (tmp_path / "rows").read_bytes())
    storage.put_new("two.jsonl", b'{"key": "b", "shop": 2, "value": 8}\n')
    for below, rows in (("", 2), ("/*.jsonl", 1), ("/one.parquet", 1)):
        location = f"memory://{name}{below}"
        made = _written(tmp_path, "--state", f"every.one={location}", "--name", f"rows-{rows}")
        assert [state["rows"] for state in made["states"]] == [rows]
        shutil.rmtree(tmp_path / "written")


def test_repeated_large_values_of_parquet_are_read_in_parts_of_bounded_size(tmp_path: Path) -> None:
    rows, text = 2000, "x" * 50_000
    keys = pa.array([str(number) for number in range(rows)])
    table = pa.table({"key": keys, "shop": [1] * rows, "value": pa.array([{"text": [text]}] * rows)})
    pq.write_table(table, tmp_path / "rows.parquet")
    assert (tmp_path / "rows.parquet").stat().st_size < 1 << 20
    columns = FileColumns(table.schema, frozenset(), ("key",), {name: name for name in table.schema.names}, ())
    found = FileRows(find_files(str(tmp_path)), columns, table.schema)
    sizes, read = [], []
    for batch in found.reader(lambda: None):
        sizes.append(batch.nbytes)
        read += batch.column("key").to_pylist()
        assert set(batch.column("value").to_pylist()[0]["text"]) == {text}
    assert read == keys.to_pylist() and max(sizes) < 24 << 20 and len(sizes) < 10
    # Small rows are in few batches.
    pq.write_table(pa.table({"key": keys, "shop": [1] * rows}), tmp_path / "rows.parquet")
    small = pa.schema([table.schema.field("key"), table.schema.field("shop")])
    assert [batch.num_rows for batch in FileRows(found.files, columns, small).batches(small.names)] == [rows]


def test_a_time_to_live_begins_at_the_given_time_without_a_column_of_times(tmp_path: Path) -> None:
    (tmp_path / "rows").write_text('{"key": "a", "shop": 1, "value": 7}\n')
    made = _written(tmp_path, "--state", f"every.brief={tmp_path / 'rows'}", "--at", "2026-01-02T03:00+01:00")
    (row,) = stateflow.read_state(made["path"], "every", "brief").read_all().to_pylist()
    assert row["written_at"] == datetime(2026, 1, 2, 2, tzinfo=UTC).timestamp() * 1000
    again = _written(tmp_path, "--state", f"every.brief={tmp_path / 'rows'}", "--at", "2026-01-02T02:00")
    assert again == made
