"""Whether what a job root or a savepoint holds fits a job file: known before a deployment."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from pathlib import Path
from typing import Any

from stateflow.checkpoint.documents import Manifest
from stateflow.checkpoint.jobroot import JobRoot
from stateflow.checkpoint.stored_savepoints import StoredSavepoint, open_savepoint, savepoint_uri
from stateflow.clock import SystemClock
from stateflow.environment import prepare
from stateflow.errors import ConfigError, IncompatibleState, StateflowError
from stateflow.runtime.declared import declared_states, source_columns
from stateflow.runtime.new_root import Beginning, RootToBegin, check_fits
from stateflow.runtime.plan import plan_job
from stateflow.runtime.preflight import Needs, Start
from stateflow.state.evolution import Declaration, Declarations, Fit, judge
from stateflow.state.handles import StateSchema
from stateflow.state.keyed import check_ids
from stateflow.state.operator_state import BROADCAST
from stateflow.state.type_comparison import Conflict
from stateflow.storage import Storage, open_storage
from stateflow.storage.paths import FORMAT, SAVEPOINT


class Change(StrEnum):
    """What became of a state or column that is only on one side, or differs. A broadcast state may be asked for with a
    row only, so its declaration is known no earlier."""

    NEW = "new"
    DROPPED = "dropped"
    CHANGED = "changed"
    LATER = "known with the first row"


@dataclass(frozen=True)
class StateCheck:
    """One state of the job or of what is stored.

    Attributes:
        kind: ``state`` of keys, or ``operator state``.
        fit: as `Fit` and `Change` have it. What is dropped stays stored, and is not read.
        changes: what a migration does.
        conflicts: why it is incompatible, and what to do.
    """

    operator: str
    kind: str
    state: str
    fit: str
    changes: tuple[str, ...] = ()
    conflicts: tuple[Conflict, ...] = ()


@dataclass(frozen=True)
class ColumnCheck:
    """A column of a source that is not declared as it was."""

    source: str
    column: str
    change: str
    before: str
    now: str


@dataclass(frozen=True)
class Problem:
    """Something besides states that a run would be refused for."""

    code: str
    message: str
    hint: str


@dataclass(frozen=True)
class CheckReport:
    """How a job fits.

    Attributes:
        at: the point that it was compared with, in words.
        fit: the verdict over all.
        problems: everything else that a run would be refused for.
        unchecked: what was not looked at, such as what only Spark knows, when it was not to be started.
        warnings: what does not refuse a run, and is likely to be a mistake.
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
    job_file: Path, against: str, layers: tuple[dict[str, Any], ...] = (), *, with_spark: bool = True
) -> CheckReport:
    """Compares what a job file declares with the newest checkpoint of a job root, or with a savepoint, and goes through
    everything else that a start would refuse. Runs `build`, and each function's `open` on a copy; changes nothing.

    Args:
        against: URI of a job root, or of a savepoint's folder or its ``_savepoint``.
        with_spark: whether Spark is started for what only Spark knows, when the job runs on it.

    Raises:
        ConfigError: there is neither; UserCodeError: an `open` raises; MissingFile, CorruptFile: what is stored is
            damaged.
    """
    prepared = prepare(job_file, layers=layers)
    settings, graph = prepared.start.settings, prepared.start.graph
    stored = _stored(open_storage(savepoint_uri(against)))
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
        settings.name, against, stored.at, _overall(states, columns, problems), states, columns,
        list(dict.fromkeys(problems)), found.unchecked, found.warnings,
    )  # fmt: skip


def problem_of(error: StateflowError) -> Problem:
    """A refusal as a report has it."""
    return Problem(error.code, error.sentence, error.hint)


def _is_shown(error: StateflowError, states: Sequence[StateCheck]) -> bool:
    """Whether the report's states say it already, each with its way out."""
    return isinstance(error, IncompatibleState) and any(s.fit == Fit.INCOMPATIBLE for s in states)


@dataclass(frozen=True)
class _Stored:
    """What is compared with; `root` when it is a job's own, else `savepoint`."""

    at: str
    manifest: Manifest | None
    max_parallelism: int
    root: JobRoot | None = None
    savepoint: StoredSavepoint | None = None


def _stored(storage: Storage) -> _Stored:
    if storage.size(FORMAT) is not None:
        root = JobRoot.open(storage, SystemClock())
        head = root.log.read_head()
        manifest = root.manifest(head) if head else None
        at = head.stand if head and manifest else "no checkpoint yet"
        return _Stored(at, manifest, root.job.max_parallelism, root)
    if storage.size(SAVEPOINT) is not None:
        stored = open_savepoint(storage)
        document = stored.document
        return _Stored(stored.label, document.manifest, document.max_parallelism, savepoint=stored)
    raise ConfigError("there is neither a job root nor a savepoint", hint="give the URI of a job root, or of a "
                      "savepoint's folder", against=storage.uri)  # fmt: skip


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


def _check_state(
    where: tuple[str, str, str], stored: StateSchema | None, declared: Declaration | None
) -> StateCheck:
    if stored is None:
        return StateCheck(*where, Change.NEW)
    if declared is None:
        return StateCheck(*where, Change.LATER if stored.kind == BROADCAST else Change.DROPPED)
    verdict = judge(stored, declared)
    return StateCheck(*where, verdict.fit, verdict.changes, verdict.conflicts)


def _check_columns(
    manifest: Manifest | None, declared: Mapping[str, Mapping[str, str]]
) -> Iterator[ColumnCheck]:
    for source, before in sorted(manifest.columns.items() if manifest else ()):
        now = declared.get(source, {})
        for name in sorted(before.keys() | now.keys()):
            if before.get(name) != now.get(name):
                change = (
                    Change.NEW
                    if name not in before
                    else Change.DROPPED
                    if name not in now
                    else Change.CHANGED
                )
                yield ColumnCheck(source, name, change, before.get(name, ""), now.get(name, ""))


def _savepoint_refusals(
    stored: StoredSavepoint, start: Start, declared: Mapping[str, Declarations]
) -> Iterator[StateflowError]:
    """Yields what a run that begins with a savepoint refuses; a job root's head goes through the checks of a start."""
    new = RootToBegin(stored.storage, start.clock, start.graph, start.settings, start.on_spark)
    for check in (
        lambda: check_fits(new, stored, Beginning(stored.uri)),
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
            check_ids(declaration.schema.name, names, operator.uid)


def _overall(states: list[StateCheck], columns: list[ColumnCheck], problems: list[Problem]) -> Fit:
    if problems or any(state.fit == Fit.INCOMPATIBLE for state in states):
        return Fit.INCOMPATIBLE
    changed = columns or any(state.fit in (Fit.MIGRATION, Change.DROPPED) for state in states)
    return Fit.MIGRATION if changed else Fit.AS_IS
