"""Values of every type and state of every kind, written from columns: equal to the stored ones, or an error."""

from __future__ import annotations

import datetime
import decimal
import enum
import math
import random
import tempfile
import uuid
from collections import Counter
from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path
from typing import Annotated, Any, NamedTuple, NotRequired, TypedDict

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stateflow import MapStateDescriptor, SavepointWriter, Serializer, ValueStateDescriptor, read_state
from stateflow.api.functions.process import KeyedProcessFunction
from stateflow.bootstrap.encoded_values import ValueEncoder
from stateflow.bootstrap.frames import StateColumns
from stateflow.checkpoint.savepoints.catalog import savepoint_at
from stateflow.config.settings import EntryLimits
from stateflow.environment import StreamExecutionEnvironment
from stateflow.errors import DataError, SchemaMismatch, StateError
from stateflow.operations import SavepointRequest, create_savepoint_into
from stateflow.query.value_types import Refused, ValueReader
from stateflow.state.handles import StateSchema
from stateflow.state.schema import from_json_text, json_text, type_schema
from stateflow.types.columns.precision import precision
from stateflow.types.serializers import VALUE_FORMAT, CustomValueSerializer, ValueSerializer
from tests.bootstrap.given_state import add_operators, source_of
from tests.support import moved_state, stored_state
from tests.support.errors import raises
from tests.support.local_jobs import Growing, LocalJobs
from tests.support.moved_state import BACKENDS, NAMES, PLACES
from tests.support.root_files import head, read_manifest, unsealed

NOON = datetime.datetime(2024, 2, 29, 12)  # noqa: DTZ001 - without a zone
NOON_UTC = NOON.replace(tzinfo=datetime.UTC)
NAN, INFINITY = float("nan"), float("inf")
ID = uuid.UUID(int=3)
Instant = Annotated[datetime.datetime, msgspec.Meta(tz=True)]


class Color(enum.Enum):
    RED = "red"


class ByName(msgspec.Struct):
    anything: Any
    number: float | str = 1.0


class ByPosition(msgspec.Struct, array_like=True, tag="position"):
    first: int | str
    second: set[int] = set()


class Numbered(msgspec.Struct, array_like=True, tag=1):
    first: bytes | int


class Other(msgspec.Struct, array_like=True, tag=2):
    first: bytes


class Options(TypedDict):
    name: str
    limit: NotRequired[int]
    texts: NotRequired[dict[int, str] | str]


class Point(NamedTuple):
    x: float | str
    y: Options | None = None


class Sparse(msgspec.Struct, omit_defaults=True, rename={"size": "a size"}):
    size: int = 3
    marks: list[float | str] = []


class Bounds(msgspec.Struct, omit_defaults=True):
    """Defaults that JSON does not have."""

    smallest: float = INFINITY
    mark: Any = b"q"
    size: float | str = INFINITY
    names: dict[int, str] = msgspec.field(default_factory=dict)


class MaybeSet(msgspec.Struct):
    size: int | msgspec.UnsetType = msgspec.UNSET


class Empty(msgspec.Struct):
    pass


class Priced(msgspec.Struct):
    price: Annotated[decimal.Decimal, precision(12, scale=2)] | None
    of: int | str


class MaybeNone(TypedDict):
    size: NotRequired[int | None]


class Made(msgspec.Struct):
    size: int | None = msgspec.field(default_factory=lambda: 5)


class Item(msgspec.Struct):
    a: int = 0


class Tagged(msgspec.Struct, tag="t"):
    a: int


class OtherTagged(msgspec.Struct, tag="o"):
    a: int


class Nested(msgspec.Struct):
    inner: Item
    marks: set[int] = set()


class Tree(msgspec.Struct):
    a: int
    next: Tree | None = None


