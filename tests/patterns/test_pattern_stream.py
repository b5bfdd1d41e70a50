"""The methods of a stream with a pattern, and declarations that are refused."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

import stateflow
from stateflow import (
    AfterMatchSkipStrategy,
    Context,
    OutputTag,
    Pattern,
    PatternProcessFunction,
    RuntimeContext,
    StreamExecutionEnvironment,
    ValueStateDescriptor,
    WatermarkStrategy,
)
from stateflow.errors import JobDefinitionError
from stateflow.testing import KeyedHarness, KeyedInput
from tests.patterns.pattern_rows import (
    INPUT,
    TIMED_OUT,
    Found,
    Row,
    as_text,
    harness,
    matches,
    matching,
    named,
    rows_of,
    texts,
)
from tests.support.errors import raises
from tests.support.local_jobs import Growing, LocalJobs

A, B = named("a"), named("b")
PAIR = Pattern.begin("one", A).next("two", B)
LATE = OutputTag("late", Row)
TEN = timedelta(milliseconds=10)


class Count(PatternProcessFunction[Row, Found]):
    """Numbers the matches of a key, and emits rows of both kinds to side outputs."""

    def open(self, ctx: RuntimeContext) -> None:
        self.count = ctx.get_state(ValueStateDescriptor("count", int))

    def process_match(self, match: Mapping[str, list[Row]], ctx: Context) -> Iterator[Found]:
        self.count.update((self.count.value() or 0) + 1)
        yield Found(ctx.get_current_key(), f"{self.count.value()}: {as_text(match).rows} at {ctx.timestamp()}")

    def process_timed_out_match(self, match: Mapping[str, list[Row]], ctx: Context) -> None:
        ctx.output(TIMED_OUT, Found(ctx.get_current_key(), f"{as_text(match).rows} at {ctx.timestamp()}"))


def test_a_function_has_state_context_and_side_outputs() -> None:
    pattern = Pattern.begin("one", A).followed_by("two", B).within(TEN)
    with KeyedHarness(
        lambda rows: rows.match_pattern(pattern).process(Count(), output=Found, uid="m"),
        INPUT,
        side_outputs=(TIMED_OUT,),
    ) as h:
        h.push(*rows_of("a1@1 b1@2 a2@3"), *rows_of("a3@4 b3@9", key="j"))
        h.push(*rows_of("b2@13 a4@14 b4@20"))
        h.drain()
        assert texts(h.output) == ["1: a1 b1 at 2", "1: a3 b3 at 9", "2: a4 b4 at 20"]
        assert texts(h.side_output(TIMED_OUT)) == ["a2 at 13"]


def test_partial_matches_and_their_rows_can_be_read(tmp_path: Path) -> None:
    rows, jobs = rows_of("a1 b1 b2 b3 b4"), LocalJobs(tmp_path)
    pattern = Pattern.begin("first", A).next("down", B).one_or_more().consecutive().within(TEN)
    strategy = WatermarkStrategy.for_bounded_out_of_orderness(timedelta(milliseconds=1)).with_timestamp_column("at")

    def build(env: StreamExecutionEnvironment) -> None:
        given = env.from_source(Growing(rows, Row), uid="rows").assign_timestamps_and_watermarks(strategy)
        matching(pattern)(given.key_by("key")).sink_to(jobs.sink("out"), uid="out")

    jobs.run(build)

    def read(state: str) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = (
            stateflow.read_state(str(tmp_path / "root"), "matches", state).read_all().to_pylist()
        )
        return found

    waiting = [Row(**each) for row in read("waiting-rows") for each in row["value"]]
    matched = {row["map_key"]: Row(**row["value"]) for row in read("matched-rows")}
    # A row is stored once, whatever the number of its partial matches.
    assert [*matched.values(), *waiting] == rows and waiting
    (stored,) = [row["value"] for row in read("partial-matches")]
    assert stored["pattern"] == "next first, next down {1,} (next)"
    assert stored["partial"] and stored["completed"] == []
    assert {node["row"] for _, node in stored["nodes"]} == {number for number, _ in stored["rows"]} == matched.keys()


def test_a_match_may_emit_any_number_of_rows() -> None:
    def each(match: Mapping[str, list[Row]]) -> list[Found]:
        return [Found(row.key, row.text) for rows in match.values() for row in rows]

    with KeyedHarness(lambda rows: rows.match_pattern(PAIR).flat_select(each, output=Found, uid="m"), INPUT) as h:
        h.push(*rows_of("a1 b1 a2 a3 b3"))
        h.drain()
        assert texts(h.output) == ["a1", "a3", "b1", "b3"]


def test_late_rows_are_no_part_of_a_match() -> None:
    def declare(rows: Any) -> Any:
        return rows.match_pattern(PAIR).side_output_late_data(LATE).select(as_text, output=Found, uid="m")

    with KeyedHarness(declare, INPUT, side_outputs=(LATE,)) as h:
        h.push(*rows_of("a1@5"))
        h.advance_watermark(5)
        late = rows_of("b@4 b@5")
        h.push(*late, *rows_of("b1@6"))
        h.drain()
        assert texts(h.output) == ["a1 b1"] and h.side_output(LATE) == late


def test_rows_of_one_time_are_matched_in_the_order_of_arrival() -> None:
    assert matches(PAIR, "a1@1 b1@1 b2@2 a2@2") == ["a1 b1"]


def _in_batches(*batches: Sequence[Row]) -> list[list[str]]:
    """The matches of `PAIR` that each batch emits, with an out-of-orderness of zero; a last one ends the input."""
    rows = KeyedInput(Row, "key", event_time="at", out_of_orderness=timedelta())
    with KeyedHarness(lambda keyed: keyed.match_pattern(PAIR).select(as_text, output=Found, uid="m"), rows) as h:
        return [*(texts(h.push(*batch)) for batch in batches), texts(h.drain())]


def test_rows_of_a_batch_are_matched_by_time_and_late_by_the_batches_before() -> None:
    assert _in_batches(rows_of("b@2 a@1")) == [[], ["a b"]]
    assert _in_batches(rows_of("b@2"), rows_of("a@1")) == [[], [], []]


@pytest.mark.parametrize("key", ["k", "j"])
def test_a_match_is_emitted_in_the_batch_after_a_later_row_of_any_key(key: str) -> None:
    pair, later = rows_of("a@1 b@2"), rows_of("x@5", key=key)
    assert _in_batches(pair, []) == [[], [], ["a b"]]
    assert _in_batches([*pair, *later], []) == [[], ["a b"], []]
    # Rows of a batch advance the watermark of the next one.
    assert _in_batches(pair, later, []) == [[], [], ["a b"], []]


def test_conditions_are_added_and_alternatives_too() -> None:
    low = (
        Pattern.begin("one", A)
        .where(lambda row: row.price < 5)
        .or_where(B)
        .next("two")
        .where(lambda row: row.price > 1)
    )
    assert matches(low, "a1:9 a2:1 a3:2 b:0 x:1 b2:7 x2:2") == ["a2 a3", "b2 x2"]


def test_the_smallest_of_several_time_limits_counts() -> None:
    assert PAIR.within(TEN).within(timedelta(seconds=1)).within_ms == 10


def test_memory_is_bounded_by_the_time_limit() -> None:
    pattern = Pattern.begin("one", A).followed_by("two", B).within(TEN)
    with harness(pattern) as h:
        for start in range(0, 2000, 50):
            h.push(*(Row("k", at, "a") for at in range(start, start + 50)))
        h.advance_watermark(1999)
        kept = [entry for entry in h.state_entries() if entry.state == "matched-rows"]
        assert [entry.value["at"] for entry in kept] == list(range(1990, 2000))
        assert len(h.timers()) == 1


ONE = Pattern.begin("one", A)


@pytest.mark.parametrize(
    "declare",
    [
        lambda: Pattern.begin(""),
        lambda: Pattern.begin("one", skip="past last row"),  # type: ignore[arg-type]
        lambda: ONE.next("one"),
        lambda: ONE.where("price > 5"),  # type: ignore[arg-type]
        lambda: ONE.where(lambda: True),
        lambda: ONE.where(lambda row, matched, more: True),
        lambda: ONE.where(lambda row, *, limit: True),
        lambda: ONE.where(Row),  # type: ignore[arg-type]
        lambda: ONE.times(0), lambda: ONE.times(3, 2), lambda: ONE.times(-1, 2), lambda: ONE.times_or_more(0),
        lambda: ONE.one_or_more().times(2), lambda: ONE.optional().optional(), lambda: ONE.greedy(),
        lambda: ONE.consecutive(), lambda: ONE.one_or_more().consecutive().allow_combinations(),
        lambda: ONE.one_or_more().allow_combinations().greedy(),
        lambda: ONE.one_or_more().greedy().allow_combinations(),
        lambda: ONE.one_or_more().greedy().next("two").optional(), lambda: ONE.until(B),
        lambda: ONE.one_or_more().until(B).until(B), lambda: ONE.optional().not_next("two", B),
        lambda: ONE.not_next("two", B).optional(), lambda: ONE.not_followed_by("two", B).one_or_more(),
        lambda: ONE.within(timedelta(0)), lambda: ONE.not_followed_by("two", B).check_whole(),
        lambda: Pattern.begin("one", skip=AfterMatchSkipStrategy.skip_to_last("two")).check_whole(),
    ],
)  # fmt: skip
def test_a_pattern_that_cannot_be_matched_is_refused(declare: Callable[[], object]) -> None:
    with raises(JobDefinitionError):
        declare()


@pytest.mark.parametrize(
    ("declare", "event_time"),
    [
        (lambda rows: rows.match_pattern("a b"), "at"),
        (lambda rows: rows.match_pattern(PAIR), ""),
        (lambda rows: rows.match_pattern(PAIR).side_output_timed_out(TIMED_OUT, as_text), "at"),
        (lambda rows: rows.match_pattern(PAIR.within(TEN)).side_output_timed_out("late", as_text), "at"),
        (lambda rows: rows.match_pattern(PAIR).side_output_late_data(TIMED_OUT), "at"),
        (lambda rows: rows.match_pattern(PAIR).select(Found("k", ""), output=Found), "at"),
        (lambda rows: rows.match_pattern(PAIR).process(Count, output=Found), "at"),
    ],
)
def test_a_stream_that_cannot_be_matched_is_refused(declare: Any, event_time: str) -> None:
    with raises(JobDefinitionError):
        KeyedHarness(declare, KeyedInput(Row, "key", event_time=event_time))


def test_a_condition_with_a_default_argument_takes_the_row_alone() -> None:
    assert matches(Pattern.begin("one", lambda row, name="a": row.name == name), "a b") == ["a"]
