"""Plans of restores that are made without a job file, from the graph that the newest run has stored.

Such a plan has the facts of the log, the manifests and the history. Facts that only the job's code has, such as its
tables and whether its sources still hold their input, are None: they are never guessed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

from stateflow.checkpoint.history import RUN_START, read_run_file
from stateflow.checkpoint.log.checkpoint_log import Head
from stateflow.checkpoint.log.documents import (
    SAVEPOINT_RECORD,
    ActionRecord,
    CheckpointRecord,
    PublishedOutput,
    SinkMode,
    disposed_savepoints,
    is_outside,
)
from stateflow.checkpoint.log.job_root import JobRoot
from stateflow.checkpoint.log.manifest_files import check_sizes
from stateflow.checkpoint.log.transitions import pending_of
from stateflow.checkpoint.restore.plan_document import (
    RESTORE_OPEN,
    Replay,
    RestorePlan,
    SavedCheckpoint,
    SinkChange,
    SinkKind,
    SourceAction,
    count_replay,
    is_restore_open,
    is_run_open,
)
from stateflow.checkpoint.restore.targets import TargetLimits
from stateflow.clock import parse_timestamp
from stateflow.errors import ConfigError, CorruptFile, MissingFile
from stateflow.helpers import DaemonExecutor
from stateflow.operations.status import read_newest_manifest, run_name
from stateflow.outputs import utc_text
from stateflow.runtime.planning.explain import ChainExplanation, JobExplanation, SinkExplanation, read_explanation
from stateflow.runtime.restore.graph_changes import DeclaredGraph, GraphRequest
from stateflow.runtime.restore.planner import (
    CheckedTarget,
    RestoreOptions,
    check_graph,
    check_not_shared,
    check_state_files,
    choose_target,
    describe_plan,
    location_of,
)

_MOST_POINTS = 200
"""Checkpoints, and savepoints, that a condition such as ``before:TIME`` is compared with at most."""
_MOST_FILES = 1000
"""Files whose sizes are checked at most."""
_READERS = 8


@dataclass(frozen=True)
class KnownHistory:
    """The records of a job's history that are known.

    Attributes:
        checkpoints: records of checkpoints.
        actions: records of actions.
    """

    checkpoints: Sequence[CheckpointRecord] = ()
    actions: Sequence[ActionRecord] = ()

    @property
    def newest_run(self) -> ActionRecord | None:
        """The record of the newest run's start; None if the history has none."""
        return max((a for a in self.actions if a.kind == RUN_START), key=lambda each: each.seq, default=None)

    def savepoints_of(self, checkpoints: Sequence[int], job_root: str) -> list[SavedCheckpoint]:
        """Returns the savepoints of these checkpoints that were not disposed of, those in the job root by their names.

        Args:
            checkpoints: ids of the checkpoints.
            job_root: URI of the job root.
        """
        disposed = disposed_savepoints(self.actions)
        made = [
            (a, not is_outside(a, job_root))
            for a in self.actions
            if a.kind == SAVEPOINT_RECORD and a.seq in checkpoints and a.text("savepoint_id") not in disposed
        ]
        made.sort(key=lambda each: (not each[1], each[0].ended_at if each[1] else ""))
        return [
            SavedCheckpoint(checkpoint_id=a.seq, savepoint=a.text("savepoint" if is_own else "path"))
            for a, is_own in made
        ]


@dataclass(frozen=True)
class PlanCheck:
    """A condition of a restore.

    Attributes:
        name: its name.
        ok: whether it is met; None if that is not known.
        text: the known facts, in a sentence.
    """

    name: str
    ok: bool | None
    text: str


@dataclass(frozen=True)
class RestorePreview:
    """A plan that is made without the job file.

    Attributes:
        plan: the plan; None if the graph of no run is stored.
        checks: the conditions of the restore.
        generation: generation of the run whose graph it is made with; 0 if none is stored.
        replay_ms: how long the checkpoints since the target took, with their batches: an estimate for reading their
            input again. None if records are missing, and if other input is read: a restore has undone the target, or
            the position of a source is not the target's.
    """

    plan: RestorePlan | None
    checks: tuple[PlanCheck, ...]
    generation: int
    replay_ms: float | None = None


@dataclass(frozen=True)
class PreviewRequest:
    """A plan that is asked for.

    Attributes:
        target: as `checkpoint.restore.targets.resolve_target` accepts it.
        options: the user's decisions.
        within: addresses below which the path of a savepoint is opened, apart from the job root; None for those that
            the environment allows.
    """

    target: str
    options: RestoreOptions = field(default_factory=RestoreOptions)
    within: tuple[str, ...] | None = None