def restored(kind: Any, *values: Any) -> list[Any]:
    """The values that are stored after they were read as a column, and written from it."""
    codec: ValueSerializer[Any] = ValueSerializer(kind)
    schema = StateSchema(name="s", kind="value", value_type="", type=type_schema(kind))
    column = ValueReader(schema, Refused.ZONE | Refused.ABSENT).read(
        [codec.encode(value) for value in values], lambda row: {}
    )
    written = ValueEncoder(ValueSerializer(kind), StateColumns("value"), EntryLimits(), "s")
    return [codec.decode(stored) for stored in written.encode(pa.record_batch([column], ["value"])).to_pylist()]


@pytest.mark.parametrize(
    ("kind", "values"),
    [
        (float | str | None, [NAN, INFINITY, -INFINITY, "NaN", 1.0]),
        (Any, [{"a": b"q"}, {1: 2}, {(1, ("a",)): 3}, [1, NAN, None], NOON_UTC, {"$float": "NaN"}, {"$other": 1}]),
        (Any, [1, 1.0, True, "1", -0.0, (1 << 64) - 1, {}, [], {"$dict": [], "a": 1}, {None: 1}]),
        (dict[int, str] | list[int], [{1: "a"}, [1]]), (dict[tuple[int, str], int], [{(1, "a"): 2}]),
        (dict[float, int] | int, [{NAN: 1, 1.0: 2, -INFINITY: 3}]), (dict[bytes, int] | int, [{b"q": 1}]),
        (dict[datetime.date, int] | int, [{NOON.date(): 1}]), (dict[bool, int] | str, [{True: 1}]),
        (dict[decimal.Decimal, int] | int, [{decimal.Decimal("1.0"): 2}]),
        (dict[str, set[str] | int], [{"a": {"b"}, "c": 1}]), (Instant | int, [NOON_UTC, 3]),
        (datetime.datetime | int, [NOON, NOON_UTC, 3]), (list[datetime.date | int], [[NOON.date(), 2]]),
        (uuid.UUID | int, [ID, 7]), (Color | int, [Color.RED, 1]), (bytes | int, [b"\xff\0", 1]),
        (frozenset[tuple[int, str]], [frozenset([(1, "a")])]), (datetime.datetime, [NOON]),
        (dict[datetime.datetime, list[datetime.datetime]], [{NOON: [NOON]}]),
        (ByName, [ByName(b"q", "x"), ByName({1: NAN}, NAN), ByName(None)]),
        (ByPosition, [ByPosition("a", {1, 2}), ByPosition(1)]), (Numbered, [Numbered(b"q"), Numbered(7)]),
        (Numbered | Other, [Numbered(b"q"), Other(b"q")]), (list[ByPosition], [[ByPosition(1, {2})]]),
        (Options, [{"name": "n"}, {"limit": 2, "name": "n", "texts": {1: "a"}}]),
        (Point, [Point("a", {"name": "n"}), Point(NAN)]),
        (dict[str, Point], [{"a": Point(1.0, {"limit": 1, "name": "n"})}]),
        (Sparse, [Sparse(), Sparse(4, [NAN, "a"])]), (Bounds, [Bounds(), Bounds(1.0, b"r", 2, {2: "b"})]),
        (MaybeSet, [MaybeSet(), MaybeSet(3)]), (Empty, [Empty()]),
        (Priced, [Priced(decimal.Decimal("1.50"), "a"), Priced(None, 1)]),
    ],
)  # fmt: skip
def test_a_value_is_written_as_the_stored_one(kind: Any, values: list[Any]) -> None:
    stored: list[Any] = [ValueSerializer(kind).decode(ValueSerializer(kind).encode(value)) for value in values]
    # Texts, because NaN differs from itself, and 1 equals 1.0.
    assert list(map(repr, restored(kind, *values))) == list(map(repr, stored))


