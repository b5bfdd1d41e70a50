"""Changes a target for a job whose graph has changed: names of its state, positions of its sources."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime

from msgspec.structs import replace

from stateflow.api.source import (
    FROM_START,
    InitialPosition,
    LocalSource,
    Source,
    StartKind,
    StartPosition,
    spark_position,
)
from stateflow.checkpoint.log.documents import Manifest
from stateflow.checkpoint.restore.graph_map import (
    GraphAssignment,
    JobGraph,
    MappedOperators,
    StateItem,
    StateKind,
    assign_states,
    map_operators,
    parse_maps,
    read_graph,
)
from stateflow.checkpoint.restore.plan_document import GraphChanges, GraphPlan, SourceAction, SourceChange
from stateflow.checkpoint.restore.source_positions import (
    SourceStart,
    SourceStarts,
    match_sources,
    rename_waiting,
    with_sources,
)
from stateflow.checkpoint.restore.state_assignment import CurrentJob
from stateflow.clock import parse_timestamp
from stateflow.errors import ConfigError, StateflowError
from stateflow.outputs import offset_value, utc_text
from stateflow.runtime.planning.physical_plan import JobPlan
from stateflow.runtime.restore.state_import import StateLocation, check_key_groups, has_raw_state
from stateflow.state.schema_compatibility import Declarations

KEEP = "keep"
_TIMESTAMP, _POSITION = "timestamp:", "position:"
_HINT = "use UID=keep, earliest, latest, timestamp:TIME, position:TEXT, or the position's JSON"


@dataclass(frozen=True)
class ChosenStarts:
    """The positions that a user has chosen.

    Attributes:
        starts: by uid of the source; None for a position that is kept.
        texts: the position in words, by uid, for each source whose offset does not describe it.
    """

    starts: Mapping[str, SourceStart | None]
    texts: Mapping[str, str]


def choose_starts(
    options: Sequence[str], sources: Mapping[str, Source | LocalSource | None], target: Manifest, at: datetime
) -> ChosenStarts:
    """Returns the positions in `options`.

    Args:
        options: positions, each as ``UID=POSITION``.
        sources: the sources of the job, by uid; None for one of which only the description is known. Its chosen
            position is checked as a text only, and remains a text.
        target: manifest of the target.
        at: the time that ``latest`` refers to.

    Raises:
        ConfigError: an option is not valid, or a source does not support it.
    """
    starts: dict[str, SourceStart | None] = {}
    texts: dict[str, str] = {}
    for option in options:
        uid, equals, value = (part.strip() for part in option.partition("="))
        if not (uid and equals and value):
            raise ConfigError("a source's position is not of the form UID=POSITION", hint=_HINT, source=option)
        if uid not in sources:
            raise ConfigError(
                "the job has no source with this uid",
                hint="use one of the known uids; a source that was removed needs no option",
                uid=uid,
                known=sorted(sources),
            )
        if uid in starts:
            raise ConfigError("a source has two positions", hint="give one of them", uid=uid)
        source = sources[uid]
        if value == KEEP:
            starts[uid] = None
            continue
        start = _parsed(option, value, at)
        if source is None:
            starts[uid] = SourceStart()
            texts[uid] = value
            continue
        found = _initial_position(uid, source, start)
        offset = found.offset
        if target.spark is not None and isinstance(source, LocalSource) and offset != FROM_START:
            offset = json.dumps(spark_position(offset))
        starts[uid] = SourceStart(offset=offset, logs=found.logs)
        if found.text:
            texts[uid] = found.text
    return ChosenStarts(starts, texts)


def can_keep(source: Source | LocalSource | None, before: str) -> bool:
    """Returns whether a source may continue from the position of a source with another description.

    Also True for a source of which only the description is known.
    """
    return not isinstance(source, Source) or source.can_keep(before)


def check_kept(uid: str, source: Source | LocalSource | None, before: str) -> None:
    """Raises ConfigError for a source that reads other data and cannot continue from the old position.

    Args:
        before: the description of the source in the target.
    """
    if source is not None and not can_keep(source, before):
        raise ConfigError(
            "a position of other data cannot be kept by this kind of source",
            hint=f"if its folder was moved with all files that were read, use stateflow source relocate; otherwise set "
            f"the position: --source {uid}=earliest, latest or timestamp:TIME",
            uid=uid,
            before=before,
            now=source.description,
        )


def _parsed(option: str, value: str, at: datetime) -> StartPosition:
    if value == StartKind.EARLIEST:
        return StartPosition(StartKind.EARLIEST)
    if value == StartKind.LATEST:
        return StartPosition(StartKind.LATEST, at)
    if value.startswith(_TIMESTAMP):
        return StartPosition(StartKind.TIMESTAMP, _timestamp(option, value.removeprefix(_TIMESTAMP)))
    if value.startswith(_POSITION):
        return _checked_position(option, value.removeprefix(_POSITION))
    if value[0] in "{[":
        try:
            json.loads(value)
        except (ValueError, RecursionError) as e:
            raise ConfigError("a source's position is not valid JSON", hint=_HINT, source=option) from e
        return _checked_position(option, value)
    raise ConfigError("a source's position is not known", hint=_HINT, source=option)


def _checked_position(option: str, position: str) -> StartPosition:
    # A position is one line of Spark's offset log.
    if not position or not position.isprintable():
        raise ConfigError(
            "a source's position is empty, or has a line end or another control character", hint=_HINT, source=option
        )
    return StartPosition(StartKind.POSITION, position=position)


def _timestamp(option: str, text: str) -> datetime:
    try:
        return parse_timestamp(text)
    except ValueError as e:
        raise ConfigError(
            "the time of a source's position is not in ISO 8601 format",
            hint="for example timestamp:2026-01-31T03:00 (UTC)",
            source=option,
        ) from e


def _initial_position(uid: str, source: Source | LocalSource, start: StartPosition) -> InitialPosition:
    if start.kind not in source.start_kinds:
        raise ConfigError(
            "the source does not support this kind of position",
            hint=f"it supports keep, {', '.join(sorted(source.start_kinds))}",
            uid=uid,
            position=start.kind.value,
            source=source.description,
        )
    try:
        is_earliest = start.kind is StartKind.EARLIEST
        return source.earliest_position() if is_earliest else source.initial_position(start)
    except StateflowError as e:
        e.add_facts(uid=uid)
        raise


@dataclass(frozen=True)
class GraphRequest:
    """The user's decisions about the graph, and their time.

    Attributes:
        drop: operators, states and sources to drop.
        at: the time that the position ``latest`` refers to.
    """

    changes: GraphChanges
    drop: frozenset[str]
    at: datetime


@dataclass(frozen=True)
class DeclaredGraph:
    """The graph of the job, with what a restore compares.

    Attributes:
        parallelism: number of subtasks of keyed operators.
        max_parallelism: number of key groups.
        key_types: Spark type names of the key columns, by uid of the operator.
        sources: (uid, description) of each source, ordered by uid.
        states: the declared states by uid of the operator, as far as known.
        sinks: uids of the sinks.
        source_objects: the sources, by uid; empty if only their descriptions are known.
    """

    parallelism: int
    max_parallelism: int
    key_types: Mapping[str, list[str]]
    sources: tuple[tuple[str, str], ...]
    states: Mapping[str, Declarations] = field(default_factory=dict)
    sinks: frozenset[str] = frozenset()
    source_objects: Mapping[str, Source | LocalSource] = field(default_factory=dict)

    @classmethod
    def of(
        cls,
        plan: JobPlan,
        sources: tuple[tuple[str, str], ...],
        max_parallelism: int,
        *,
        states: Mapping[str, Declarations],
        sinks: Iterable[str],
    ) -> DeclaredGraph:
        """Returns the graph of a plan; arguments are the attributes."""
        objects = {node.uid: node.source for node in plan.sources}
        return cls(plan.parallelism, max_parallelism, plan.key_types, sources, states, frozenset(sinks), objects)

    def wanted(self, max_parallelism: int) -> CurrentJob:
        """Returns the same for the comparison with stored state, with another number of key groups."""
        return CurrentJob(self.parallelism, max_parallelism, self.key_types, self.sources, self.states)

    @property
    def names(self) -> JobGraph:
        """The names of everything in it."""
        return JobGraph(
            operators=frozenset(self.key_types),
            declared={uid: frozenset(_declared_items(states)) for uid, states in self.states.items()},
            sources=frozenset(uid for uid, _ in self.sources),
            sinks=self.sinks,
        )


@dataclass(frozen=True)
class ChangedGraph:
    """A target, as the job continues from it.

    Attributes:
        target: manifest of the target.
        assignment: where each of its states is restored.
        operators: the operators that get state.
        sources: where each source continues.
        chosen: the positions that the user has chosen.
        request: the user's decisions.
        manifest: the manifest that the job continues from; see `MappedOperators.outline`.
        key_groups: the numbers of key groups of the target and of the job, if keyed state must change it.
    """

    target: Manifest
    assignment: GraphAssignment
    operators: MappedOperators
    sources: SourceStarts
    chosen: ChosenStarts
    request: GraphRequest
    manifest: Manifest
    key_groups: tuple[int, int] = (0, 0)

    @property
    def is_changed(self) -> bool:
        """Whether the job needs another manifest than that of the target."""
        return self.manifest != self.target

    @property
    def read(self) -> Manifest:
        """The target's manifest with only the operators whose files are read."""
        used = {move.old for move in self.assignment.moves}
        return replace(self.target, operators=[o for o in self.target.operators if o.uid in used])

    @property
    def shared(self) -> Manifest:
        """The manifest that the job continues from, without the operators that are written again."""
        return replace(self.manifest, operators=list(self.operators.shared))

    @property
    def plan(self) -> GraphPlan:
        """The part of a restore plan about it."""
        left, request = {move.old for move in self.assignment.moves}, self.request
        changes = request.changes
        return GraphPlan(
            maps=list(changes.maps),
            sources=list(changes.sources),
            drop=sorted(request.drop),
            positions_at=utc_text(request.at) if changes.sources else None,
            moves=[move for move in self.assignment.moves if move.is_changed],
            dropped=[state for state in self.assignment.dropped if state.uid in left],
            old_max_parallelism=self.key_groups[0] or None,
            max_parallelism=self.key_groups[1] or None,
        )

    @property
    def source_changes(self) -> list[SourceChange]:
        """Where each source of the job continues, and which sources of the target it does not have."""
        changes = []
        for position in self.manifest.sources:
            uid, old = position.uid, self.sources.before.get(position.uid, position.uid)
            changes.append(
                SourceChange(
                    uid=uid,
                    target_offset=offset_value(self.chosen.texts.get(uid, position.offset)),
                    action=self._source_action(uid),
                    old=old if old != uid else None,
                )
            )
        removed = [SourceChange(uid=uid, action=SourceAction.REMOVED) for uid in self.sources.removed]
        return sorted((*changes, *removed), key=lambda change: (change.uid, change.action))

    def _source_action(self, uid: str) -> SourceAction:
        start = self.sources.starts[uid]
        if not start.old:
            return SourceAction.RESET if uid in self.sources.before else SourceAction.NEW
        known = {position.uid: position.description for position in self.target.sources}
        now = {position.uid: position.description for position in self.manifest.sources}
        return SourceAction.KEPT if known[start.old] == now[uid] else SourceAction.REPLACED


