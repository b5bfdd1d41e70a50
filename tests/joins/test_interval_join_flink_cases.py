"""Cases of Flink's tests of its interval join operator, with the same rows, watermarks and results."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from stateflow import JoinContext, OutputTag
from stateflow.api.dead_letters import DeadLetters
from stateflow.api.streams.data_stream import DataStream
from stateflow.api.streams.joins.interval_joined import BoundedIntervalJoin
from stateflow.errors import JobDefinitionError, StateError, UserCodeError
from stateflow.testing import KeyedHarness
from tests.joins.joined_rows import LATE_LEFT, LATE_RIGHT, EmitPair, Keyed, Left, Pair, Right, harness, ms

Bounded = BoundedIntervalJoin[DataStream]
Change = Callable[[Bounded], Bounded]


def _join(
    lower: int, upper: int, change: Change = lambda join: join, function: EmitPair | None = None
) -> Callable[[Keyed, Keyed], DataStream]:
    def declare(left: Keyed, right: Keyed) -> DataStream:
        join = change(left.interval_join(right).between(ms(lower), ms(upper)))
        return join.process(function or EmitPair(), output=Pair, uid="join")

    return declare


def _times(h: KeyedHarness) -> list[tuple[int, int]]:
    return sorted((pair.left, pair.right) for pair in h.output)


def _buffered(h: KeyedHarness) -> tuple[list[int], list[int]]:
    left, right = (h.state(f"{side}-buffer", "key") for side in ("left", "right"))
    return list(left), list(right)


def _lefts(*times: int) -> list[Left]:
    return [Left("key", at) for at in times]


def _rights(*times: int) -> list[Right]:
    return [Right("key", at) for at in times]


def _both(join: Bounded) -> Bounded:
    return join.lower_bound_exclusive().upper_bound_exclusive()


@pytest.mark.parametrize("first", ["left", "right", "together"])
@pytest.mark.parametrize(
    ("lower", "upper", "change", "wanted"),
    [
        (-2, -1, lambda join: join, [(2, 1), (3, 1), (3, 2), (4, 2), (4, 3)]),
        (-1, 1, lambda j: j, [(1, 1), (1, 2), (2, 1), (2, 2), (2, 3), (3, 2), (3, 3), (3, 4), (4, 3), (4, 4)]),
        (1, 2, lambda join: join, [(1, 2), (1, 3), (2, 3), (2, 4), (3, 4)]),
        (-3, -1, _both, [(3, 1), (4, 2)]),
        (-1, 1, _both, [(1, 1), (2, 2), (3, 3), (4, 4)]),
        (1, 3, _both, [(1, 3), (2, 4)]),
        (0, 1, lambda join: join.upper_bound_exclusive(), [(1, 1), (2, 2), (3, 3), (4, 4)]),
        (-1, 0, lambda join: join.lower_bound_exclusive(), [(1, 1), (2, 2), (3, 3), (4, 4)]),
    ],
)
def test_rows_within_the_bounds_are_joined(
    first: str, lower: int, upper: int, change: Change, wanted: list[tuple[int, int]]
) -> None:
    with harness(_join(lower, upper, change)) as h:
        if first == "together":
            h.push_both(_lefts(1, 2, 3, 4), _rights(1, 2, 3, 4))
        else:
            for at in range(1, 5):
                given = [(_lefts(at), []), ([], _rights(at))]
                for left, right in given if first == "left" else reversed(given):
                    h.push_both(left, right)
        assert _times(h) == wanted


@pytest.mark.parametrize(
    ("lower", "upper", "left", "right"),
    [
        (0, 2, [3, 4, 5], [5]), (1, 2, [3, 4, 5], [5]), (-1, 0, [5], [4, 5]), (-2, -1, [5], [3, 4, 5]),
        (-2, 1, [4, 5], [3, 4, 5]),
    ],
)  # fmt: skip
def test_rows_are_kept_until_no_row_can_match_them(lower: int, upper: int, left: list[int], right: list[int]) -> None:
    with harness(_join(lower, upper)) as h:
        h.push_both(_lefts(1, 2, 3, 4, 5), _rights(1, 2, 3, 4, 5))
        assert _buffered(h) == ([1, 2, 3, 4, 5], [1, 2, 3, 4, 5])
        h.advance_watermark(4)
        assert _buffered(h) == (left, right)
        h.advance_watermark(100)
        assert h.state_entries() == [] and h.timers() == []


def test_late_rows_are_side_outputs_and_the_row_at_the_watermark_is_not_late() -> None:
    def change(join: Bounded) -> Bounded:
        return join.side_output_left_late_data(LATE_LEFT).side_output_right_late_data(LATE_RIGHT)

    with harness(_join(-1, 1, change), side_outputs=(LATE_LEFT, LATE_RIGHT)) as h:
        h.push_both(_lefts(1, 2), _rights(1))
        h.advance_watermark(3)
        h.push_both(_lefts(1, 2, 3), _rights(1, 2, 3))
        assert (h.side_output(LATE_LEFT), h.side_output(LATE_RIGHT)) == (_lefts(1, 2), _rights(1, 2))
        assert _times(h) == [(1, 1), (2, 1), (3, 3)]


def test_late_rows_are_dropped_by_default() -> None:
    with harness(_join(-10, 10)) as h:
        h.advance_watermark(5)
        assert h.push_both(_lefts(4), _rights(4)) == []
        assert h.state_entries() == []


class Emits(EmitPair):
    TAG = OutputTag("sums", Pair)

    def process_element(self, left: Left, right: Right, ctx: JoinContext) -> Iterator[Pair]:
        if right.text == "bad":
            raise ValueError("bad row")
        ctx.output(self.TAG, Pair(left.key, left.at, right.at))
        return iter(())


def test_the_function_can_emit_to_a_side_output_and_its_errors_name_the_row() -> None:
    with harness(_join(0, 0, function=Emits()), side_outputs=(Emits.TAG,)) as h:
        h.push_both(_lefts(1), _rights(1))
        assert h.side_output(Emits.TAG) == [Pair("key", 1, 1)]
        with pytest.raises(UserCodeError) as caught:
            h.push_both([], [Right("key", 1, "bad")])
        assert "bad" in str(caught.value.facts["row"])


def test_a_row_for_which_the_function_raises_is_a_dead_letter_and_not_buffered() -> None:
    def declare(left: Keyed, right: Keyed) -> DataStream:
        join = left.interval_join(right).between(ms(0), ms(0))
        return join.process(Emits(), output=Pair, uid="join", on_error=DeadLetters(budget=5))

    with harness(declare, side_outputs=(Emits.TAG,)) as h:
        h.push_both(_lefts(1), [Right("key", 1, "bad"), Right("key", 1, "good")])
        assert len(h.dead_letters) == 1 and len(h.side_output(Emits.TAG)) == 1
        assert h.state("right-buffer", "key") == {1: [Right("key", 1, "good")]}


def test_a_row_without_event_time_fails() -> None:
    with harness(_join(0, 0)) as h, pytest.raises(StateError):
        h.push_both([Left("key", None)], [])


def test_wrong_declarations_are_refused() -> None:
    def refused(declare: Callable[[Keyed, Keyed], object]) -> None:
        with pytest.raises(JobDefinitionError):
            harness(declare)  # type: ignore[arg-type]

    refused(_join(2, 1))
    refused(_join(1, 1, lambda join: join.upper_bound_exclusive()))
    refused(_join(0, 0, lambda join: join.side_output_left_late_data(LATE_RIGHT)))
    refused(lambda left, right: left.interval_join(right).between(0, ms(1)))  # type: ignore[arg-type]
    refused(lambda left, right: left.interval_join("right"))  # type: ignore[arg-type]
    refused(lambda left, right: left.interval_join(right).between(ms(0), ms(0)).process(EmitPair, output=Pair))  # type: ignore[arg-type]
