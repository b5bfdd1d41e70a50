"""Matches checkpoint state to job operators, or reports why they are incompatible. Pure functions."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import pairwise

from stateflow.checkpoint.log.documents import Manifest, OperatorState, SourcePosition
from stateflow.checkpoint.restore.source_positions import check_unambiguous
from stateflow.errors import ConfigError, CorruptFile, WrongJobRoot
from stateflow.state.handles import Base, check_backends_known
from stateflow.state.kinds.state_registry import check_state_ids
from stateflow.state.schema.compatibility import Declarations, check_state
from stateflow.types.key_groups import range_of

_EPOCHS = 1 << 63
"""Upper bound of epochs, which have eight bytes in keys."""


@dataclass(frozen=True)
class CurrentJob:
    """The job that a checkpoint is matched with.

    Attributes:
        parallelism: number of subtasks of keyed operators.
        max_parallelism: number of key groups.
        key_types: Spark type names of the key columns, by uid of the operator.
        sources: (uid, description) of each source, in order.
        states: the declared states by uid of the operator, as far as known.
    """

    parallelism: int
    max_parallelism: int
    key_types: Mapping[str, list[str]]
    sources: tuple[tuple[str, str], ...]
    states: Mapping[str, Declarations] = field(default_factory=dict)


@dataclass(frozen=True)
class StateAssignment:
    """The state and positions that a start restores.

    Attributes:
        checkpoint_id: id of the checkpoint; 0 for a start without one.
        matched: uids of the operators with stored state.
        new: uids of the operators without stored state.
        operators: stored state by uid of the matched operators.
        bases: initial state of each subtask, by uid of the matched operators.
        positions: position of each source, in order.
    """

    checkpoint_id: int
    matched: tuple[str, ...]
    new: tuple[str, ...]
    operators: dict[str, OperatorState]
    bases: dict[str, tuple[Base, ...]]
    positions: tuple[SourcePosition, ...]

    @property
    def rescaled(self) -> tuple[str, ...]:
        """Uids of the operators whose state was written at another parallelism."""
        return tuple(uid for uid, bases in self.bases.items() if any(b.rescales for b in bases))


def assign_state(checkpoint_id: int, manifest: Manifest | None, wanted: CurrentJob) -> StateAssignment:
    """Matches stored state and source positions with the job by uid. No state is dropped implicitly.

    Args:
        checkpoint_id: id of the checkpoint.
        manifest: its manifest; None for a start without a checkpoint.
        wanted: the job.

    Raises:
        ConfigError: operators, sources or parallelism do not match.
        WrongJobRoot: key columns have other types.
        IncompatibleState: a declared state cannot read the stored values.
        CorruptFile: the manifest has impossible values.
    """
    if wanted.parallelism > wanted.max_parallelism:
        raise ConfigError(
            "parallelism is above max_parallelism",
            hint="a subtask owns at least one key group; max_parallelism cannot change after the job root was created",
            parallelism=wanted.parallelism,
            max_parallelism=wanted.max_parallelism,
        )
    if manifest is None:
        return StateAssignment(0, (), tuple(sorted(wanted.key_types)), {}, {}, ())
    _check_numbers(manifest, wanted.max_parallelism)
    operators = {o.uid: o for o in manifest.operators}
    _refuse_dropped(operators, wanted)
    operators = {uid: state for uid, state in operators.items() if uid in wanted.key_types}
    for uid, state in operators.items():
        _check_operator(state, wanted.key_types[uid])
        _check_states(state, wanted.states.get(uid, Declarations()))
    check_unambiguous(manifest.sources, wanted.sources)
    matched = tuple(sorted(operators))
    new = tuple(sorted(wanted.key_types.keys() - operators.keys()))
    bases = {uid: bases_of(operators[uid], wanted.parallelism, wanted.max_parallelism) for uid in matched}
    return StateAssignment(checkpoint_id, matched, new, operators, bases, tuple(manifest.sources))


def bases_of(state: OperatorState | None, parallelism: int, max_parallelism: int) -> tuple[Base, ...]:
    """Returns the initial state of each subtask: the stored subtask states that overlap its key groups.

    At the parallelism of the checkpoint, that is its own state.

    Args:
        state: the stored state of the operator; None for a new operator.
        parallelism: number of subtasks.
        max_parallelism: number of key groups.
    """
    stored = sorted(state.subtasks, key=lambda s: s.first_group) if state else []
    ranges = [range_of(subtask, parallelism, max_parallelism) for subtask in range(parallelism)]
    return tuple(
        Base(subtask, owned, tuple(s for s in stored if s.groups.overlap(owned)))
        for subtask, owned in enumerate(ranges)
    )


def _check_numbers(manifest: Manifest, max_parallelism: int) -> None:
    """Raises CorruptFile for an epoch or key groups out of range."""
    wrong = [
        (operator.uid, subtask.first_group, subtask.last_group)
        for operator in manifest.operators
        for subtask in operator.subtasks
        if not 0 <= subtask.first_group <= subtask.last_group < max_parallelism
    ]
    if wrong or not 0 <= manifest.epoch < _EPOCHS:
        raise CorruptFile(
            "a manifest has an epoch or key groups out of range",
            hint="restore an older checkpoint",
            epoch=manifest.epoch,
            max_parallelism=max_parallelism,
            key_groups=wrong[:10],
        )


def _refuse_dropped(operators: Mapping[str, OperatorState], wanted: CurrentJob) -> None:
    dropped = sorted(uid for uid, state in operators.items() if uid not in wanted.key_types and state.has_state)
    if dropped:
        raise ConfigError(
            "the checkpoint has state of operators that the job does not have",
            hint="give the operators their old uids; or plan a restore, stateflow restore JOB.py --plan latest, with "
            "--map OLD=NEW for a renamed operator or --drop UID; run --from-savepoint has the same options",
            uids=dropped,
        )


def _check_operator(state: OperatorState, key_types: list[str]) -> None:
    check_backends_known(state.subtasks)
    if state.key_types != key_types:
        raise WrongJobRoot(
            "the key columns of an operator have other types than its state was written with",
            hint="cast the columns back, or give the operator a new uid",
            uid=state.uid,
            found=state.key_types,
            wanted=key_types,
        )
    parts = [part.subtask for part in state.parts]
    if len(set(parts)) < len(parts) or not set(parts) <= set(range(state.parallelism)):
        raise CorruptFile(
            "the operator state of a checkpoint does not match its subtasks",
            hint="restore an older checkpoint",
            uid=state.uid,
            subtasks=parts[:10],
            parallelism=state.parallelism,
        )
    groups = sorted((s.first_group, s.last_group) for s in state.subtasks)
    if any(after[0] <= before[1] for before, after in pairwise(groups)):
        raise CorruptFile(
            "two subtasks of a checkpoint have the same key groups",
            hint="restore an older checkpoint",
            uid=state.uid,
            groups=groups[:10],
        )


def _check_states(operator: OperatorState, declared: Declarations) -> None:
    pairs = ((operator.states, declared.keyed), (operator.operator_states, declared.operator))
    for schemas, declarations in pairs:
        stored = {schema.name: schema for schema in schemas}
        for declaration in declarations:
            check_state(stored.get(declaration.schema.name), declaration, operator.uid)
    for declaration in declared.keyed:
        check_state_ids(declaration.schema.name, [schema.name for schema in operator.states], operator.uid)
