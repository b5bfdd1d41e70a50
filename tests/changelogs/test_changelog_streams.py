"""What a stream knows when it is declared: whether it corrects rows, by which key, and who may consume it."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Mapping
from typing import Any

import msgspec
import pytest

import stateflow
from stateflow import (
    DeadLetters,
    DeltaSink,
    FileSink,
    ForeachBatchSink,
    GlobalWindows,
    IcebergSink,
    KafkaSink,
    KeyedProcessFunction,
    PostgresSink,
    RowKind,
    StreamExecutionEnvironment,
    ValueStateDescriptor,
)
from stateflow.api.changelog import Changelog
from stateflow.api.sink import PrintSink, Sink
from stateflow.api.streams.data_stream import DataStream
from stateflow.environment import declare as declare_job
from stateflow.errors import JobDefinitionError
from tests.support.errors import raises
from tests.support.graphs import Nothing


class Bid(msgspec.Struct):
    auction: int
    price: int
    at: int


class Ranked(msgspec.Struct):
    auction: int
    price: int
    at: int
    rank: int


class Change(msgspec.Struct):
    kind: RowKind
    auction: int
    price: int
    at: int


class RankedChange(msgspec.Struct):
    kind: RowKind
    auction: int
    price: int
    at: int
    rank: int


class Price(msgspec.Struct):
    price: int


class Counted(msgspec.Struct):
    kind: RowKind
    price: int
    rows: int


class MaybeBid(msgspec.Struct):
    auction: int
    price: int | None
    at: int


class Doubled(msgspec.Struct):
    auction: int
    doubled: int


class Forward(KeyedProcessFunction[Change, Change]):
    """Emits its rows."""


@pytest.fixture
def env() -> StreamExecutionEnvironment:
    return StreamExecutionEnvironment()


@pytest.fixture
def bids(env: StreamExecutionEnvironment) -> DataStream:
    return env.from_source(Nothing(Bid), uid="bids")


def _newest(bids: DataStream) -> DataStream:
    return bids.key_by("auction").deduplicate(keep="last", order_by="at", uid="newest")


def _changes(bids: DataStream) -> DataStream:
    return bids.key_by("auction").top_n(3, order_by="price", output=Change, uid="changes")


def _ranked(bids: DataStream, output: type[object] = Ranked, **more: Any) -> DataStream:
    return bids.key_by("auction").top_n(3, order_by="price", output=output, rank="rank", uid="ranked", **more)


COUNTS = {"rows": ("count", "at")}
UPSERTS = Changelog(("auction",))
RETRACTIONS = Changelog(row_kind="kind", retracts=True)


@pytest.mark.parametrize(
    ("declare", "expected"),
    [
        (lambda bids: bids, None),
        (lambda bids: bids.key_by("auction").deduplicate(uid="o"), None),
        (lambda bids: bids.key_by("auction").deduplicate(keep="last", uid="o"), UPSERTS),
        (lambda bids: bids.key_by("auction").deduplicate(order_by="at", uid="o"), UPSERTS),
        (_changes, RETRACTIONS),
        (_ranked, Changelog(("auction", "rank"))),
        (lambda bids: _ranked(bids, RankedChange), Changelog(("auction", "rank"), "kind")),
        (lambda bids: _ranked(bids, RankedChange, retract=True), Changelog(("auction", "rank"), "kind", retracts=True)),
        (lambda bids: _newest(bids).map(lambda row: row, output=Doubled), UPSERTS),
        (lambda bids: _newest(bids).as_append_only(), None),
        (lambda bids: _changes(bids).filter(lambda row: True), RETRACTIONS),
        (lambda bids: _changes(bids).union(_changes_again(bids)), RETRACTIONS),
        (lambda bids: _changes(bids).key_by("price").process(Forward(), output=Change, uid="p"), RETRACTIONS),
        # A user's function makes a changelog by the class of its rows.
        (lambda bids: bids.map(lambda row: row, output=Change), RETRACTIONS),
        (lambda bids: bids.map(lambda row: row, output=Change).as_changelog("price"), Changelog(("price",), "kind")),
        (lambda bids: bids.as_changelog("auction"), UPSERTS),
        (lambda bids: _change_rows(bids).as_changelog("price", retracts=True), Changelog(("price",), "kind", True)),
        # Deduplication that retracts rows, for the operators that need it.
        (lambda bids: _retracting(bids), Changelog(("auction",), "kind", True)),
        (
            lambda bids: _retracting(bids).key_by("price").aggregate_columns(COUNTS, output=Counted, uid="c"),
            Changelog(("price",), "kind"),
        ),
        # Rows of their own stay that, also after operators.
        (lambda bids: _rows_of_their_own(bids).process(Forward(), output=Change, uid="p"), None),
        (lambda bids: _rows_of_their_own(bids).deduplicate(uid="d"), None),
        (
            lambda bids: _rows_of_their_own(bids).deduplicate(keep="last", uid="d").map(lambda row: row),
            Changelog(("price",)),
        ),
        (lambda bids: _rows_of_their_own(bids).reduce(max, uid="r"), None),
        (
            lambda bids: _rows_of_their_own(bids).top_n(2, order_by="at", output=RankedChange, rank="rank", uid="t"),
            Changelog(("price", "rank")),
        ),
    ],
)
def test_a_stream_knows_how_its_rows_correct_earlier_ones(
    bids: DataStream, declare: Callable[[DataStream], DataStream], expected: Changelog | None
) -> None:
    assert declare(bids)._changelog == expected


def _change_rows(bids: DataStream) -> DataStream:
    return bids.map(lambda row: row, output=Change)


def _retracting(bids: DataStream) -> DataStream:
    return bids.key_by("auction").deduplicate(keep="last", output=Change, retract=True, uid="newest")


def _rows_of_their_own(bids: DataStream) -> Any:
    return _changes(bids).as_append_only().key_by("price")


def _changes_again(bids: DataStream) -> DataStream:
    return bids.key_by("price").top_n(2, order_by="auction", output=Change, uid="again")


@pytest.mark.parametrize(
    ("declare", "facts"),
    [
        # Operators that take each row as one of its own.
        (lambda bids: _newest(bids).key_by("auction").reduce(max, uid="r"), {"called": "reduce"}),
        (lambda bids: _newest(bids).key_by("auction").window(GlobalWindows.create()), {"called": "window"}),
        (lambda bids: _newest(bids).key_by("auction").interval_join(bids.key_by("price")), {"called": "interval_join"}),
        (lambda bids: _changes(bids).key_by("price").deduplicate(uid="d"), {"called": "deduplicate"}),
        (lambda bids: _newest(bids).key_by("auction").process(Forward(), output=Bid, uid="p"), {"called": "process"}),
        (lambda bids: _newest(bids).key_by("auction").connect(bids.key_by("price")), {"called": "connect"}),
        # A row and the one that it replaces get apart.
        (lambda bids: _newest(bids).key_by("price"), {"columns": ["price"], "upsert_key": ["auction"]}),
        (lambda bids: _newest(bids).filter(lambda row: True), {"upsert_key": ["auction"]}),
        (lambda bids: _newest(bids).union(bids), {"called": "union"}),
        (lambda bids: _newest(bids).map(lambda row: row, on_error=DeadLetters(1)), {"upsert_key": ["auction"]}),
        (lambda bids: _newest(bids).broadcast(), {"called": "broadcast"}),
        # The row class lacks what corrects rows.
        (lambda bids: _newest(bids).map(lambda row: row, output=Price), {"upsert_key": ["auction"]}),
        (lambda bids: _changes(bids).map(lambda row: row, output=Bid), {"row_kind": "kind"}),
        (lambda bids: bids.key_by("auction").top_n(2, order_by="price", uid="t"), {"output": "Bid"}),
        (lambda bids: _ranked(bids, Change), {"rank": "rank"}),
        (lambda bids: _ranked(bids, retract=True), {"output": "Ranked"}),
        # Arguments.
        (lambda bids: bids.key_by("auction").deduplicate(keep="other", uid="d"), {"given": "'other'"}),
        (lambda bids: bids.key_by("auction").top_n(0, order_by="price", uid="t"), {"n": "0"}),
        (lambda bids: bids.key_by("auction").top_n(1, order_by=[], uid="t"), {}),
        (lambda bids: bids.key_by("auction").top_n(1, order_by=[("at", "down")], uid="t"), {"given": "('at', 'down')"}),
        (lambda bids: bids.as_changelog("none"), {"column": "none"}),
        (lambda bids: bids.as_changelog(), {}),
        (lambda bids: bids.as_changelog("auction", retracts=True), {"row_class": "Bid"}),
        (lambda bids: bids.key_by("auction").deduplicate(output=Change, uid="d"), {"uid": "d"}),
        (lambda bids: bids.key_by("auction").deduplicate(keep="last", retract=True, uid="d"), {"output": "Bid"}),
        (lambda bids: bids.key_by("auction").deduplicate(keep="last", output=Ranked, uid="d"), {"rank": ""}),
        (
            lambda bids: (
                bids.map(lambda row: row, output=MaybeBid).key_by("at").top_n(2, order_by="at", output=Change, uid="t")
            ),
            {"column": "price", "output": "Change"},
        ),
        (lambda bids: bids.key_by("price").aggregate_columns({}, output=Price, uid="a"), {"operator": "a"}),
        # Aggregates of rows that do not retract what they replace; and without a kind of their own results.
        (
            lambda bids: _newest(bids).key_by("auction").aggregate_columns(COUNTS, output=Counted, uid="a"),
            {"retracts": False, "operator": "a"},
        ),
        (
            lambda bids: _changes(bids).key_by("price").aggregate_columns(COUNTS, output=Price, uid="a"),
            {"retracts": True, "result_kind": ""},
        ),
    ],
)
def test_what_would_be_wrong_is_refused(
    bids: DataStream, declare: Callable[[DataStream], object], facts: dict[str, Any]
) -> None:
    with raises(JobDefinitionError, **facts):
        declare(bids)


def test_a_queryable_state_takes_upserts_by_its_key(bids: DataStream) -> None:
    _newest(bids).key_by("auction").as_queryable_state("newest", ValueStateDescriptor("row", Bid), uid="q")
    with raises(JobDefinitionError, called="as_queryable_state"):
        _changes(bids).key_by("auction").as_queryable_state("changes", ValueStateDescriptor("row", Change), uid="r")


APPENDING: Mapping[str, Callable[[], Sink]] = {
    "DeltaSink": lambda: DeltaSink("table"),
    "FileSink": lambda: FileSink("files", format="json"),
    "IcebergSink": lambda: IcebergSink("space.table"),
    "KafkaSink": lambda: KafkaSink("localhost:1", topic="topic"),
    "PostgresSink": lambda: PostgresSink("host=localhost", "public.table"),
}
"""The sinks that only append rows, as they do by default."""
BY_KEY: Mapping[str, Callable[[tuple[str, ...]], Sink]] = {
    "DeltaSink": lambda keys: DeltaSink("table", mode="upsert", keys=keys),
    "KafkaSink": lambda keys: KafkaSink("localhost:1", topic="topic", key=keys),
    "PostgresSink": lambda keys: PostgresSink("host=localhost", "public.table", mode="upsert", keys=keys),
}
"""The same with keys, where a sink can have them."""
ANY_ROWS: Mapping[str, Callable[[], Sink]] = {
    "ForeachBatchSink": lambda: ForeachBatchSink(print),
    "PrintSink": PrintSink,
}
PUBLIC = {name for name in stateflow.__all__ if name.endswith("Sink")}


def _declared(rows: Callable[[DataStream], DataStream], sink: Sink) -> Sink:
    """What the graph has of a sink, after `build`."""

    def build(env: StreamExecutionEnvironment) -> None:
        rows(env.from_source(Nothing(Bid), uid="bids")).sink_to(sink, uid="s")

    env, _ = declare_job(build, "job", ())
    return env.graph.sinks[0].sink


def _ways_out(hint: str) -> dict[str, set[str]]:
    """The classes and methods that a hint calls, with the names of arguments."""
    return {name: set(re.findall(r"(\w+)=", given)) for name, given in re.findall(r"(\w+)\(([^)]*)\)", hint)}


@pytest.mark.parametrize(
    ("rows", "keys", "facts"),
    [
        (_newest, ("auction",), {"upsert_key": ["auction"], "row_kind": ""}),
        (_changes, ("auction", "price", "at"), {"upsert_key": [], "row_kind": "kind"}),
        (_ranked, ("auction", "rank"), {"upsert_key": ["auction", "rank"], "row_kind": ""}),
    ],
)
@pytest.mark.parametrize("name", sorted({*PUBLIC, "PrintSink"}))
def test_a_changelog_ends_in_a_sink_by_key_and_in_one_that_takes_any_rows(
    name: str, rows: Callable[[DataStream], DataStream], keys: tuple[str, ...], facts: dict[str, object]
) -> None:
    if name in ANY_ROWS:
        assert type(_declared(rows, ANY_ROWS[name]())).__name__ == name
        return
    sink = APPENDING[name]()
    with raises(JobDefinitionError, sink=repr(sink), **facts) as caught:
        _declared(rows, sink)
    assert caught.value.code == "job-definition"
    ways_out = _ways_out(caught.value.hint)
    assert ways_out.pop("as_append_only") == set()
    assert _declared(lambda bids: rows(bids).as_append_only(), sink) is sink
    assert ways_out.keys() == BY_KEY.keys()
    for of, arguments in ways_out.items():
        assert arguments and arguments <= inspect.signature(getattr(stateflow, of)).parameters.keys()
    if name in BY_KEY:
        assert type(_declared(rows, BY_KEY[name](keys))).__name__ == name


@pytest.mark.parametrize(
    ("declare", "more", "facts"),
    [
        (_newest, {"keys": "price"}, {"keys": ["price"], "upsert_key": ["auction"]}),
        (_ranked, {"keys": "auction"}, {"keys": ["auction"], "upsert_key": ["auction", "rank"]}),
        (_changes, {"keys": "auction", "order_by": "at"}, {"order_by": ["at"], "row_kind": "kind"}),
        (_newest, {"keys": "auction", "order_by": "at"}, {"order_by": ["at"], "row_kind": ""}),
        # A part of the upsert key identifies no row, although rows are retracted.
        (
            lambda bids: _ranked(bids, RankedChange, retract=True),
            {"keys": "auction"},
            {"keys": ["auction"], "upsert_key": ["auction", "rank"]},
        ),
    ],
)
def test_a_sink_by_key_refuses_other_keys_and_orders(
    bids: DataStream, declare: Callable[[DataStream], DataStream], more: Any, facts: Any, tmp_path: Any
) -> None:
    with raises(JobDefinitionError, **facts):
        declare(bids).sink_to(DeltaSink(tmp_path, mode="upsert", **more), uid="s")


def test_a_row_class_has_one_row_kind(env: StreamExecutionEnvironment) -> None:
    class Two(msgspec.Struct):
        first: RowKind
        second: RowKind

    class Nullable(msgspec.Struct):
        kind: RowKind | None

    for row_class, columns in ((Two, ["first", "second"]), (Nullable, ["kind"])):
        with raises(JobDefinitionError, columns=columns):
            env.from_source(Nothing(row_class), uid=row_class.__name__)