def preview_restore(root: JobRoot, request: PreviewRequest, known: KnownHistory) -> RestorePreview:
    """Returns the plan of a restore, as far as it is known without the job file; changes nothing.

    Reads the newest log entry, the manifests of the target and of the newest checkpoint, the stored graph, and the
    sizes of at most a thousand files.

    Args:
        root: the job root.
        request: the target and the options.
        known: the history of the job.

    Raises:
        ConfigError: the target does not exist, belongs to another job, or cannot be claimed; its state or sources do
            not fit the graph; an option is wrong.
        MissingFile, CorruptFile: the manifest of the target, or its operator state, is damaged.
    """
    return root.read_kept(lambda head: _preview(root, head, request, known))


def _preview(root: JobRoot, head: Head, request: PreviewRequest, known: KnownHistory) -> RestorePreview:
    options = request.options
    target = choose_target(root, head, request.target, options, TargetLimits(_MOST_POINTS, request.within))
    run = known.newest_run
    graph = read_run_graph(root, run) if run else None
    general = (_check_run(head), _check_unfinished(head), _check_newest(root, head))
    if graph is None or run is None:
        unknown = PlanCheck(
            "graph", None, "no run has stored its graph: only a plan that is made with the job file can compare it"
        )
        return RestorePreview(None, (*general, unknown), 0)
    declared = declared_graph(graph, root.job.max_parallelism)
    # The plan has the time in milliseconds.
    now = parse_timestamp(utc_text(root.clock.now()))
    try:
        checked = check_graph(root, declared, head, target, GraphRequest(options.changes, options.drop, now))
        facts = _RecordedFacts(checked, options, known, _sinks_of(graph))
        plan = describe_plan(checked, request.target, options, facts)
    except ConfigError as e:
        e.add_facts(graph_of_generation=run.seq)
        raise
    checks = (*general, _check_graph(head, run, known), _check_files(checked))
    return RestorePreview(plan, checks, run.seq, _replay_ms(plan, facts.replay))


def _replay_ms(plan: RestorePlan, replay: Replay | None) -> float | None:
    if replay is None or not replay.is_again or plan.foreign:
        return None
    # Other input is read again than was read since the target.
    moved = any(source.action is not SourceAction.KEPT for source in plan.sources)
    return None if moved else round(replay.duration_ms, 1)


def read_run_graph(root: JobRoot, run: ActionRecord) -> JobExplanation | None:
    """Returns the graph that a run has stored; None if it is not stored, or another version has written it."""
    data = read_run_file(root.storage, run.text("graph_sha256"))
    return read_explanation(data) if data is not None else None


def declared_graph(graph: JobExplanation, max_parallelism: int) -> DeclaredGraph:
    """Returns a stored graph as restores compare it; states and sources of it are known by their names only.

    Args:
        graph: the stored graph.
        max_parallelism: number of key groups of the job root.
    """
    chains = _chains_of(graph)
    keys = {c.uid: next((i.key for i in c.inputs if not i.broadcast and i.key), ()) for c in chains if c.function}
    return DeclaredGraph(
        graph.parallelism,
        max_parallelism,
        # A column's name has no blank; its type may.
        {uid: [column.partition(" ")[2] for column in key] for uid, key in keys.items()},
        tuple(sorted((source.uid, source.reads) for source in graph.sources)),
        sinks=frozenset(_sinks_of(graph)),
    )


def _sinks_of(graph: JobExplanation) -> dict[str, SinkExplanation]:
    return {sink.uid: sink for chain in _chains_of(graph) for sink in chain.sinks}


def _chains_of(graph: JobExplanation) -> list[ChainExplanation]:
    return [chain for level in graph.levels for chain in level.chains]


