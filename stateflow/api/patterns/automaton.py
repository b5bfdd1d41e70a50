"""The automaton of a pattern: states and the edges between them. A translation of Flink's `NFACompiler`."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum, auto

from stateflow.api.patterns.conditions import ALWAYS, AllOf, Condition, Not
from stateflow.api.patterns.pattern import Pattern
from stateflow.api.patterns.stages import Contiguity, Stage


class Action(Enum):
    """What an edge does with a row."""

    TAKE = auto()
    """Adds it to the match."""
    IGNORE = auto()
    PROCEED = auto()
    """Applies it to the target of the edge."""


class Kind(Enum):
    """What a state means."""

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
    edges: list[Edge] = field(default_factory=list, repr=False)

    def take(self, target: State, condition: Condition) -> None:
        """Adds an edge."""
        self.edges.append(Edge(Action.TAKE, target, condition, self.stage))

    def ignore(self, target: State, condition: Condition) -> None:
        """Adds an edge."""
        self.edges.append(Edge(Action.IGNORE, target, condition, self.stage))

    def proceed(self, target: State, condition: Condition = ALWAYS) -> None:
        """Adds an edge."""
        self.edges.append(Edge(Action.PROCEED, target, condition, self.stage))


@dataclass(eq=False)
class Edge:
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
            copied.edges.append(Edge(edge.action, target, edge.condition, edge.stage))
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
            copied.edges.append(Edge(edge.action, target, edge.condition, edge.stage))
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
