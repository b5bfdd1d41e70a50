"""Changes a target for a job whose graph has changed: names of its state, positions of its sources."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime

from msgspec.structs import replace

from stateflow.api.source import LocalSource, Source
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
    stored_graph,
)
from stateflow.checkpoint.restore.plan_document import GraphChanges, GraphPlan, SourceAction, SourceChange
from stateflow.checkpoint.restore.source_positions import SourceStarts, match_sources, rename_waiting, with_sources
from stateflow.errors import ConfigError
from stateflow.runtime.planning.physical_plan import JobPlan
from stateflow.runtime.restore.source_starts import ChosenStarts, can_keep, check_kept, choose_starts
from stateflow.runtime.restore.state_import import StateLocation, check_key_groups, has_raw_state
from stateflow.state.schema_compatibility import Declarations


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
        sources: (uid, description) of each source, ordered by uid.
        max_parallelism: number of key groups.
        states: the declared states by uid of the operator, as far as known.
        sinks: uids of the sinks.
    """

    plan: JobPlan
    sources: tuple[tuple[str, str], ...]
    max_parallelism: int
    states: Mapping[str, Declarations] = field(default_factory=dict)
    sinks: frozenset[str] = frozenset()

    @property
    def names(self) -> JobGraph:
        """The names of everything in it."""
        return JobGraph(
            operators=frozenset(self.plan.key_types),
            declared={uid: frozenset(_declared_items(states)) for uid, states in self.states.items()},
            sources=frozenset(uid for uid, _ in self.sources),
            sinks=self.sinks,
        )

    @property
    def source_objects(self) -> dict[str, Source | LocalSource]:
        """The sources, by uid."""
        return {node.uid: node.source for node in self.plan.sources}


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
            at=request.at.isoformat() if changes.sources else "",
            moves=[move for move in self.assignment.moves if move.is_changed],
            dropped=[state for state in self.assignment.dropped if state.uid in left],
            old_max_parallelism=self.key_groups[0],
            max_parallelism=self.key_groups[1],
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
                    now="",
                    then=self.chosen.texts.get(uid, position.offset),
                    action=self._source_action(uid),
                    old=old if old != uid else "",
                )
            )
        removed = [SourceChange(uid=uid, now="", then="", action=SourceAction.REMOVED) for uid in self.sources.removed]
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
    stored = stored_graph(target, (o.uid for o in read if has_raw_state(o, location)))
    given = parse_maps(request.changes.maps, stored, graph.names)
    assignment = assign_states(stored, graph.names, given, request.drop)
    operators = map_operators(target, stored, assignment)
    chosen = choose_starts(request.changes.sources, graph.source_objects, target, request.at)
    sources = match_sources(
        target.sources,
        graph.sources,
        given.sources,
        chosen.starts,
        can_keep=lambda uid, before: can_keep(graph.source_objects[uid], before),
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
            check_kept(uid, graph.source_objects[uid], before[old])


def _check_dropped_sources(sources: SourceStarts, drop: frozenset[str]) -> None:
    kept = sorted(uid for uid in sources.before.values() if uid in drop)
    if kept:
        raise ConfigError(
            "the position of a source that the job has cannot be dropped",
            hint=f"set it instead: --source {kept[0]}=earliest",
            uids=kept,
        )