@dataclass(frozen=True)
class _RecordedFacts:
    """Facts of a plan from the log and the history."""

    checked: CheckedTarget
    options: RestoreOptions
    known: KnownHistory
    sinks: Mapping[str, SinkExplanation]

    def plan_sinks(self, mode: SinkMode) -> list[SinkChange]:
        published = self.checked.head.entry.published
        changes = [
            self._change_of(uid, SinkMode.KEEP if uid in self.options.keep_tables else mode, published[uid])
            for uid in sorted(self.checked.declared.sinks & published.keys())
        ]
        check_not_shared(changes)
        return changes

    def _change_of(self, uid: str, mode: SinkMode, known: PublishedOutput) -> SinkChange:
        # Nothing is removed from a kept table, and nothing that was printed. Of any other sink, this is only known
        # if it has nothing after the target; only the job file shows whether a function refuses the restore.
        sink, kind = self.sinks[uid], SinkKind.of(self.sinks[uid].sink)
        stays = mode is SinkMode.KEEP or kind is SinkKind.PRINTED
        rows = 0 if stays or self._has_nothing_to_rewind(uid, known) else None
        return SinkChange(
            uid=uid,
            kind=kind,
            mode=mode,
            table_id=known.table_id,
            table=sink.location or None,
            current_version=known.known_version,
            read=False,
            rows_removed=rows,
            rows_returned=rows,
        )

    def _has_nothing_to_rewind(self, uid: str, known: PublishedOutput) -> bool:
        """Returns whether the log shows that a table has no version after the target.

        A restore counts as output of its own entry, so one after the target leaves its tables with unknown versions.
        """
        entry, upto = self.checked.head.entry, self.checked.target.checkpoint_id
        is_pending = any(p.sink == uid and p.checkpoint_id > upto for p in pending_of(self.checked.head))
        return known.checkpoint_id <= upto and not is_pending and entry.rewind is None

    def count_replay(self) -> Replay | None:
        return self.replay

    @cached_property
    def replay(self) -> Replay | None:
        """What the job has done since the target; None if records are missing."""
        head, root = self.checked.head, self.checked.root
        retained = {ref.id for ref in root.checkpoints.restorable(head)}
        records: list[CheckpointRecord | ActionRecord] = [*self.known.checkpoints, *self.known.actions]
        return count_replay(head, retained, self.checked.target.checkpoint_id, records)

    def find_saved(self, dropped: list[int]) -> list[SavedCheckpoint]:
        return self.known.savepoints_of(dropped, self.checked.root.storage.uri)


# -- checks -----------------------------------------------------------------------------------------------------------


def _check_run(head: Head) -> PlanCheck:
    if is_run_open(head):
        text = f"run {head.entry.runs} has not ended cleanly: it is running, was killed, or failed"
        return PlanCheck("no-run", False, text)
    return PlanCheck("no-run", True, "no run of the job is active")


def _check_unfinished(head: Head) -> PlanCheck:
    if head.entry.rewind is not None:
        return PlanCheck("no-restore", False, "an earlier restore is not completed; this one would complete it first")
    if is_restore_open(head):
        return PlanCheck("no-restore", False, f"{RESTORE_OPEN}; this one would end it")
    return PlanCheck("no-restore", True, "no other restore is in progress")


def _check_newest(root: JobRoot, head: Head) -> PlanCheck:
    if read_newest_manifest(root, head) is not None:
        return PlanCheck("newest-checkpoint", True, f"checkpoint {head.checkpoint_id} can be read")
    if head.entry.manifest is None:
        return PlanCheck("newest-checkpoint", None, "the job has no checkpoint yet")
    return PlanCheck(
        "newest-checkpoint", False, f"checkpoint {head.checkpoint_id} is damaged, so the sizes of its state are unknown"
    )


def _check_graph(head: Head, run: ActionRecord, known: KnownHistory) -> PlanCheck:
    """Returns whether the stored graph is the newest run's."""
    restores = {step.seq for step in head.entry.ancestry.restores}
    runs = {record.generation: record.run for record in known.checkpoints}
    if head.entry.generation not in restores and not is_restore_open(head):
        runs[head.entry.generation] = head.entry.runs
    newest, own = max(runs, default=0), run_name(run.number("run"), run.seq)
    if newest > run.seq:
        return PlanCheck("graph", False, f"the graph is of {own}; run {runs[newest]} has stored none")
    return PlanCheck("graph", True, f"the graph is of {own}, the newest run; the job file may have changed since")


def _check_files(checked: CheckedTarget) -> PlanCheck:
    storage, files = checked.files()
    number = len(files) + sum(len(operator.parts) for operator in checked.graph.read.operators)
    if number > _MOST_FILES:
        text = f"the {number:,} files of the target are checked by the plan that is made with the job file"
        return PlanCheck("target-files", None, text)
    try:
        check_state_files(checked.graph.read, location_of(checked.root, checked.target))
        with DaemonExecutor(_READERS) as pool:
            for _ in pool.map(lambda file: check_sizes(storage, [file]), files):
                pass
    except (MissingFile, CorruptFile) as e:
        return PlanCheck("target-files", False, e.sentence)
    return PlanCheck("target-files", True, f"all {number:,} files of the target are stored")
