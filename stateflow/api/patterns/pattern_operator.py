"""The operator of patterns: matches the rows of a key with an automaton, in the order of event time.

The automaton, its states and the edges between them, is made as Flink's `NFACompiler` does. A row waits until the
watermark reaches its time, so that no earlier row can follow. A key has a timer at the time of its earliest waiting
row, and one at the time limit of its earliest partial match. The first of its timers that fires in a batch processes
all rows up to the watermark, so that the partial matches of a key are decoded once per batch.
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from enum import Enum, auto
from types import GenericAlias
from typing import Generic, Literal, TypeVar, cast

import msgspec

from stateflow.api.functions.process import Context, KeyedProcessFunction, OnTimerContext, RuntimeContext
from stateflow.api.functions.returned import check_returned_rows
from stateflow.api.patterns.conditions import ALWAYS, AllOf, Condition, Evaluation, MatchedRows, Not, StagePath
from stateflow.api.patterns.functions import PatternProcessFunction, TimedOut
from stateflow.api.patterns.pattern import Contiguity, Pattern, Stage
from stateflow.api.patterns.skip import AfterMatchSkipStrategy
from stateflow.api.side_outputs import OutputTag
from stateflow.errors import StateError
from stateflow.state.kinds.maps.map_state import MapState
from stateflow.state.kinds.single_value import ValueState
from stateflow.state.kinds.timers import MAX_WATERMARK, NO_WATERMARK
from stateflow.state.stored_key import TimeDomain
from stateflow.types.descriptors import MapStateDescriptor, ValueStateDescriptor


class Action(Enum):
    """The action of an edge on a row."""

    TAKE = auto()
    """Adds it to the match."""
    IGNORE = auto()
    PROCEED = auto()
    """Applies it to the target of the edge."""


class Kind(Enum):
    """The meaning of a state."""

    NORMAL = auto()
    FINAL = auto()
    STOP = auto()
    """The partial match has met a row that it must not have."""
    PENDING = auto()
    """The partial match becomes a match when its time limit has passed."""


@dataclass(eq=False)
class State:
    """A state.

    Attributes:
        name: unique; stored with partial matches.
        stage: name of the stage.
    """

    name: str
    stage: str
    kind: Kind
    edges: list[StageEdge] = field(default_factory=list, repr=False)

    def take(self, target: State, condition: Condition) -> None:
        """Adds an edge."""
        self.edges.append(StageEdge(Action.TAKE, target, condition, self.stage))

    def ignore(self, target: State, condition: Condition) -> None:
        """Adds an edge."""
        self.edges.append(StageEdge(Action.IGNORE, target, condition, self.stage))

    def proceed(self, target: State, condition: Condition = ALWAYS) -> None:
        """Adds an edge."""
        self.edges.append(StageEdge(Action.PROCEED, target, condition, self.stage))


@dataclass(eq=False)
class StageEdge:
    """An edge of a state.

    Attributes:
        stage: the stage that a row is added to.
    """

    action: Action
    target: State
    condition: Condition
    stage: str


@dataclass(frozen=True)
class Automaton:
    """The states of a pattern.

    Attributes:
        start: the state of a match without rows.
        states: all states by name.
    """

    start: State
    states: dict[str, State]


def automaton_of(pattern: Pattern) -> Automaton:
    """Returns the automaton of a checked pattern."""
    return _Compiler(pattern).compile()


class _Compiler:
    """Makes the states from the last stage to the first one."""

    def __init__(self, pattern: Pattern) -> None:
        self._stages = pattern.stages
        self._states: dict[str, State] = {}
        self._stops: dict[str, State] = {}
        self._without_greedy: dict[str, State] = {}

    def compile(self) -> Automaton:
        sink = self._state("", Kind.FINAL)
        for at in range(len(self._stages) - 1, -1, -1):
            contiguity = self._stages[at].contiguity
            if contiguity is Contiguity.NOT_NEXT:
                sink = self._not_next(at, sink)
            elif contiguity is not Contiguity.NOT_FOLLOWED_BY:
                sink = self._stage(at, sink)
            elif sink.kind is Kind.FINAL:
                sink = self._pending(at)
            # Otherwise, stages before and after it stop at its rows.
        return Automaton(sink, self._states)

    # -- stages -------------------------------------------------------------------------------------------------------

    def _not_next(self, at: int, sink: State) -> State:
        stage = self._stages[at]
        state, stop = self._state(stage.name), self._stop(stage)
        if sink.kind is Kind.FINAL:
            # Another row ends the match; a match is not complete before that row.
            state.ignore(sink, Not(stage.condition))
        else:
            state.proceed(sink, Not(stage.condition))
        state.proceed(stop, stage.condition)
        return state

    def _pending(self, at: int) -> State:
        stage = self._stages[at]
        state = self._state(stage.name, Kind.PENDING)
        state.proceed(self._stop(stage), stage.condition)
        state.ignore(state, Not(stage.condition))
        return state

    def _stage(self, at: int, sink: State) -> State:
        stage = self._stages[at]
        if stage.most is None:
            looping = self._looping(at, self._without_nots(at, sink))
            first = self._times(at, looping, sink, stage.least)
        elif not stage.is_single:
            first = self._times(at, sink, sink, stage.most)
        else:
            first = self._single(at, sink, sink, _ignored(stage, stage.contiguity), stage.is_optional)
        self._add_stops(at, first)
        return first

    def _times(self, at: int, sink: State, proceed: State, most: int) -> State:
        stage = self._stages[at]
        if stage.is_greedy and stage.least != most:
            self._make_greedy(stage, sink)
        inner, last = _ignored(stage, stage.inner, stage.until), sink
        for number in range(most - 1):
            # The last ones may be left out.
            is_optional = number < most - stage.least
            last = self._single(at, last, proceed, inner, is_optional)
            self._add_stop_to_loop(at, last)
        return self._single(at, last, proceed, _ignored(stage, stage.contiguity), stage.is_optional)

    def _single(self, at: int, sink: State, proceed: State, ignored: Condition | None, is_optional: bool) -> State:
        """Returns a state for one row. If it is optional, ignoring a row leads to a copy that is not."""
        stage = self._stages[at]
        state, taken_to = self._state(stage.name), self._without_nots(at, sink)
        state.take(taken_to, _taken(stage))
        if is_optional:
            self._proceed(stage, state, proceed)
        if ignored is None:
            return state
        if not is_optional:
            state.ignore(state, ignored)
            return state
        waiting = self._state(stage.name)
        waiting.take(taken_to, _taken(stage))
        waiting.ignore(waiting, ignored)
        self._add_stops(at, waiting)
        state.ignore(waiting, ignored)
        return state

    def _looping(self, at: int, sink: State) -> State:
        stage = self._stages[at]
        ignored = _ignored(stage, stage.inner, stage.until)
        state = self._state(stage.name)
        if stage.is_greedy:
            self._make_greedy(stage, sink)
        self._proceed(stage, state, sink)
        state.take(state, _taken(stage))
        self._add_stop_to_loop(at, state)
        if ignored is None:
            return state
        waiting = self._state(stage.name)
        waiting.take(state, _taken(stage))
        waiting.ignore(waiting, ignored)
        state.ignore(waiting, ignored)
        self._add_stop_to_loop(at, waiting)
        return state

    # -- greedy stages ------------------------------------------------------------------------------------------------

    def _make_greedy(self, stage: Stage, sink: State) -> None:
        """Makes the state after a greedy stage refuse rows that the stage accepts, until it has ended."""
        if stage.until is not None:
            self._without_greedy[sink.name] = self._copy(sink)
        taken = stage.condition if stage.most is None else _taken(stage)
        for edge in sink.edges:
            edge.condition = AllOf((edge.condition, Not(taken)))

    def _proceed(self, stage: Stage, state: State, sink: State) -> None:
        if not stage.is_greedy or stage.until is None or sink.name not in self._without_greedy:
            state.proceed(sink)
            return
        state.proceed(self._without_greedy[sink.name], stage.until)
        state.proceed(sink, Not(stage.until))

    def _copy(self, state: State) -> State:
        copied = self._state(state.stage, state.kind)
        for edge in state.edges:
            target = copied if edge.target is state else edge.target
            copied.edges.append(StageEdge(edge.action, target, edge.condition, edge.stage))
        return copied

    # -- negative stages ----------------------------------------------------------------------------------------------

    def _nots_before(self, at: int) -> list[Stage]:
        """Returns the stages of `not_followed_by` before a stage, also before optional ones between them."""
        found: list[Stage] = []
        while at > 0:
            before = self._stages[at - 1]
            if not before.is_optional and before.contiguity is not Contiguity.NOT_FOLLOWED_BY:
                break
            at -= 1
            if before.contiguity is Contiguity.NOT_FOLLOWED_BY:
                found.append(before)
        return found

    def _without_nots(self, at: int, sink: State) -> State:
        """Returns the state after an optional stage that has matched: negative stages before it have ended then."""
        nots = self._nots_before(at)
        if not nots or not self._stages[at].is_optional:
            return sink
        names = {stage.name for stage in nots}
        copied = self._state(sink.stage, sink.kind)
        for edge in sink.edges:
            target = copied if edge.target is sink else edge.target
            if edge.action is Action.PROCEED:
                if target.kind is Kind.STOP and target.stage in names:
                    continue
                if target.kind is not Kind.STOP:
                    target = self._without_nots(at, target)
            copied.edges.append(StageEdge(edge.action, target, edge.condition, edge.stage))
        return copied

    def _add_stops(self, at: int, state: State) -> None:
        for stage in self._nots_before(at):
            state.proceed(self._stop(stage), stage.condition)

    def _add_stop_to_loop(self, at: int, state: State) -> None:
        if at + 1 < len(self._stages) and self._stages[at + 1].contiguity is Contiguity.NOT_FOLLOWED_BY:
            following = self._stages[at + 1]
            state.proceed(self._stop(following), following.condition)

    def _stop(self, stage: Stage) -> State:
        if stage.name not in self._stops:
            stop = self._stops[stage.name] = self._state(stage.name, Kind.STOP)
            stop.take(stop, stage.condition)
        return self._stops[stage.name]

    def _state(self, stage: str, kind: Kind = Kind.NORMAL) -> State:
        # The names of states are part of the stored format: they follow from the stages alone.
        name, number = stage, 0
        while name in self._states:
            number += 1
            name = f"{stage}:{number}"
        state = self._states[name] = State(name, stage, kind)
        return state


def _taken(stage: Stage) -> Condition:
    return stage.condition if stage.until is None else AllOf((Not(stage.until), stage.condition))


def _ignored(stage: Stage, contiguity: Contiguity, until: Condition | None = None) -> Condition | None:
    """Returns which rows may be ignored before a row of a stage; None if none."""
    if contiguity is Contiguity.NEXT:
        return None
    ignored = Not(stage.condition) if contiguity is Contiguity.FOLLOWED_BY else ALWAYS
    return ignored if until is None else AllOf((Not(until), ignored))


Row = TypeVar("Row")


Path = list[tuple[str, int]]
"""Stage and number of each row of a match, the last one first."""


class PartialMatch(msgspec.Struct, array_like=True, frozen=True):
    """A match that is not complete, or that waits for others.

    Attributes:
        state: name of the state of the automaton.
        node: the number of its last node.
        first: the number of its first row.
        began: event time of its first row, in milliseconds since 1970.
    """

    state: str
    node: int
    first: int
    began: int


class MatchedNode(msgspec.Struct, array_like=True):
    """A row of a partial match.

    Attributes:
        stage: the stage that the row was added to.
        row: the number of the row.
        before: the number of the node before it; None for the first row.
        references: number of partial matches that end with it, and of nodes after it.
        begin: the number of the first node of the stage.
    """

    stage: str
    row: int
    before: int | None
    references: int
    begin: int


class PartialMatches(msgspec.Struct):
    """All partial matches of a key, in the order of their first rows.

    Attributes:
        pattern: the pattern that they belong to, as text.
        partial: matches that are not complete.
        completed: matches that an earlier partial match may discard when it is complete.
        nodes: by number.
        rows: how many nodes have a row, by its number.
        number: the number of the next row or node.
        expires: event time of the timer that removes the earliest partial match; None without one.
    """

    pattern: str
    partial: list[PartialMatch] = []
    completed: list[PartialMatch] = []
    nodes: dict[int, MatchedNode] = {}
    rows: dict[int, int] = {}
    number: int = 0
    expires: int | None = None

    @property
    def is_empty(self) -> bool:
        """Whether no partial match exists."""
        return not self.partial and not self.completed


def stored_class(structure: str) -> type[PartialMatches]:
    """Returns the class that partial matches of a pattern are stored as.

    The text of the pattern is part of the type: stored partial matches of another pattern are incompatible with it,
    which is found before a run starts.
    """
    pattern: object = Literal.__getitem__(structure)
    made = msgspec.defstruct("PartialMatches", [("pattern", pattern)], bases=(PartialMatches,))
    assert issubclass(made, PartialMatches)
    return made


class MatchBuffer(Generic[Row]):
    """The partial matches of the current key, and their rows.

    Args:
        matches: the stored partial matches, which are changed.
        rows: the state with the rows that they have matched, by number.
    """

    def __init__(self, matches: PartialMatches, rows: MapState[int, Row]) -> None:
        self.matches = matches
        self.changed = False
        self._stored = rows
        self._read: dict[int, Row] = {}
        self._new: int | None = None

    # -- rows ---------------------------------------------------------------------------------------------------------

    def begin_row(self, row: Row) -> None:
        """Sets the row that `take` adds."""
        self._new = self.matches.number
        self._read[self._new] = row

    def end_row(self) -> None:
        """Stores the row if a partial match has it."""
        assert self._new is not None
        if self._new in self.matches.rows:
            self._stored.put(self._new, self._read[self._new])
        else:
            del self._read[self._new]
        self._new = None

    def row(self, number: int) -> Row:
        """Returns a row that a partial match has."""
        if number not in self._read:
            row = self._stored.get(number)
            assert row is not None
            self._read[number] = row
        return self._read[number]

    # -- matches ------------------------------------------------------------------------------------------------------

    def take(self, stage: str, before: int | None) -> int:
        """Adds the current row after a node, and returns its node, to which nothing refers yet."""
        assert self._new is not None
        matches = self.matches
        matches.number = max(matches.number, self._new) + 1
        number = matches.number
        previous = None if before is None else matches.nodes[before]
        begin = number if previous is None or previous.stage != stage else previous.begin
        matches.nodes[number] = MatchedNode(stage, self._new, before, 0, begin)
        matches.rows[self._new] = matches.rows.get(self._new, 0) + 1
        if before is not None:
            self.hold(before)
        self.changed = True
        return number

    @property
    def current_row(self) -> int:
        """The number of the current row."""
        assert self._new is not None
        return self._new

    def hold(self, node: int) -> None:
        """Adds a reference to a node."""
        self.matches.nodes[node].references += 1

    def release(self, node: int) -> None:
        """Removes a reference to a node; removes nodes and rows that no partial match has then."""
        nodes, rows, at = self.matches.nodes, self.matches.rows, node
        while True:
            found = nodes[at]
            found.references -= 1
            if found.references > 0:
                return
            del nodes[at]
            rows[found.row] -= 1
            if not rows[found.row]:
                del rows[found.row]
                if found.row != self._new:
                    self._stored.remove(found.row)
            if found.before is None:
                return
            at = found.before

    def path(self, node: int | None) -> Path:
        """Returns the rows up to a node, the last one first."""
        return [(each.stage, each.row) for each in self._nodes(node)]

    def matched(self, node: int | None) -> MatchedRows[Row]:
        """Returns the rows up to a node, for conditions."""
        return MatchedRows(_Path(self.matches.nodes, node), self.row)

    def match(self, path: Path) -> dict[str, list[Row]]:
        """Returns the rows of a match by stage, in their order."""
        found: dict[str, list[Row]] = {}
        for stage, number in reversed(path):
            found.setdefault(stage, []).append(self.row(number))
        return found

    def _nodes(self, node: int | None) -> Iterator[MatchedNode]:
        while node is not None:
            found = self.matches.nodes[node]
            yield found
            node = found.before


class _Path(StagePath):
    """The rows of a partial match; the first and the last row of a stage are found without reading the others."""

    __slots__ = ("_node", "_nodes")

    def __init__(self, nodes: Mapping[int, MatchedNode], node: int | None) -> None:
        self._nodes = nodes
        self._node = node

    def first(self, stage: str) -> int | None:
        last = self._last(stage)
        return None if last is None else self._nodes[last.begin].row

    def last(self, stage: str) -> int | None:
        last = self._last(stage)
        return None if last is None else last.row

    def rows(self, stage: str) -> list[int]:
        found: list[int] = []
        node = self._last(stage)
        while node is not None and node.stage == stage:
            found.append(node.row)
            node = None if node.before is None else self._nodes[node.before]
        return found[::-1]

    def _last(self, stage: str) -> MatchedNode | None:
        at = self._node
        while at is not None:
            node = self._nodes[at]
            if node.stage == stage:
                return node
            at = self._nodes[node.begin].before
        return None


Match = dict[str, list[Row]]
"""The rows of a match by the name of their stage, in their order."""


@dataclass(frozen=True)
class Advanced(Generic[Row]):
    """Matches and partial matches that the advance of event time has ended.

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
        """Discards what is not a match yet: a row that it must not have may be the last one of a match."""
        for result in results:
            if self._states[result.state].kind is not Kind.FINAL:
                buffer.release(result.node)
        return [result for result in results if self._states[result.state].kind is Kind.FINAL]

    def _taken(
        self,
        buffer: MatchBuffer[Row],
        partial: PartialMatch | None,
        edge: StageEdge,
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

    def _edges(self, state: State, evaluation: Evaluation[Row]) -> Iterator[StageEdge]:
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
                first_kept = self._skip.find_first_kept(path)
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


WAITING, MATCHED, PARTIAL = "waiting-rows", "matched-rows", "partial-matches"
"""Names of states, which are part of the stored format."""


@dataclass(frozen=True)
class PatternSettings(Generic[Row]):
    """The pattern of an operator and its side outputs.

    Attributes:
        row_class: class of the rows.
        late_rows: side output of late rows; None to drop them.
        timed_out: what is emitted for partial matches that exceeded the time limit; None for nothing.
    """

    pattern: Pattern
    row_class: type[Row]
    late_rows: OutputTag[Row] | None = None
    timed_out: TimedOut[object] | None = None


class PatternOperator(KeyedProcessFunction[Row, object], Generic[Row]):
    """Matches the rows of a key with a pattern.

    Args:
        settings: the pattern.
        function: called with each match.
    """

    _waiting: MapState[int, list[Row]]
    _matched: MapState[int, Row]
    _partial: ValueState[PartialMatches]
    _matcher: Matcher[Row]

    def __init__(self, settings: PatternSettings[Row], function: PatternProcessFunction[Row, object]) -> None:
        self.function = function
        self._settings = settings
        self._structure = settings.pattern.structure
        self._within = settings.pattern.within_ms
        # Of the keys of a batch: the earliest pending timer for a row, and the time up to which rows are processed.
        self._earliest: dict[tuple[object, ...], int] = {}
        self._processed: dict[tuple[object, ...], int] = {}

    def open(self, ctx: RuntimeContext) -> None:
        row_class, pattern = self._settings.row_class, self._settings.pattern
        rows = cast("type[list[Row]]", GenericAlias(list, (row_class,)))
        self._waiting = ctx.get_map_state(MapStateDescriptor(WAITING, int, rows))
        self._matched = ctx.get_map_state(MapStateDescriptor(MATCHED, int, row_class))
        self._partial = ctx.get_state(ValueStateDescriptor(PARTIAL, stored_class(self._structure)))
        self._matcher = Matcher(automaton_of(pattern), pattern.skip, self._within)
        self.function.open(ctx)

    def close(self) -> None:
        self.function.close()

    def process_element(self, row: Row, ctx: Context) -> None:
        time = ctx.timestamp()
        if time is None:
            raise StateError(
                "a row of a pattern has no event time", hint="filter rows whose timestamp column is null before key_by"
            )
        if time > ctx.timer_service().current_watermark():
            self._waiting.put(time, [*(self._waiting.get(time) or ()), row])
            earliest = self._earliest.get(ctx.key_values)
            if earliest is None or time < earliest:
                self._earliest[ctx.key_values] = time
                ctx.timer_service().register_event_time_timer(time)
        elif self._settings.late_rows is not None:
            ctx.output(self._settings.late_rows, row)
        else:
            self.late_rows_dropped += 1

    def on_timer(self, timestamp: int, ctx: OnTimerContext) -> Iterator[object]:
        until = max(timestamp, ctx.timer_service().current_watermark())
        if timestamp <= self._processed.get(ctx.key_values, NO_WATERMARK):
            return  # the key was processed when an earlier timer fired
        self._processed[ctx.key_values] = until
        # More rows of the batch may follow.
        self._earliest.pop(ctx.key_values, None)
        buffer = MatchBuffer(self._partial.value() or PartialMatches(self._structure), self._matched)
        for time, rows in self._waiting.items():
            if time > until:
                self._earliest[ctx.key_values] = time
                ctx.timer_service().register_event_time_timer(time)
                break
            self._waiting.remove(time)
            # Partial matches end before rows of this time are processed: the time limit is exclusive.
            yield from self._advance(buffer, time, ctx)
            ctx.set_timer(TimeDomain.EVENT_TIME, time)
            for row in rows:
                yield from self._emitted(self._matcher.process(buffer, row, time), ctx)
        yield from self._advance(buffer, until, ctx)
        self._store(buffer, ctx)

    def _advance(self, buffer: MatchBuffer[Row], time: int, ctx: OnTimerContext) -> Iterator[object]:
        """Ends the partial matches whose time limit is at `time` or before, one after another."""
        while self._within is not None and buffer.matches.partial:
            expires = buffer.matches.partial[0].began + self._within
            if expires > time:
                return
            ctx.set_timer(TimeDomain.EVENT_TIME, expires)
            advanced = self._matcher.advance(buffer, expires)
            yield from self._emitted(advanced.matched, ctx)
            for match in advanced.timed_out:
                self._time_out(match, ctx)

    def _emitted(self, matches: Iterable[Match[Row]], ctx: OnTimerContext) -> Iterator[object]:
        process = self.function.process_match
        for match in matches:
            yield from check_returned_rows(process(match, ctx), process)

    def _time_out(self, match: Mapping[str, list[Row]], ctx: OnTimerContext) -> None:
        timed_out = self._settings.timed_out
        if timed_out is not None:
            ctx.output(timed_out.tag, timed_out.function(match))
        self.function.process_timed_out_match(match, ctx)

    def _store(self, buffer: MatchBuffer[Row], ctx: OnTimerContext) -> None:
        matches = buffer.matches
        if self._within is not None and matches.partial:
            # One timer at a time, for the earliest: when it fires, the next one is registered.
            expires = matches.partial[0].began + self._within
            if expires != matches.expires and expires < MAX_WATERMARK:
                matches.expires = expires
                buffer.changed = True
                ctx.timer_service().register_event_time_timer(expires)
        if buffer.changed:
            if matches.is_empty:
                self._partial.clear()
            else:
                self._partial.update(matches)
