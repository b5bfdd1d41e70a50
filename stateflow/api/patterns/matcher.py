"""Matches rows of a key with a pattern. The algorithm is that of Flink's `NFA`."""

from __future__ import annotations

from bisect import insort
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Generic, TypeVar

from stateflow.api.patterns.automaton import Action, Automaton, Edge, Kind, State
from stateflow.api.patterns.conditions import Evaluation
from stateflow.api.patterns.partial_matches import MatchBuffer, PartialMatch
from stateflow.api.patterns.skip import AfterMatchSkipStrategy

Row = TypeVar("Row")

Match = dict[str, list[Row]]
"""The rows of a match by the name of their stage, in their order."""


@dataclass(frozen=True)
class Advanced(Generic[Row]):
    """What the advance of event time has ended.

    Attributes:
        matched: matches.
        timed_out: rows of partial matches that exceeded the time limit.
    """

    matched: list[Match[Row]]
    timed_out: list[Match[Row]]


class Matcher(Generic[Row]):
    """Matches rows with a pattern.

    Args:
        automaton: the automaton of the pattern.
        skip: what is discarded after a match.
        within_ms: the time limit of a match, in milliseconds; None for none.
    """

    def __init__(self, automaton: Automaton, skip: AfterMatchSkipStrategy, within_ms: int | None) -> None:
        self._start = automaton.start
        self._states = automaton.states
        self._skip = skip
        self._within = within_ms

    def advance(self, buffer: MatchBuffer[Row], time: int) -> Advanced[Row]:
        """Removes the partial matches that cannot be completed at `time` or later; returns what has ended."""
        partial = buffer.matches.partial
        if self._within is None or not partial or time - partial[0].began < self._within:
            return Advanced([], [])
        # In the order of their first rows, and so of their time limits.
        ended = next((at for at, each in enumerate(partial) if time - each.began < self._within), len(partial))
        matched, timed_out = list[PartialMatch](), []
        for each in partial[:ended]:
            if self._states[each.state].kind is Kind.PENDING:
                matched.append(each)
            else:
                timed_out.append(buffer.match(buffer.path(each.node)))
                buffer.release(each.node)
        buffer.changed = True
        buffer.matches.partial = partial[ended:]
        return Advanced(self._complete(buffer, matched), timed_out)

    def process(self, buffer: MatchBuffer[Row], row: Row, time: int) -> list[Match[Row]]:
        """Processes the next row of a key in the order of event time; returns the matches that it completes."""
        buffer.begin_row(row)
        partial, completed, of_row = list[PartialMatch](), list[PartialMatch](), dict[int, bool]()
        for each in (*buffer.matches.partial, None):
            for result in self._next(buffer, each, _Step(row, time, of_row)):
                (completed if self._states[result.state].kind is Kind.FINAL else partial).append(result)
        if partial != buffer.matches.partial:
            buffer.matches.partial = partial
            buffer.changed = True
        if completed:
            buffer.changed = True
        matches = self._complete(buffer, completed) if completed or buffer.matches.completed else []
        buffer.end_row()
        return matches

    # -- one partial match --------------------------------------------------------------------------------------------

    def _next(self, buffer: MatchBuffer[Row], partial: PartialMatch | None, step: _Step[Row]) -> list[PartialMatch]:
        """Returns what a partial match becomes with a row; of None, which matches the row begins."""
        node = None if partial is None else partial.node
        evaluation = Evaluation(step.row, lambda: buffer.matched(node), step.of_row)
        state = self._start if partial is None else self._states[partial.state]
        results: list[PartialMatch] = []
        stops = False
        for edge in self._edges(state, evaluation):
            if edge.target.kind is Kind.STOP:
                stops = True
            elif edge.action is Action.TAKE:
                results += self._taken(buffer, partial, edge, step, evaluation)
            elif partial is not None:
                results.append(PartialMatch(edge.target.name, partial.node, partial.first, partial.began))
                buffer.hold(partial.node)
        if stops:
            results = self._ended(buffer, results)
        if node is not None:
            buffer.release(node)
        return results

    def _ended(self, buffer: MatchBuffer[Row], results: list[PartialMatch]) -> list[PartialMatch]:
        """Discards what is no match yet: a row that it must not have may be the last one of a match."""
        for result in results:
            if self._states[result.state].kind is not Kind.FINAL:
                buffer.release(result.node)
        return [result for result in results if self._states[result.state].kind is Kind.FINAL]

    def _taken(
        self,
        buffer: MatchBuffer[Row],
        partial: PartialMatch | None,
        edge: Edge,
        step: _Step[Row],
        evaluation: Evaluation[Row],
    ) -> Iterator[PartialMatch]:
        """Yields the partial match with the row; and the match, if all stages that follow are optional."""
        node = buffer.take(edge.stage, None if partial is None else partial.node)
        first = buffer.current_row if partial is None else partial.first
        began = step.time if partial is None else partial.began
        targets = [edge.target, *_final_after(edge.target, evaluation)]
        for target in targets:
            buffer.hold(node)
            yield PartialMatch(target.name, node, first, began)

    def _edges(self, state: State, evaluation: Evaluation[Row]) -> Iterator[Edge]:
        """Yields the edges that take or ignore a row in a state, and in those that it proceeds to."""
        states = [state]
        while states:
            for edge in states.pop().edges:
                if not evaluation.holds(edge.condition):
                    continue
                if edge.action is Action.PROCEED:
                    states.append(edge.target)
                else:
                    yield edge

    # -- matches ------------------------------------------------------------------------------------------------------

    def _complete(self, buffer: MatchBuffer[Row], completed: list[PartialMatch]) -> list[Match[Row]]:
        """Returns the matches that no earlier partial match can discard, and discards what they skip."""
        matches, found = buffer.matches, list[Match[Row]]()
        waiting = matches.completed
        for match in completed:
            insort(waiting, match, key=_first)
        while waiting and (not self._skip.skips or _is_earliest(waiting[0], matches.partial)):
            buffer.changed = True
            match = waiting.pop(0)
            path = buffer.path(match.node)
            if self._skip.skips:
                first_kept = self._skip.first_kept(path)
                matches.partial = self._pruned(buffer, matches.partial, first_kept)
                waiting = self._pruned(buffer, waiting, first_kept)
            found.append(buffer.match(path))
            buffer.release(match.node)
        matches.completed = waiting
        return found

    def _pruned(self, buffer: MatchBuffer[Row], partial: list[PartialMatch], first_kept: int) -> list[PartialMatch]:
        for each in partial:
            if each.first < first_kept:
                buffer.release(each.node)
        return [each for each in partial if each.first >= first_kept]


@dataclass(frozen=True)
class _Step(Generic[Row]):
    """A row that is being processed.

    Attributes:
        time: its event time.
        of_row: the results of conditions that take the row alone.
    """

    row: Row
    time: int
    of_row: dict[int, bool]


def _first(match: PartialMatch) -> int:
    return match.first


def _is_earliest(match: PartialMatch, partial: list[PartialMatch]) -> bool:
    return not partial or match.first <= partial[0].first


def _final_after(state: State, evaluation: Evaluation[Row]) -> list[State]:
    """Returns the final state if a state proceeds to it."""
    states = [state]
    while states:
        for edge in states.pop().edges:
            if edge.action is Action.PROCEED and evaluation.holds(edge.condition):
                if edge.target.kind is Kind.FINAL:
                    return [edge.target]
                states.append(edge.target)
    return []