def change_graph(
    target: Manifest, location: StateLocation, graph: DeclaredGraph, request: GraphRequest
) -> ChangedGraph:
    """Returns what a target becomes for the job.

    Args:
        target: manifest of the target.
        location: where its files are; operator state is read if an operator may be divided or joined.
        graph: the graph of the job.
        request: the user's decisions.

    Raises:
        ConfigError: a state or a source's position has no unambiguous place, or a name does not exist.
        WrongJobRoot: states with different key types would come to one operator.
        IncompatibleState: raw keyed state would get another number of key groups.
        MissingFile, CorruptFile: a file of the operator state is missing or damaged.
    """
    read = [o for o in target.operators if o.parts and _may_be_rewritten(o.uid, request)]
    stored = read_graph(target, (o.uid for o in read if has_raw_state(o, location)))
    given = parse_maps(request.changes.maps, stored, graph.names)
    assignment = assign_states(stored, graph.names, given, request.drop)
    operators = map_operators(target, stored, assignment)
    objects = {uid: graph.source_objects.get(uid) for uid, _ in graph.sources}
    chosen = choose_starts(request.changes.sources, objects, target, request.at)
    sources = match_sources(
        target.sources,
        graph.sources,
        given.sources,
        chosen.starts,
        can_keep=lambda uid, before: can_keep(objects[uid], before),
    )
    _check_kept_positions(target, sources, graph)
    _check_dropped_sources(sources, request.drop)
    manifest = with_sources(target, graph.sources, sources.starts)
    if operators.outline != sorted(target.operators, key=lambda operator: operator.uid):
        taken = [(uid, {move.old for move in moves}) for uid, moves in sorted(assignment.by_operator.items())]
        # From the target's uids at once: a source may have the former uid of an operator.
        new = assignment.renamed | {start.old: uid for uid, start in sources.starts.items() if start.old}
        known = rename_waiting(target.waiting, new)
        waiting = [
            replace(now, operator=uid)
            for uid, olds in taken
            for old, now in zip(target.waiting, known, strict=True)
            if old.operator in olds
        ]
        manifest = replace(manifest, operators=operators.outline, waiting=waiting)
    key_groups = _key_groups(operators, location, graph)
    return ChangedGraph(target, assignment, operators, sources, chosen, request, manifest, key_groups)


