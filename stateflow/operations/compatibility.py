"""Compatibility of a job file with the state in a job root or savepoint, checked before a deployment."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from pathlib import Path

from stateflow.checkpoint.log.documents import Manifest
from stateflow.checkpoint.log.job_root import JobRoot
from stateflow.checkpoint.savepoints.catalog import StoredSavepoint, open_savepoint, savepoint_uri
from stateflow.clock import SystemClock
from stateflow.config.sources import SettingsLayer
from stateflow.errors import ConfigError, IncompatibleState, StateflowError
from stateflow.launch import prepare
from stateflow.runtime.planning.physical_plan import plan_job
from stateflow.runtime.planning.state_discovery import declared_states, source_columns
from stateflow.runtime.preflight import Needs, StartContext
from stateflow.runtime.restore.new_job_root import InitialSavepoint, NewJobRoot, check_savepoint_fits
from stateflow.state.handles import StateSchema
from stateflow.state.kinds.operator_state import BROADCAST
from stateflow.state.kinds.state_registry import check_state_ids
from stateflow.state.schema.compare import Conflict
from stateflow.state.schema.compatibility import Declaration, Declarations, Fit, compare_schemas
from stateflow.storage import Storage, open_location
from stateflow.storage.paths import FORMAT, SAVEPOINT


class Change(StrEnum):
    """Change of a state or column that exists on one side only, or differs.

    A broadcast state may be declared only when the first row arrives; until then its change is *later*.
    """

    NEW = "new"
    DROPPED = "dropped"
    CHANGED = "changed"
    LATER = "known with the first row"


@dataclass(frozen=True)
class StateCheck:
    """Compatibility of one declared or stored state.

    Attributes:
        operator: uid of the operator.
        kind: ``state`` for keyed state, or ``operator state``.
        fit: a value of `Fit` or `Change`. A dropped state stays stored, and is not read.
        changes: what a migration does.
        conflicts: why the state is incompatible, and how to resolve it.
    """

    operator: str
    kind: str
    state: str
    fit: str
    changes: tuple[str, ...] = ()
    conflicts: tuple[Conflict, ...] = ()


@dataclass(frozen=True)
class ColumnCheck:
    """Change of a source's column.

    Attributes:
        before, now: its type in the stored and in the declared schema; empty where the column does not exist.
    """

    source: str
    column: str
    change: str
    before: str
    now: str


@dataclass(frozen=True)
class Problem:
    """An error, not about a state, that a run would fail with at its start."""

    code: str
    message: str
    hint: str


@dataclass(frozen=True)
class CheckReport:
    """Compatibility of a job.

    Attributes:
        against: URI of the job root or savepoint.
        at: label of the checkpoint or savepoint that the job was compared with.
        fit: overall result.
        problems: other errors that a run would fail with at its start.
        unchecked: what was not checked, such as what needs Spark if it was not to be started.
        warnings: likely mistakes that do not prevent a run.
    """

    job: str
    against: str
    at: str
    fit: str
    states: list[StateCheck] = field(default_factory=list)
    columns: list[ColumnCheck] = field(default_factory=list)
    problems: list[Problem] = field(default_factory=list)
    unchecked: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()


def check_job(
    job_file: Path, against: str, layers: tuple[SettingsLayer, ...] = (), *, with_spark: bool = True
) -> CheckReport:
    """Compares a job file with the newest checkpoint of a job root, or with a savepoint, and runs all start checks.

    Runs `build`, and each function's `open` on a copy; changes nothing.

    Args:
        against: URI of a job root, or of a savepoint's folder or its ``_savepoint``.
        layers: settings in addition to those of the job file.
        with_spark: whether to start Spark for the checks that need it, if the job runs on Spark.

    Raises:
        ConfigError: `against` is neither a job root nor a savepoint, or its location is not allowed.
        UserCodeError: an `open` raises.
        MissingFile, CorruptFile: the checkpoint or savepoint is damaged.
    """
    prepared = prepare(job_file, layers=layers)
    settings, graph = prepared.start.settings, prepared.start.graph
    stored = _stored(open_location(savepoint_uri(against)))
    plan = plan_job(graph, settings.parallelism)
    declared = declared_states(plan, settings.max_parallelism or stored.max_parallelism)
    states = list(_check_states(stored.manifest, declared))
    columns = list(_check_columns(stored.manifest, source_columns(plan)))
    problems = []
    if stored.savepoint is not None:
        refused = _savepoint_refusals(stored.savepoint, prepared.start, declared)
        problems += [problem_of(e) for e in refused if not _is_shown(e, states)]
    needs = [Needs.NOTHING]
    if stored.root is not None:
        prepared = replace(prepared, start=replace(prepared.start, storage=stored.root.storage))
        needs = [Needs.NOTHING, Needs.ROOT, Needs.FILES]
    found = prepared.examine(needs, with_spark=with_spark)
    problems += [problem_of(e) for e in found.refusals if not _is_shown(e, states)]
    return CheckReport(
        settings.name,
        against,
        stored.at,
        _overall(states, columns, problems),
        states,
        columns,
        list(dict.fromkeys(problems)),
        found.unchecked,
        found.warnings,
    )


def problem_of(error: StateflowError) -> Problem:
    """Returns an error in the form of a report."""
    return Problem(error.code, error.sentence, error.hint)


def _is_shown(error: StateflowError, states: Sequence[StateCheck]) -> bool:
    """Returns whether the report's states show the error already, each with its conflicts."""
    return isinstance(error, IncompatibleState) and any(s.fit == Fit.INCOMPATIBLE for s in states)


