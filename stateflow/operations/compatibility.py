"""Compatibility of a job file with the state in a job root or savepoint, checked before a deployment."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from pathlib import Path

from stateflow.checkpoint.log.documents import Manifest
from stateflow.checkpoint.log.job_root import JobRoot
from stateflow.checkpoint.savepoints.catalog import StoredSavepoint, open_savepoint, savepoint_uri
from stateflow.clock import SystemClock
from stateflow.config.sources import SettingsLayer
from stateflow.errors import ConfigError, DataError, IncompatibleState, SinkDiverged, SinkRefused, StateflowError
from stateflow.launch import prepare
from stateflow.outputs import OptionalText
from stateflow.runtime.job_loader import open_job, source_descriptions
from stateflow.runtime.planning.state_discovery import discover_state_schemas, source_columns
from stateflow.runtime.preflight import Needs, StartContext
from stateflow.runtime.restore.graph_changes import DeclaredGraph, GraphRequest, change_graph
from stateflow.runtime.restore.new_job_root import InitialSavepoint, NewJobRoot, check_savepoint_fits
from stateflow.runtime.restore.planner import RestoreOptions, make_restore_plan
from stateflow.runtime.restore.state_import import StateLocation
from stateflow.state.handles import StateSchema
from stateflow.state.kinds.keyed_state import check_state_ids
from stateflow.state.kinds.operator_state import BROADCAST
from stateflow.state.schema_compatibility import Conflict, Declaration, Declarations, Fit, compare_schemas
from stateflow.storage import Storage, open_location, open_storage
from stateflow.storage.paths import FORMAT, SAVEPOINT

START = RestoreOptions()
"""For the check of a start, which is given no options of a restore."""
_Place = tuple[str, str, str]
"""Uid of an operator, and kind and name of a state."""


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
        old: its stored name, ``OPERATOR.STATE``, if it is mapped from another one.
    """

    operator: str
    kind: str
    state: str
    fit: str
    changes: tuple[str, ...] = ()
    conflicts: tuple[Conflict, ...] = ()
    old: OptionalText = ""


@dataclass(frozen=True)
class ColumnCheck:
    """Change of a source's column.

    Attributes:
        before, now: its type in the stored and in the declared schema; empty where the column does not exist.
    """

    source: str
    column: str
    change: str
    before: OptionalText
    now: OptionalText


@dataclass(frozen=True)
class Problem:
    """An error, not about a state, that a run would fail with at its start."""

    code: str
    message: str
    hint: OptionalText


@dataclass(frozen=True)
class CheckReport:
    """Compatibility of a job.

    Attributes:
        against: URI of the job root or savepoint.
        label: label of the checkpoint or savepoint that the job was compared with.
        fit: overall result.
        problems: other errors that a run would fail with at its start.
        unchecked: what was not checked, such as what needs Spark if it was not to be started.
        warnings: likely mistakes that do not prevent a run.
        code_hash: hash of the job's code.
        code_difference: a sentence if other code made the checkpoint; empty if none is known.
    """

    job: str
    against: str
    label: str
    fit: str
    states: list[StateCheck] = field(default_factory=list)
    columns: list[ColumnCheck] = field(default_factory=list)
    problems: list[Problem] = field(default_factory=list)
    unchecked: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()
    code_hash: OptionalText = ""
    code_difference: OptionalText = ""


def check_job(
    job_file: Path,
    against: str,
    layers: tuple[SettingsLayer, ...] = (),
    options: RestoreOptions = START,
    *,
    with_spark: bool = True,
) -> CheckReport:
    """Compares a job file with the newest checkpoint of a job root, or with a savepoint, and runs all start checks.

    With options, it checks what a restore to the newest checkpoint, or a new job root, would be refused for with them.
    Runs `build`, and each function's `open` on a copy; changes nothing.

    Args:
        against: URI of a job root, or of a savepoint's folder or its ``_savepoint``.
        layers: settings in addition to those of the job file.
        options: `changes`, `drop` and `from_other_job` of a restore; by default, a start is checked.
        with_spark: whether to start Spark for the checks that need it, if the job runs on Spark.

    Raises:
        ConfigError: `against` is neither a job root nor a savepoint, or its location is not allowed.
        UserCodeError: an `open` raises.
        MissingFile, CorruptFile: the checkpoint or savepoint is damaged.
    """
    prepared = prepare(job_file, layers=layers)
    stored = _stored(open_location(savepoint_uri(against)))
    if stored.root is not None:
        prepared = replace(prepared, start=replace(prepared.start, storage=stored.root.storage))
    start = prepared.start
    declared = discover_state_schemas(start.plan, start.settings.max_parallelism or stored.max_parallelism)
    restored = _restored(stored, start, declared, options)
    states = list(_check_states(restored))
    columns = list(_check_columns(restored.manifest, source_columns(start.plan)))
    found = prepared.examine(stored.needs(options), with_spark=with_spark)
    refused = [*_refusals(stored, start, restored, options), *found.refusals]
    problems = list(dict.fromkeys(problem_of(e) for e in refused if not _is_shown(e, states)))
    fit = _overall(states, columns, problems)
    return CheckReport(
        job=start.settings.name,
        against=against,
        label=stored.at,
        fit=fit,
        states=states,
        columns=columns,
        problems=problems,
        unchecked=found.unchecked,
        warnings=found.warnings,
        code_hash=start.graph.code,
        code_difference=stored.manifest.code_difference(start.graph.code) if stored.manifest else "",
    )


def code_difference(job_root: str, code: str) -> str:
    """Returns a sentence if other code made the newest checkpoint of a job root than the code with this hash.

    Empty if that is not known: a job root that does not exist, or is damaged, is refused by the checks of a start.
    """
    try:
        manifest = _stored(open_storage(job_root)).manifest
    except (ConfigError, DataError):
        return ""
    return manifest.code_difference(code) if manifest else ""