_SCALARS: st.SearchStrategy[Any] = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(1 << 63), (1 << 64) - 1),
    # The sign of NaN is not one of its JSON.
    st.floats().map(lambda number: math.nan if math.isnan(number) else number),
    st.text(max_size=3),
    st.sampled_from(["$float", "$bytes", "$dict", "$datetime", "$extension", "NaN"]),
    st.binary(max_size=3),
    st.datetimes(timezones=st.just(datetime.UTC)),
    st.builds(msgspec.msgpack.Ext, st.integers(0, 127), st.binary(max_size=2)),
)
_KEYS = st.recursive(
    _SCALARS.filter(lambda key: not isinstance(key, msgspec.msgpack.Ext)),
    lambda parts: st.lists(parts, max_size=2).map(tuple),
    max_leaves=3,
)
VALUES: st.SearchStrategy[Any] = st.recursive(
    _SCALARS, lambda parts: st.lists(parts, max_size=3) | st.dictionaries(_KEYS, parts, max_size=3), max_leaves=8
)


@given(VALUES)
def test_every_plain_value_is_restored_from_its_json(value: Any) -> None:
    found = from_json_text(json_text(value))
    assert msgspec.msgpack.encode(found) == msgspec.msgpack.encode(value)


@pytest.mark.parametrize(
    "text",
    [
        *("", "{", "[" * 100_000, '{"$float":"x"}', '{"$float":1}', '{"$bytes":"?"}', '{"$dict":[[1]]}'),
        *('{"$dict":[[{"a":1},2]]}', '{"$dict":[[1,2],[1,3]]}', '{"$datetime":"x"}', '{"$extension":[1]}'),
    ],
)
def test_a_text_that_is_no_such_json_is_a_schema_mismatch(text: str) -> None:
    written = ValueEncoder(ValueSerializer(int | str), StateColumns("value"), EntryLimits(), "s")
    with pytest.raises(SchemaMismatch) as raised:
        written.encode(pa.record_batch([[text]], ["value"]))
    assert raised.value.facts["value"] == text[:200]


@pytest.mark.parametrize(("kind", "stored"), [(MaybeNone, b"\x80"), (list[MaybeNone], b"\x91\x80"), (Made, b"\x80")])
def test_an_absent_field_that_could_be_none_is_refused(kind: Any, stored: bytes) -> None:
    schema = StateSchema(name="s", kind="value", value_type="", type=type_schema(kind))
    reader = ValueReader(schema, Refused.ABSENT)
    with raises(StateError, key="k"):
        reader.read([VALUE_FORMAT + stored], lambda row: {"key": "k"})


def _written(kind: Any, column: pa.Array) -> list[bytes]:
    written = ValueEncoder(ValueSerializer(kind), StateColumns("value"), EntryLimits(), "s")
    found: list[bytes] = written.encode(pa.record_batch([column], ["value"])).to_pylist()
    return found


_PAIRS = pa.map_(pa.string(), pa.int64())


@pytest.mark.parametrize(
    ("kind", "column"),
    [
        (dict[str, int] | int, pa.array(['{"a":1,"a":2}'])), (Any, pa.array(['{"a":1,"a":2}'])),
        (Tagged | OtherTagged, pa.array(['{"type":"t","a":1,"zzz":2}'])),
        (Tree, pa.array([{"a": 1, "next": '{"a":2,"q":3}'}])), (Item | int, pa.array([{"a": 1, "zz": 1}])),
        (Item | int, pa.array(['{"a":1,"zz":1}'])), (Nested, pa.array([{"inner": {"a": 1, "q": 1}, "marks": [1]}])),
        (dict[str, Nested], pa.array([{"x": {"inner": {"a": 1, "q": 1}, "marks": [1]}}])),
        (list[set[int]], pa.array([[[1, 1]]])), (set[float], pa.array([[(1 << 53) + 1]])),
        (set[float], pa.array([[decimal.Decimal("0.12345678901234567890123")]])),
        (set[datetime.time], pa.array([[1]], pa.list_(pa.time64("ns")))),
        (set[datetime.date], pa.array([[1 << 30]], pa.list_(pa.date32()))),
        (dict[decimal.Decimal, int], pa.array([[("1.0", 1), ("1.00", 2)]], _PAIRS)),
        (dict[float, int], pa.array([[(0.0, 1), (-0.0, 2)]], pa.map_(pa.float64(), pa.int64()))),
        (float | str, pa.array(["1e999"])), (float | str, pa.array(["NaN"])),
    ],
)  # fmt: skip
def test_nothing_of_a_value_is_dropped_merged_or_rounded(kind: Any, column: pa.Array) -> None:
    with pytest.raises((SchemaMismatch, DataError)):
        _written(kind, column)