@dataclass(frozen=True)
class _Stored:
    """The stored state to compare with: from the job root `root`, or from `savepoint`."""

    at: str
    manifest: Manifest | None
    max_parallelism: int
    root: JobRoot | None = None
    savepoint: StoredSavepoint | None = None


def _stored(storage: Storage) -> _Stored:
    if storage.size(FORMAT) is not None:
        root = JobRoot.open(storage, SystemClock())
        head = root.log.read_head()
        manifest = root.checkpoints.manifest_at(head) if head else None
        at = head.checkpoint_label if head and manifest else "a job root without a checkpoint"
        return _Stored(at, manifest, root.job.max_parallelism, root)
    if storage.size(SAVEPOINT) is not None:
        stored = open_savepoint(storage)
        document = stored.document
        return _Stored(stored.label, document.manifest, document.max_parallelism, savepoint=stored)
    raise ConfigError(
        "neither a job root nor a savepoint exists at the URI",
        hint="pass the URI of a job root, or of a savepoint's folder",
        against=storage.uri,
    )


def _check_states(manifest: Manifest | None, declared: Mapping[str, Declarations]) -> Iterator[StateCheck]:
    operators = {o.uid: o for o in manifest.operators} if manifest else {}
    for uid in sorted(operators.keys() | declared.keys()):
        stored, wanted = operators.get(uid), declared.get(uid, Declarations())
        for kind, schemas, declarations in (
            ("state", stored.states if stored else [], wanted.keyed),
            ("operator state", stored.operator_states if stored else [], wanted.operator),
        ):
            pairs = _paired(schemas, declarations)
            yield from (_check_state((uid, kind, name), *pairs[name]) for name in sorted(pairs))


def _paired(
    schemas: Sequence[StateSchema], declarations: Sequence[Declaration]
) -> dict[str, tuple[StateSchema | None, Declaration | None]]:
    stored, wanted = {s.name: s for s in schemas}, {d.schema.name: d for d in declarations}
    return {name: (stored.get(name), wanted.get(name)) for name in stored.keys() | wanted.keys()}


def _check_state(where: tuple[str, str, str], stored: StateSchema | None, declared: Declaration | None) -> StateCheck:
    if stored is None:
        return StateCheck(*where, Change.NEW)
    if declared is None:
        return StateCheck(*where, Change.LATER if stored.kind == BROADCAST else Change.DROPPED)
    verdict = compare_schemas(stored, declared)
    return StateCheck(*where, verdict.fit, verdict.changes, verdict.conflicts)


def _check_columns(manifest: Manifest | None, declared: Mapping[str, Mapping[str, str]]) -> Iterator[ColumnCheck]:
    for source, before in sorted(manifest.columns.items() if manifest else ()):
        now = declared.get(source, {})
        for name in sorted(before.keys() | now.keys()):
            if before.get(name) != now.get(name):
                change = Change.NEW if name not in before else Change.DROPPED if name not in now else Change.CHANGED
                yield ColumnCheck(source, name, change, before.get(name, ""), now.get(name, ""))


def _savepoint_refusals(
    stored: StoredSavepoint, start: StartContext, declared: Mapping[str, Declarations]
) -> Iterator[StateflowError]:
    """Yields the errors of a run that creates its job root from the savepoint; for a job root, start checks do that."""
    new = NewJobRoot(stored.storage, start.clock, start.graph, start.settings, start.on_spark)
    for check in (
        lambda: check_savepoint_fits(new, stored, InitialSavepoint(stored.uri)),
        lambda: _check_ids(stored.document.manifest, declared),
    ):
        try:
            check()
        except ConfigError as e:
            yield e


def _check_ids(manifest: Manifest, declared: Mapping[str, Declarations]) -> None:
    for operator in manifest.operators:
        names = [schema.name for schema in operator.states]
        for declaration in declared.get(operator.uid, Declarations()).keyed:
            check_state_ids(declaration.schema.name, names, operator.uid)


def _overall(states: list[StateCheck], columns: list[ColumnCheck], problems: list[Problem]) -> Fit:
    if problems or any(state.fit == Fit.INCOMPATIBLE for state in states):
        return Fit.INCOMPATIBLE
    changed = columns or any(state.fit in (Fit.MIGRATION, Change.DROPPED) for state in states)
    return Fit.MIGRATION if changed else Fit.AS_IS