def _key_groups(operators: MappedOperators, location: StateLocation, graph: DeclaredGraph) -> tuple[int, int]:
    new = graph.max_parallelism
    old = new if location.max_parallelism is None else location.max_parallelism
    if old != new:
        check_key_groups(operators, location, new)
    is_rekeyed = old != new and any(operator.subtasks for operator in operators.shared)
    return (old, new) if is_rekeyed else (0, 0)


def _may_be_rewritten(uid: str, request: GraphRequest) -> bool:
    """Returns whether an operator's state may be written again, which loses raw state that is not known."""
    if not request.changes.maps and not request.drop:
        return False
    olds = [text.partition("=")[0].strip() for text in request.changes.maps]
    is_mapped = any(old == uid or old.startswith((f"{uid}.", f"{uid}:")) for old in olds)
    # Dropping an operator is the remedy if a file of it is damaged.
    return is_mapped or not {uid, f"{uid}:"} & request.drop


def _declared_items(states: Declarations) -> Iterable[StateItem]:
    yield from (StateItem(StateKind.KEYED, declaration.schema.name) for declaration in states.keyed)
    yield from (StateItem(StateKind.OPERATOR, declaration.schema.name) for declaration in states.operator)


def _check_kept_positions(target: Manifest, sources: SourceStarts, graph: DeclaredGraph) -> None:
    before = {position.uid: position.description for position in target.sources}
    for uid, description in graph.sources:
        old = sources.starts[uid].old
        if old and before[old] != description:
            check_kept(uid, graph.source_objects.get(uid), before[old])


def _check_dropped_sources(sources: SourceStarts, drop: frozenset[str]) -> None:
    kept = sorted(uid for uid in sources.before.values() if uid in drop)
    if kept:
        raise ConfigError(
            "the position of a source that the job has cannot be dropped",
            hint=f"set it instead: --source {kept[0]}=earliest",
            uids=kept,
        )
