"""The operators of a manifest as an assignment of their states changes them. Pure: no file is read or written.

An operator that gets all states of one operator under their names only gets another uid; its files are shared. All
others are divided, joined or renamed entry by entry, because a state's name determines the keys of its entries.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from msgspec.structs import replace

from stateflow.checkpoint.log.documents import Manifest, OperatorState
from stateflow.checkpoint.restore.graph_assignment import GraphAssignment, StateMove
from stateflow.checkpoint.restore.graph_map import RAW, TIMERS, StateItem, StateKind, StoredGraph
from stateflow.errors import CorruptFile, WrongJobRoot
from stateflow.state.handles import StateSchema

Origin = tuple[OperatorState, tuple[StateMove, ...]]
"""An operator of the target, and the states of it that one operator of the job gets."""


@dataclass(frozen=True)
class Rewrite:
    """An operator of the job whose state must be written again.

    Attributes:
        result: the operator without its state: uid, parallelism, key types, schemas and watermark.
        origins: where its states come from.
    """

    result: OperatorState
    origins: tuple[Origin, ...]


@dataclass(frozen=True)
class MappedOperators:
    """The operators of the job that get state from a target.

    Attributes:
        shared: operators that keep their files, and operators without state, in order of uids.
        rewrites: operators whose state is written again, in order of uids.
    """

    shared: tuple[OperatorState, ...]
    rewrites: tuple[Rewrite, ...] = ()

    @property
    def outline(self) -> list[OperatorState]:
        """All operators as they will be, for checks; those that are rewritten have the state of their first origin."""
        return sorted((*self.shared, *map(_outline, self.rewrites)), key=lambda operator: operator.uid)


def stored_graph(manifest: Manifest, raw: Iterable[str] = ()) -> StoredGraph:
    """Returns the states and sources of a manifest.

    Args:
        raw: uids of the operators that have raw state, which only their files show.
    """
    has_raw = frozenset(raw)
    operators = {o.uid: _items(o, o.uid in has_raw) for o in manifest.operators}
    return StoredGraph(operators, frozenset(position.uid for position in manifest.sources))


def map_operators(manifest: Manifest, stored: StoredGraph, assignment: GraphAssignment) -> MappedOperators:
    """Returns the operators of the job that get state.

    Args:
        manifest: manifest of the target.
        stored: its graph, as `assignment` was made for.
        assignment: where its states are restored.

    Raises:
        WrongJobRoot: states of operators with different key types would come to one operator.
        CorruptFile: the operators have different parallelisms, which no run writes.
    """
    operators = {o.uid: o for o in manifest.operators}
    shared: list[OperatorState] = []
    rewrites: list[Rewrite] = []
    for uid, moves in sorted(assignment.by_operator.items()):
        olds = sorted({move.old for move in moves})
        if _is_whole(moves, stored):
            shared.append(replace(operators[olds[0]], uid=uid))
        else:
            origins = tuple((operators[old], tuple(m for m in moves if m.old == old)) for old in olds)
            rewrites.append(Rewrite(_result(uid, origins), origins))
    taken = {operator.uid for operator in (*shared, *(rewrite.result for rewrite in rewrites))}
    shared += [o for o in manifest.operators if not o.has_state and o.uid not in taken]
    return MappedOperators(tuple(sorted(shared, key=lambda o: o.uid)), tuple(rewrites))


def _items(operator: OperatorState, has_raw: bool) -> frozenset[StateItem]:
    if not operator.has_state:
        return frozenset()
    items = {StateItem(StateKind.KEYED, schema.name) for schema in operator.states}
    items |= {StateItem(StateKind.OPERATOR, schema.name) for schema in operator.operator_states}
    if any(s.event_timer is not None or s.processing_timer is not None for s in operator.subtasks):
        items.add(TIMERS)
    if has_raw:
        items.add(RAW)
    # Each operator with state needs a part, so that it is restored or refused as a whole.
    return frozenset(items) or frozenset([TIMERS if operator.subtasks else RAW])


def _is_whole(moves: Sequence[StateMove], stored: StoredGraph) -> bool:
    """Returns whether an operator gets all states of one operator, under their names."""
    olds = {move.old for move in moves}
    same_names = all(move.old_state == move.new_state for move in moves)
    return len(olds) == 1 and same_names and {move.item for move in moves} == stored.operators[olds.pop()]


def _result(uid: str, origins: Sequence[Origin]) -> OperatorState:
    first = origins[0][0]
    different = [o.uid for o, _ in origins if o.key_types != first.key_types]
    if different:
        raise WrongJobRoot(
            "states of operators with different key types would come to one operator",
            hint="map them to different operators",
            operator=uid,
            old={o.uid: o.key_types for o, _ in origins},
        )
    if len({o.parallelism for o, _ in origins}) > 1:
        raise CorruptFile(
            "the operators of a checkpoint have different parallelisms",
            hint="restore another checkpoint or savepoint",
            parallelism={o.uid: o.parallelism for o, _ in origins},
        )
    watermarks = [operator.watermark for operator, _ in origins]
    known = [watermark for watermark in watermarks if watermark is not None]
    return OperatorState(
        uid=uid,
        parallelism=first.parallelism,
        key_types=first.key_types,
        key_names=first.key_names,
        states=_renamed(((o.states, moves) for o, moves in origins), StateKind.KEYED),
        operator_states=_renamed(((o.operator_states, moves) for o, moves in origins), StateKind.OPERATOR),
        subtasks=[],
        # The lowest: a row that was not late for an operator must not become late for its state.
        watermark=min(known) if len(known) == len(watermarks) else None,
    )


def _renamed(
    schemas: Iterable[tuple[Sequence[StateSchema], Sequence[StateMove]]], kind: StateKind
) -> list[StateSchema]:
    found = []
    for stored, moves in schemas:
        names: Mapping[str, str] = {move.old_state: move.new_state for move in moves if move.kind is kind}
        found += [replace(schema, name=names[schema.name]) for schema in stored if schema.name in names]
    return sorted(found, key=lambda schema: schema.name)


def _outline(rewrite: Rewrite) -> OperatorState:
    keyed = [o for o, moves in rewrite.origins if any(m.kind in (StateKind.KEYED, StateKind.TIMERS) for m in moves)]
    others = [o for o, moves in rewrite.origins if any(m.kind in (StateKind.OPERATOR, StateKind.RAW) for m in moves)]
    return replace(rewrite.result, subtasks=keyed[0].subtasks if keyed else [], parts=others[0].parts if others else [])