def problem_of(error: StateflowError) -> Problem:
    """Returns an error in the form of a report."""
    return Problem(error.code, error.sentence, error.hint)


def _is_shown(error: StateflowError, states: Sequence[StateCheck]) -> bool:
    """Returns whether the report's states show the error already, each with its conflicts."""
    shown = {(state.operator, state.state) for state in states if state.fit == Fit.INCOMPATIBLE}
    return isinstance(error, IncompatibleState) and (error.facts.get("operator"), error.facts.get("name")) in shown


@dataclass(frozen=True)
class _Stored:
    """The stored state to compare with: from the job root `root`, or from `savepoint`."""

    at: str
    manifest: Manifest | None
    max_parallelism: int
    root: JobRoot | None = None
    savepoint: StoredSavepoint | None = None

    @property
    def location(self) -> StateLocation:
        """Where its files are."""
        if self.savepoint is not None:
            return StateLocation.of(self.savepoint)
        assert self.root is not None
        return StateLocation(self.root.storage)

    def needs(self, options: RestoreOptions) -> list[Needs]:
        """Returns what the checks of a start may access; a restore makes its own checks of the checkpoint."""
        is_start = self.root is not None and options == START
        return [Needs.NOTHING, Needs.ROOT, Needs.FILES] if is_start else [Needs.NOTHING]


@dataclass(frozen=True)
class _Restored:
    """The stored state under the names that it has in the job.

    Attributes:
        declared: the states that the job declares, by operator.
        olds: the stored name of each state that has another one, by operator, kind and name.
        dropped: states that are not restored.
    """

    manifest: Manifest | None
    declared: Mapping[str, Declarations]
    olds: Mapping[_Place, str] = field(default_factory=dict)
    dropped: tuple[_Place, ...] = ()


def _stored(storage: Storage) -> _Stored:
    if storage.size(FORMAT) is not None:
        root = JobRoot.open(storage, SystemClock())
        at, manifest = "a job root without a checkpoint", None
        if root.log.read_head() is not None:
            at, manifest = root.read_kept(lambda head: (head.checkpoint_label, root.checkpoints.manifest_at(head)))
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


def _restored(
    stored: _Stored, start: StartContext, declared: Mapping[str, Declarations], options: RestoreOptions
) -> _Restored:
    """Returns the state as the options name it; as it is stored if they are refused, which is a problem of its own."""
    if stored.manifest is None or options == START:
        return _Restored(stored.manifest, declared)
    plan = start.plan
    graph = DeclaredGraph.of(
        plan,
        source_descriptions(plan),
        start.settings.max_parallelism or stored.max_parallelism,
        states=declared,
        sinks=(node.uid for node in start.graph.sinks),
    )
    request = GraphRequest(options.changes, options.drop, start.clock.now())
    try:
        changed = change_graph(stored.manifest, stored.location, graph, request)
    except ConfigError:
        return _Restored(stored.manifest, declared)
    moves, dropped = changed.assignment.moves, changed.assignment.dropped
    olds = {(m.new, str(m.kind), m.new_state): f"{m.old}.{m.old_state}" for m in moves if m.is_changed}
    return _Restored(
        changed.manifest, declared, olds, tuple((each.uid, str(each.kind), each.state) for each in dropped)
    )


def _check_states(restored: _Restored) -> Iterator[StateCheck]:
    for found in _compared(restored.manifest, restored.declared):
        yield replace(found, old=restored.olds.get((found.operator, found.kind, found.state), ""))
    for place in restored.dropped:
        yield StateCheck(*place, Change.DROPPED)


def _compared(manifest: Manifest | None, declared: Mapping[str, Declarations]) -> Iterator[StateCheck]:
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


def _check_state(where: _Place, stored: StateSchema | None, declared: Declaration | None) -> StateCheck:
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


def _refusals(
    stored: _Stored, start: StartContext, restored: _Restored, options: RestoreOptions
) -> Iterator[StateflowError]:
    """Yields the errors of a new job root or of a restore; those of a start in a job root are among the start checks.

    Args:
        options: what the restore is given.
    """
    checks: list[Callable[[], object]] = []
    if stored.savepoint is not None:
        savepoint = stored.savepoint
        new = NewJobRoot(savepoint.storage, start.clock, start.graph, start.settings, start.on_spark)
        initial = InitialSavepoint(
            savepoint.uri, from_other_job=options.from_other_job, drop=options.drop, changes=options.changes
        )
        checks = [lambda: check_savepoint_fits(new, savepoint, initial), lambda: _check_ids(restored)]
    elif stored.root is not None and options != START:
        storage = stored.root.storage
        checks = [
            lambda: make_restore_plan(open_job(start.graph, start.settings, storage, start.clock), "latest", options)
        ]
    for check in checks:
        try:
            check()
        except (ConfigError, SinkDiverged, SinkRefused) as e:
            yield e


def _check_ids(restored: _Restored) -> None:
    for operator in restored.manifest.operators if restored.manifest else ():
        names = [schema.name for schema in operator.states]
        for declaration in restored.declared.get(operator.uid, Declarations()).keyed:
            check_state_ids(declaration.schema.name, names, operator.uid)


def _overall(states: list[StateCheck], columns: list[ColumnCheck], problems: list[Problem]) -> Fit:
    if problems or any(state.fit == Fit.INCOMPATIBLE for state in states):
        return Fit.INCOMPATIBLE
    changed = columns or any(state.fit in (Fit.MIGRATION, Change.DROPPED) for state in states)
    return Fit.MIGRATION if changed else Fit.AS_IS
