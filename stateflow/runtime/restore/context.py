"""The checked target of a restore, which the planner and the executor share."""

from __future__ import annotations

from dataclasses import dataclass, replace

import msgspec

from stateflow.api.sink import SinkRewind, SinkTable
from stateflow.checkpoint.log.checkpoint_log import Head
from stateflow.checkpoint.log.documents import Manifest, Rewind, SinkMode
from stateflow.checkpoint.log.manifest_files import check_hashes, check_sizes, files_of
from stateflow.checkpoint.restore.state_assignment import CurrentJob, assign_state
from stateflow.checkpoint.restore.targets import Target
from stateflow.runtime.job import Job
from stateflow.runtime.restore.graph_changes import ChangedGraph, DeclaredGraph, GraphRequest, change_graph
from stateflow.runtime.restore.state_import import StateLocation
from stateflow.state.backends.factory import check_snapshot
from stateflow.state.handles import FileHandle
from stateflow.state.operator_content import check_parts
from stateflow.storage import Storage


@dataclass(frozen=True)
class RestoreContext:
    """A restore whose target fits the job; made by `check_target`.

    Attributes:
        head: the log entry that the restore starts from.
        graph: the target as the job continues from it.
    """

    job: Job
    head: Head
    target: Target
    graph: ChangedGraph

    @property
    def manifest(self) -> Manifest:
        """State and source positions that the job continues from."""
        return self.graph.manifest

    @property
    def location(self) -> StateLocation:
        """Where the files of the target are."""
        return location_of(self.job, self.target)

    @property
    def from_other_job(self) -> bool:
        """Whether the target is a savepoint of another job."""
        return self.target.job_uuid != self.job.root.job.job_uuid

    @property
    def last_published(self) -> int:
        """Id of the newest checkpoint whose output the tables keep."""
        return self.head.checkpoint_id if self.from_other_job else self.target.checkpoint_id

    def with_head(self, head: Head) -> RestoreContext:
        """Returns the same restore, continued from another log entry."""
        return replace(self, head=head)

    def check_file_sizes(self) -> None:
        """Raises MissingFile or CorruptFile unless every file of the manifest is stored with its size."""
        check_content(self.graph.read, self.location)
        check_sizes(*self._files())

    def check_file_hashes(self) -> None:
        """Raises MissingFile or CorruptFile unless every file of the manifest has its SHA-256; reads all files."""
        check_content(self.graph.read, self.location)
        check_hashes(*self._files())

    def plan_rewind(self, uid: str, table: SinkTable) -> SinkRewind:
        """Returns the effect of restoring the sink's table to the target; changes nothing.

        Raises as `SinkTable.plan_rewind` does.
        """
        return table.plan_rewind(_table_checkpoint(self.head.entry.rewind, uid, table, self.target.checkpoint_id))

    def _files(self) -> tuple[Storage, list[FileHandle]]:
        files, savepoint = files_of(self.graph.read), self.target.savepoint
        if savepoint is None:
            return self.job.root.storage, files
        unique = {f.key: f for f in files}.values()
        return savepoint.storage, [msgspec.structs.replace(f, key=f"{savepoint.folder}{f.key}") for f in unique]


def check_content(manifest: Manifest, location: StateLocation) -> None:
    """Checks what a manifest contains, as a run does: the files of stores, and operator state.

    Raises:
        MissingFile, CorruptFile: it is damaged.
    """
    for operator in manifest.operators:
        for state in operator.subtasks:
            check_snapshot(state)
        check_parts(location.storage, location.operator(operator).parts)


def check_target(job: Job, head: Head, target: Target, request: GraphRequest) -> RestoreContext:
    """Checks that the job can continue from the target.

    Args:
        request: the user's decisions about state and sources of the target that the job does not have.

    Raises:
        ConfigError: state or source positions do not fit the job; IncompatibleState says which state.
        MissingFile, CorruptFile: a file of operator state that is divided is missing or damaged.
    """
    wanted = _wanted(job, target)
    groups = job.root.job.max_parallelism
    declared = DeclaredGraph(job.plan, job.sources, groups, wanted.states, frozenset(job.sinks))
    graph = change_graph(target.manifest, location_of(job, target), declared, request)
    assign_state(target.checkpoint_id, graph.manifest, wanted)
    return RestoreContext(job, head, target, graph)


def _wanted(job: Job, target: Target) -> CurrentJob:
    """Returns what the job declares, with the key groups of a savepoint that an import gives fewer of them."""
    groups = target.savepoint.document.max_parallelism if target.savepoint else 0
    return replace(job.wanted, max_parallelism=max(groups, job.wanted.max_parallelism))


def location_of(job: Job, target: Target) -> StateLocation:
    """Returns where the files of a target are."""
    if target.savepoint is None:
        return StateLocation(job.root.storage)
    return StateLocation.of(target.savepoint)


def _table_checkpoint(rewind: Rewind | None, uid: str, table: SinkTable, checkpoint_id: int) -> int:
    """Returns the checkpoint whose output determines the version of a table at `checkpoint_id`.

    It differs from `checkpoint_id` for the target of an earlier restore that is not completed. A table that this
    restore has already rewound holds that target under the token of the restore; any other has older tokens only.
    """
    intent = rewind.sinks.get(uid) if rewind else None
    if rewind is None or rewind.restore is None or intent is None or intent.mode is SinkMode.KEEP:
        return checkpoint_id
    base = rewind.restore.base
    if checkpoint_id != base and checkpoint_id < rewind.seq:
        return checkpoint_id
    return rewind.seq if (table.token or 0) >= rewind.seq else base