def test_a_deeply_nested_value_is_read_and_written() -> None:
    value: Any = 1
    for _ in range(600):
        value = [value, {"a": 1}]
    for _ in range(100):
        value = {"a": value}
    assert restored(Any, value) == [value]


class Reversed(Serializer[str]):
    name, version = "reversed", 1

    def encode(self, value: str) -> bytes:
        return str(value)[::-1].encode()

    def decode(self, data: bytes, version: int) -> str:
        return data.decode()[::-1]


def test_bytes_of_a_serializer_are_found_in_any_order_of_fields() -> None:
    codec = CustomValueSerializer(Reversed(), str)
    written = ValueEncoder(codec, StateColumns("value"), EntryLimits(), "s")
    stored = codec.encode("ab")
    column = pa.array([{"data": b"ba", "version": 1}])
    assert written.encode(pa.record_batch([column], ["value"])).to_pylist() == [stored]


class KeepTime(KeyedProcessFunction[Any, Any]):
    """Stores a time with a zone in a state that declares none."""

    def open(self, ctx: Any) -> None:
        self.time = ctx.get_state(ValueStateDescriptor("time", datetime.datetime))
        self.times = ctx.get_map_state(TIMES)

    def process_element(self, row: Any, ctx: Any) -> None:
        self.time.update(NOON_UTC)
        self.times.put(NOON_UTC, 1)
        self.times.put(NOON, 2)


class Row(msgspec.Struct):
    key: str


TIMES = MapStateDescriptor("times", datetime.datetime, int)


def _build(env: StreamExecutionEnvironment) -> None:
    rows = env.from_source(Growing([Row("a")], Row), uid="rows")
    rows.key_by("key").process(KeepTime(), output=Row, uid="keep")


def test_a_transformation_does_not_remove_a_zone(tmp_path: Path) -> None:
    jobs = LocalJobs(tmp_path)
    jobs.run(_build)
    request = SavepointRequest("made", from_head=True)
    savepoint = create_savepoint_into(jobs.storage.uri, request, str(tmp_path / "savepoints")).path
    kinds: list[Any] = [datetime.datetime, Any]
    for kind in kinds:
        same = SavepointWriter.from_savepoint(savepoint)
        same.transform_state("keep", ValueStateDescriptor("time", kind), lambda batch: batch)
        with raises(StateError, operator="keep", state="time", key=("a",)):
            same.write(tmp_path / "same")

    def in_utc(batch: pa.RecordBatch) -> pa.RecordBatch:
        at = batch.schema.get_field_index("value")
        return batch.set_column(at, "value", pc.assume_timezone(batch.column(at), "UTC"))

    declared = SavepointWriter.from_savepoint(savepoint)
    declared.transform_state("keep", ValueStateDescriptor("time", Instant), in_utc)
    declared.transform_state("keep", TIMES, lambda batch: batch)
    written = declared.write(tmp_path / "declared")
    before, after = (read_state(each, "keep", "times").read_all() for each in (savepoint, written))
    assert after.num_rows == 2 and after.equals(before)
    assert read_state(written, "keep", "time").read_all().column("value").to_pylist() == [NOON_UTC]


# -- state of every kind, from dictionaries ---------------------------------------------------------------------------

ACTIONS = ["update", "clear", "add", "put", "remove", "tag", "rate", "timer", "no timer", "event timer"]


def _reader(table: pa.Table) -> pa.RecordBatchReader:
    return table.to_reader(max_chunksize=3)


SHAPES = {"table": lambda table: table, "reader": _reader}


