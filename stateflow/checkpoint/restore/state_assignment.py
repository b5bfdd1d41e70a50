"""Assigns the state of a checkpoint to the operators of a job and to their subtasks. Pure functions.

`assign_state` matches operators, or reports why they are incompatible; `assign` redistributes the operator state of the
subtasks that wrote it among those that restore it.

The rules are those of Flink's ``RoundRobinOperatorStateRepartitioner``:

- Even-split list: the elements of all subtasks, in their order, are cut into ranges whose lengths differ by at most
  one. The longer ranges of a list begin after those of the list before it, so that many short lists do not all go to
  subtask 0.
- Union list: every subtask sees all elements, but each element is stored by one subtask only, so that it does not
  multiply.
- Broadcast state: any one subtask's copy is used by all.
- Raw keyed state follows its key groups.

At the parallelism of the checkpoint, every subtask restores what it wrote itself.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate, pairwise
from typing import TypeVar

from stateflow.checkpoint.log.documents import Manifest, OperatorState, SourcePosition
from stateflow.checkpoint.restore.source_positions import check_unambiguous
from stateflow.errors import ConfigError, CorruptFile, WrongJobRoot
from stateflow.state.handles import Base, OperatorContent, check_backends_known
from stateflow.state.kinds.keyed_state import check_state_ids
from stateflow.state.schema_compatibility import Declarations, check_state
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


T = TypeVar("T")


@dataclass(frozen=True)
class WrittenOperatorState:
    """Operator state as the subtasks of an operator wrote it at a barrier.

    Attributes:
        contents: content by subtask, without subtasks that had none.
        parallelism: number of subtasks.
    """

    contents: Mapping[int, OperatorContent] = field(default_factory=dict)
    parallelism: int = 0


@dataclass(frozen=True)
class AssignedState:
    """Operator state that one subtask restores.

    Attributes:
        own: the content that this subtask stores again.
        unions: elements of all subtasks, by name of the union list.
        broadcasts: entries of broadcast states, by name.
    """

    own: OperatorContent = field(default_factory=OperatorContent)
    unions: Mapping[str, list[bytes]] = field(default_factory=dict)
    broadcasts: Mapping[str, dict[bytes, bytes]] = field(default_factory=dict)


def assign(written: WrittenOperatorState, subtask: int, parallelism: int, max_parallelism: int) -> AssignedState:
    """Returns the operator state that one subtask restores.

    Args:
        written: the state at the checkpoint.
        subtask: index of the subtask.
        parallelism: number of subtasks that restore.
        max_parallelism: number of key groups.

    Raises:
        CorruptFile: raw keyed state has a key group that does not exist.
    """
    contents = [written.contents[at] for at in sorted(written.contents)]
    _check_key_groups(contents, max_parallelism)
    if parallelism == written.parallelism:
        own = written.contents.get(subtask, OperatorContent())
    else:
        own = _share(contents, subtask, parallelism, max_parallelism)
    unions = _concatenated([content.unions for content in contents])
    return AssignedState(own, unions, _any_copy(contents))


def even_split(items: Sequence[T], parts: int, first: int = 0) -> list[list[T]]:
    """Cuts `items`, in their order, into ranges whose lengths differ by at most one.

    Args:
        items: the elements.
        parts: number of ranges.
        first: index of the first of the longer ranges; the others follow it, and range 0 follows the last range.
    """
    length, rest = divmod(len(items), parts)
    ends = list(accumulate(length + ((part - first) % parts < rest) for part in range(parts)))
    return [list(items[start:end]) for start, end in zip([0, *ends], ends, strict=False)]


class _EvenSplit:
    """Splits lists in sequence; the longer ranges of each begin where those of the list before ended."""

    def __init__(self, subtask: int, parallelism: int) -> None:
        self._subtask = subtask
        self._parallelism = parallelism
        self._first = 0

    def share(self, items: Sequence[T]) -> list[T]:
        """Returns the subtask's share of the next list."""
        found = even_split(items, self._parallelism, self._first)[self._subtask]
        self._first = (self._first + len(items)) % self._parallelism
        return found

    def shares(self, lists: Mapping[str, list[bytes]]) -> dict[str, list[bytes]]:
        """Returns the subtask's share of each list, in the order of `lists`, without empty shares."""
        found = {name: self.share(elements) for name, elements in lists.items()}
        return {name: elements for name, elements in found.items() if elements}


def _check_key_groups(contents: Sequence[OperatorContent], max_parallelism: int) -> None:
    # No subtask owns such a group, so a rescaled operator would lose its bytes without an error.
    last = max((piece[0] for content in contents for piece in content.raw_keyed), default=0)
    if last >= max_parallelism:
        raise CorruptFile(
            "raw keyed state has a key group that does not exist",
            hint="restore an older checkpoint",
            key_group=last,
            max_parallelism=max_parallelism,
        )


def _share(
    contents: Sequence[OperatorContent], subtask: int, parallelism: int, max_parallelism: int
) -> OperatorContent:
    owned = range_of(subtask, parallelism, max_parallelism)
    keyed = [piece for content in contents for piece in content.raw_keyed if piece[0] in owned]
    split = _EvenSplit(subtask, parallelism)
    # Every subtask must split the lists in this order: the split of each depends on those before it.
    return OperatorContent(
        lists=split.shares(_concatenated([content.lists for content in contents])),
        unions=split.shares(_concatenated([content.unions for content in contents])),
        raw=split.share([piece for content in contents for piece in content.raw]),
        broadcasts=_any_copy(contents) if subtask == 0 else {},
        raw_keyed=sorted(keyed, key=lambda piece: piece[0]),
    )


def _concatenated(lists: Sequence[Mapping[str, list[bytes]]]) -> dict[str, list[bytes]]:
    names = sorted({name for named in lists for name in named})
    return {name: [element for named in lists for element in named.get(name, ())] for name in names}


def _any_copy(contents: Sequence[OperatorContent]) -> dict[str, dict[bytes, bytes]]:
    found: dict[str, dict[bytes, bytes]] = {}
    for content in contents:
        for name, entries in content.broadcasts.items():
            found.setdefault(name, dict(entries))
    return found