class Story(moved_state.Story):
    """A job, what its random rows lead to, and a job that begins with a savepoint of the same state."""

    def __init__(self, seed: int, folder: Path) -> None:
        super().__init__(folder)
        self.dice = random.Random(seed)
        self.began = self.clock.now()
        self.groups = self.dice.choice([1, 7, 64, 300])

    def jobs(self, name: str, backends: Sequence[str] = BACKENDS) -> LocalJobs:
        return LocalJobs(
            self.folder / name, self.clock, state__backend=self.dice.choice(backends),
            parallelism=self.dice.randint(1, min(4, self.groups)), max_parallelism=self.groups,
            source__max_rows_per_batch=1000,
        )  # fmt: skip

    def process(self, jobs: LocalJobs) -> None:
        """Runs a batch of random rows, here and in the job."""
        dice = self.dice
        count = dice.randint(1, 40)
        self.apply(
            jobs,
            [
                (dice.choice(PLACES), dice.choice(ACTIONS), dice.choice(NAMES), dice.randint(-3, 300))
                for _ in range(count)
            ],
        )

    def write(self) -> str:
        """Writes the savepoint from the dictionaries."""
        parallelism = self.dice.randint(1, min(4, self.groups))
        writer = SavepointWriter.new("job", max_parallelism=self.groups, parallelism=parallelism, clock=self.clock)
        add_operators(writer, self.expected, self.began, SHAPES[self.dice.choice(sorted(SHAPES))])
        writer.with_source("rows", source_of(self.rows), {"row": len(self.rows)})
        return writer.write(str(self.folder / "written"))

    def begin(self, savepoint: str) -> LocalJobs:
        return self.start(self.jobs("new"), savepoint)


Entries = Counter[tuple[bytes, bytes]]


def _entries(folder: Path, manifest: dict[str, Any]) -> tuple[Entries, Entries]:
    """The stored entries of the operator, and its expiry entries; those of lists without their positions."""
    (operator,) = (each for each in manifest["operators"] if each["uid"] == "every")
    names = {schema["name"]: schema["kind"] for schema in operator["states"]}
    expiry = {stored_state.state_id(f"{name}\0expiry"): kind for name, kind in names.items()}
    kinds = {stored_state.state_id(name): kind for name, kind in names.items()} | expiry
    values: Entries = Counter()
    hints: Entries = Counter()
    for subtask in operator["subtasks"]:
        for key, value in stored_state.stored_entries(folder, subtask):
            found = hints if key[2:6] in expiry else values
            found[key[:-12] if kinds.get(key[2:6]) == "list" else key, value] += 1
    return values, hints


def _check(seed: int, folder: Path) -> None:
    story = Story(seed, folder)
    # Backends whose files the test reads without the code under test.
    old = story.jobs("old", ["filesystem", "memory"])
    story.process(old)
    story.clock.sleep(timedelta(minutes=story.dice.choice([0, 20])))
    story.process(old)
    root = old.folder / "root"
    stored = _entries(root, read_manifest(root, head(root).doc["manifest"]))
    written = story.write()
    place = Path(written.removeprefix("file://"))
    document, _ = unsealed((place / "_savepoint").read_bytes())
    values, hints = _entries(place, document["manifest"])
    # A run leaves expiry entries of values that were written again.
    assert values == stored[0] and hints <= stored[1]
    assert hints.total() == sum(value[:1] == b"\x02" for _, value in values.elements())
    savepoint_at(written).verify()
    story.clock.sleep(timedelta(minutes=story.dice.choice([0, 41])))
    new = story.begin(written)
    story.check(new)
    story.process(new)
    story.check(new)
    story.check_timers(new)


@pytest.mark.long(reason="writes and restores savepoints of random jobs")
@pytest.mark.parametrize("share", [15, pytest.param(1, marks=pytest.mark.slow(reason="as many examples as elsewhere"))])
def test_a_job_continues_from_state_that_dictionaries_describe(share: int) -> None:
    """The stored entries are those of a run that has led to the same state, byte by byte."""

    @settings(max_examples=max(1, settings().max_examples // share))
    @given(seed=st.integers(0, 1 << 32))
    def check(seed: int) -> None:
        with tempfile.TemporaryDirectory() as folder:
            _check(seed, Path(folder))

    check()
