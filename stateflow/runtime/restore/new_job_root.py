"""Creation of a job root from a savepoint, whose own job root may no longer exist.

It is the first step of ``run --from-savepoint``.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import StrEnum

import msgspec

from stateflow import failpoints
from stateflow.api.graph import Graph, SinkNode
from stateflow.api.sink import Delivery, SinkContext, SinkTable, Successor
from stateflow.checkpoint.history import MADE, write_action
from stateflow.checkpoint.log.documents import (
    FORMAT_VERSION,
    ActionRecord,
    JobFormat,
    Manifest,
    PublishedOutput,
    Savepoint,
    SinkIntent,
    SinkMode,
)
from stateflow.checkpoint.log.job_root import JobRoot, NewJob, check_same_job, check_vacant, probe_storage, read_format
from stateflow.checkpoint.log.transitions import Adoption
from stateflow.checkpoint.restore.plan_document import GraphChanges, SourceAction, source_caution
from stateflow.checkpoint.restore.source_positions import readable_without_positions
from stateflow.checkpoint.restore.state_assignment import CurrentJob, assign_state
from stateflow.checkpoint.savepoints.catalog import StoredSavepoint, savepoint_at, savepoint_uri
from stateflow.checkpoint.savepoints.claim_slots import ClaimMode, check_claimable, check_writable
from stateflow.checkpoint.savepoints.claimed_savepoints import take_over, undo_claim
from stateflow.clock import Clock
from stateflow.config.settings import Settings
from stateflow.errors import ConfigError, SinkDiverged, StateflowError
from stateflow.observability import log_event
from stateflow.runtime.job import check_same_reader
from stateflow.runtime.job_loader import source_descriptions, writer_name
from stateflow.runtime.planning.physical_plan import JobPlan, plan_job
from stateflow.runtime.planning.state_discovery import discover_states_if_possible
from stateflow.runtime.restore.graph_changes import ChangedGraph, DeclaredGraph, GraphRequest, change_graph
from stateflow.runtime.restore.planner import check_state_files
from stateflow.runtime.restore.state_import import StateLocation, import_state
from stateflow.storage import Storage, open_location
from stateflow.storage.paths import FORMAT

log = logging.getLogger(__name__)


class ExistingTables(StrEnum):
    """Policy for tables that the savepoint's job has written.

    The new job has its own id, so the tokens in these tables do not prevent it from writing rows twice. A job root that
    continues in a table takes it over: the savepoint's job, and each job root that took over from it, can publish
    nothing there from then on.
    """

    REFUSE = "refuse"
    CONTINUE = "continue"
    """Continue in them if they hold the output published up to the savepoint, and nothing after it."""
    KEEP = "keep"
    """Continue in them whatever they hold: rows after the savepoint are written a second time. Sinks of other jobs may
    write to them, too."""


@dataclass(frozen=True)
class InitialSavepoint:
    """The savepoint that a new job root starts from, and how it is used.

    Attributes:
        savepoint: path or URI of its folder, or of its ``_savepoint``.
        tables: policy for tables that the savepoint's job has written.
        from_other_job: whether the savepoint may belong to a job of another name.
        drop: uids of operators that the job no longer has, whose state is dropped; ``UID.STATE`` for one state.
        changes: new names in the job, and positions of sources.
        claim_mode: who owns the savepoint afterwards.
    """

    savepoint: str
    tables: ExistingTables = ExistingTables.REFUSE
    from_other_job: bool = False
    drop: frozenset[str] = frozenset()
    changes: GraphChanges = field(default_factory=GraphChanges)
    claim_mode: ClaimMode = ClaimMode.NO_CLAIM


@dataclass(frozen=True)
class NewJobRoot:
    """A job, and the storage of its new root.

    Attributes:
        reads_by_spark: whether Spark reads the job's sources.
        note: reason for the history.
    """

    storage: Storage
    clock: Clock
    graph: Graph
    settings: Settings
    reads_by_spark: bool
    note: str = ""

    def plan(self) -> JobPlan:
        """Returns the physical plan of the job."""
        return plan_job(self.graph, self.settings.parallelism)


def create_job_root(new: NewJobRoot, initial: InitialSavepoint) -> None:
    """Creates a job root from a savepoint.

    Does nothing if an earlier call has created it from the same savepoint; completes an earlier call that was killed.
    Nothing is written before the job, its tables and all files of the savepoint are checked.

    Raises:
        ConfigError, WrongJobRoot: the storage holds something else, or savepoint, job and tables do not fit.
        SinkDiverged: a table does not hold the output of the savepoint.
        SavepointClaimed: a job has claimed the savepoint that is to be claimed.
        MissingFile, CorruptFile: the savepoint is damaged.
    """
    if is_created(new.storage, new.clock, initial):
        return
    started = new.clock.monotonic()
    stored = savepoint_at(initial.savepoint, new.storage.uri)
    graph, tables = _checked_start(new, stored, initial)
    _warn_of_new_sources(graph)
    probe_storage(new.storage, new.clock, 0)
    root = JobRoot.create_from(new.storage, new.clock, _format(new, stored, graph.manifest), writer_name())
    _check_origin(root.job, stored.document, initial, new.storage)
    failpoints.hit("begin.created")
    try:
        _import_savepoint(root, stored, graph, tables, note=new.note, started=started, claim_mode=initial.claim_mode)
    except StateflowError:
        # A run that started concurrently may have created the root first, and collects files that are not its own.
        if root.log.read_head() is None:
            raise


def is_created(storage: Storage, clock: Clock, initial: InitialSavepoint) -> bool:
    """Returns whether the job root was created from this savepoint. Raises ConfigError when it holds anything else."""
    if storage.size(FORMAT) is None:
        check_vacant(storage)
        return False
    found = read_format(storage)
    has_entries = JobRoot.open(storage, clock).log.read_head() is not None
    try:
        document = savepoint_at(initial.savepoint, storage.uri).document
    except StateflowError:
        # The savepoint is no longer needed, and may have been deleted.
        if has_entries and found.begun_with == open_location(savepoint_uri(initial.savepoint), storage.uri).uri:
            return True
        raise
    _check_origin(found, document, initial, storage)
    return has_entries


def _check_origin(found: JobFormat, document: Savepoint, initial: InitialSavepoint, storage: Storage) -> None:
    if found.forked_from != document.id:
        raise ConfigError(
            "the job root was not created from this savepoint",
            hint="omit --from-savepoint to continue from the root's newest checkpoint; restore the savepoint with "
            "stateflow restore; or pass another --job-root",
            root=storage.uri,
            begun_with=found.begun_with or found.forked_from or "nothing: the job started without state",
            savepoint=initial.savepoint,
            savepoint_id=document.id,
        )


def _checked_start(
    new: NewJobRoot, stored: StoredSavepoint, initial: InitialSavepoint
) -> tuple[ChangedGraph, dict[str, SinkIntent]]:
    """Returns what the job starts from, and how it takes over tables by uid of the sink, after all checks."""
    graph = check_savepoint_fits(new, stored, initial)
    if initial.claim_mode is ClaimMode.CLAIM:
        # An earlier attempt that was killed may have claimed it for this root.
        own_uuid = read_format(new.storage).job_uuid if new.storage.size(FORMAT) is not None else ""
        check_claimable(stored.storage, stored.folder, own_uuid)
        check_writable(stored.storage, stored.folder, new.clock.new_id())
    tables = {node.uid: plan_table(node, stored.document, initial.tables) for node in new.graph.sinks}
    stored.verify()
    check_state_files(stored.document.manifest, StateLocation.of(stored))
    return graph, {uid: intent for uid, intent in tables.items() if intent is not None}


def _warn_of_new_sources(graph: ChangedGraph) -> None:
    """Logs the sources that begin at their start because the savepoint has no position of them."""
    for change in graph.source_changes:
        if change.action is SourceAction.NEW and change.uid not in graph.chosen.starts:
            text = f"source {change.uid}: {source_caution(change.action)}"
            log_event(log, logging.WARNING, "warning", text=text, warning=text)


def check_savepoint_fits(new: NewJobRoot, stored: StoredSavepoint, initial: InitialSavepoint) -> ChangedGraph:
    """Returns the state that the job root starts from; does not check tables nor the savepoint's files.

    Raises:
        ConfigError, WrongJobRoot, IncompatibleState: the job does not fit the savepoint.
    """
    document = stored.document
    if document.job != new.settings.name and not initial.from_other_job:
        raise ConfigError(
            "the savepoint belongs to another job",
            hint="to start from its state anyway, pass --from-other-job; or set the job's name: --set name=…",
            savepoint=stored.uri,
            of_job=document.job,
            this_job=new.settings.name,
        )
    plan, settings = new.plan(), new.settings
    same = NewJob(settings.name, settings.max_parallelism, plan.key_types)
    key_groups = _key_groups(new, document)
    states, sources = discover_states_if_possible(plan, key_groups), source_descriptions(plan)
    sinks = frozenset(node.uid for node in new.graph.sinks)
    declared = DeclaredGraph.of(plan, sources, key_groups, states=states, sinks=sinks)
    # An attempt after a kill finds the root's FORMAT, and skips the files of its own time.
    request = GraphRequest(initial.changes, initial.drop, new.clock.now())
    manifest = readable_without_positions(document.manifest, new.reads_by_spark)
    graph = change_graph(manifest, StateLocation.of(stored), declared, request)
    _check_removed_sources(graph, initial.drop)
    check_same_job(_format(new, stored, graph.manifest), same, stored.uri)
    # Of the larger number: the manifest still has the key groups of the savepoint.
    largest = max(document.max_parallelism, key_groups)
    wanted = CurrentJob(plan.parallelism, largest, plan.key_types, sources, states)
    assign_state(document.checkpoint_id, graph.manifest, wanted)
    check_same_reader(graph.manifest, new.reads_by_spark)
    return graph


def _key_groups(new: NewJobRoot, document: Savepoint) -> int:
    """Returns the max parallelism of the new root: that of the settings, or else of the savepoint."""
    return new.settings.max_parallelism or document.max_parallelism


def _check_removed_sources(graph: ChangedGraph, drop: frozenset[str]) -> None:
    """Raises ConfigError for a source that the job does not have: no plan shows that its position is dropped."""
    removed = [uid for uid in graph.sources.removed if uid not in drop]
    if removed:
        raise ConfigError(
            "the savepoint has positions of sources that the job does not have",
            hint="map a renamed source with --map OLD=NEW, or drop the position: --drop UID",
            uids=removed,
        )


def _format(new: NewJobRoot, stored: StoredSavepoint, manifest: Manifest) -> JobFormat:
    document = stored.document
    return JobFormat(
        version=FORMAT_VERSION,
        job=new.settings.name,
        job_uuid=new.clock.new_id(),
        max_parallelism=_key_groups(new, document),
        forked_from=document.id,
        begun_with=stored.uri,
        shadow=False,
        key_types={o.uid: o.key_types for o in manifest.operators},
    )


def _import_savepoint(
    root: JobRoot,
    stored: StoredSavepoint,
    graph: ChangedGraph,
    tables: dict[str, SinkIntent],
    *,
    note: str,
    started: float,
    claim_mode: ClaimMode,
) -> None:
    """Imports the savepoint into the new root, and adopts it.

    Args:
        note: reason for the history.
        started: when the creation began, in seconds of the monotonic clock.
        claim_mode: who owns the savepoint afterwards.
    """
    document, manifest = stored.document, graph.manifest
    label = f"savepoint {document.name} (checkpoint {document.checkpoint_id}) of {document.job}"
    claimed = None
    if claim_mode is ClaimMode.CLAIM:
        claimed = take_over(root, stored, 0, root.requester)
    else:
        undo_claim(root, stored)
    location = StateLocation.of(stored, checked=True)
    handle = import_state(root, graph.shared, location, 0, graph.operators.rewrites)
    failpoints.hit("begin.imported")
    record = _first_record(root, stored, label, note, is_claimed=claimed is not None)
    record = msgspec.structs.replace(
        record, size_bytes=manifest.full_bytes, duration_ms=round((root.clock.monotonic() - started) * 1000, 1)
    )
    # Before the first entry, after which a later attempt finds the root complete. An attempt after a kill uses the same
    # name.
    write_action(root.storage, record, MADE)
    # The first run takes over the tables before anything else, also after a kill.
    adoption = Adoption(
        upto=0, manifest=handle, sources=manifest.sources, savepoint=label, claimed=claimed, sinks=tables or None
    )
    root.adopt(None, adoption, f"begins with {label}" + (f": {note}" if note else ""))
    failpoints.hit("begin.adopted")


def _first_record(root: JobRoot, stored: StoredSavepoint, label: str, note: str, *, is_claimed: bool) -> ActionRecord:
    """Returns the record of what the job root begins with, without its size and duration."""
    document = stored.document
    return ActionRecord(
        seq=1,
        kind="fork",
        ended_at=root.clock.now().isoformat(timespec="milliseconds"),
        by=root.requester,
        reason=note,
        facts={
            "forked_from": document.id,
            "target_label": label,
            "shadow": False,
            "parent_job": document.job,
            "parent_job_uuid": document.job_uuid,
            "savepoint_path": stored.uri,
            **({"claim_mode": ClaimMode.CLAIM.value} if is_claimed else {}),
        },
    )


def plan_table(node: SinkNode, document: Savepoint, policy: ExistingTables) -> SinkIntent | None:
    """Returns how a new job root takes over the sink's table; None if the savepoint's job has not written it.

    Args:
        document: the savepoint from which the root is created.

    Raises:
        ConfigError, SinkDiverged: the root must not continue in the table.
    """
    own = SinkContext(document.job_uuid, node.uid, node.parent.schema)
    table_id = node.sink.check(own)
    if table_id is None:
        if policy is ExistingTables.CONTINUE and node.uid in document.sinks:
            raise ConfigError(
                "a table of the savepoint's job does not exist",
                hint="restore it; to start a new one, omit --tables",
                sink=node.uid,
                table=node.sink.location,
                known=document.sinks[node.uid].table_id,
            )
        return None
    if node.sink.delivery is not Delivery.EXACTLY_ONCE:
        return None
    known = {p.table_id: (uid, p) for uid, p in document.sinks.items()}
    uid, published = known.get(table_id, (node.uid, None))
    former = SinkContext(document.job_uuid, uid, node.parent.schema)
    table = node.sink.open_table(former)
    if not (table.token or published):
        if policy is not ExistingTables.KEEP:
            _check_other_jobs(node, own)
        return None
    line = _line_of(node, former, table)
    if policy is ExistingTables.KEEP:
        return SinkIntent(table_id=table_id, mode=SinkMode.KEEP, seen_version=None, takes_over=dict.fromkeys(line))
    if policy is ExistingTables.REFUSE:
        raise ConfigError(
            "the savepoint's job has written the table of a sink",
            hint="give the run its own tables; or, if that job no longer runs, continue in its tables: "
            "--tables continue",
            sink=node.uid,
            table=node.sink.location,
            table_id=table_id,
            of_job=f"{document.job} {document.job_uuid}",
        )
    _check_successors(node, former, table)
    since = _check_own_output(node, table, document.checkpoint_id, published)
    _check_later_commits(node, own, table, since, uid)
    return SinkIntent(table_id=table_id, mode=SinkMode.KEEP, seen_version=None, takes_over=line)


def _line_of(node: SinkNode, former: SinkContext, table: SinkTable) -> dict[str, int | None]:
    """Returns the token of a sink, and of those that have taken over its table one from the other, by application."""
    found: dict[str, int | None] = {former.application: table.token or 0}
    for successor, token in _successors(node, former, table):
        found[successor.application] = token
    return found


def _successors(node: SinkNode, former: SinkContext, table: SinkTable) -> Iterator[tuple[Successor, int]]:
    """Yields the sinks that have taken over a table one from the other, with their tokens."""
    found = {former.application}
    while table.successor is not None and table.successor.application not in found:
        found.add(table.successor.application)
        job_uuid, _, uid = table.successor.application.partition("/")
        successor, table = table.successor, node.sink.open_table(SinkContext(job_uuid, uid, former.schema))
        yield successor, table.token or 0


def _check_successors(node: SinkNode, former: SinkContext, table: SinkTable) -> None:
    """Raises SinkDiverged when a sink that has taken over the table has published since.

    Their tokens say so for each kind of table; Kafka and PostgreSQL do not record who has written a row.
    """
    for successor, token in _successors(node, former, table):
        # 0: it was killed before the take-over was complete, or the table has no tokens.
        if successor.token < 0 or token not in (0, successor.token):
            raise SinkDiverged(
                "another job root has taken over a table after the savepoint, and written it",
                hint="continue with by_root, or with a savepoint of it; or give the sink its own table; or write the "
                "rows after the savepoint a second time: --tables keep",
                sink=node.uid,
                table=node.sink.location,
                by_root=successor.root,
                of_jobs=[successor.application.partition("/")[0]],
            )


def _check_own_output(
    node: SinkNode, table: SinkTable, checkpoint_id: int, published: PublishedOutput | None
) -> int | None:
    """Returns the table's version at the savepoint; None when it is not known.

    Args:
        published: the savepoint's record of the table; None when it has none.

    Raises:
        SinkDiverged: the table lacks output that the savepoint's job published up to the savepoint, or has some that
            it published afterwards.
    """
    is_known = published is not None and published.known_version is not None
    rewind = table.plan_rewind(checkpoint_id)
    if rewind.to_version is not None and (rewind.rows_removed != 0 or rewind.rows_returned != 0):
        raise SinkDiverged(
            "a table holds output that the savepoint's job published after the savepoint",
            hint="restore the table to version_of_savepoint, with the table's own tools, or choose a newer savepoint; "
            "or write the rows a second time: --tables keep",
            sink=node.uid,
            table=node.sink.location,
            version=rewind.from_version,
            version_of_savepoint=rewind.to_version,
            rows_after=rewind.rows_removed,
        )
    if published is not None and is_known and (table.token or 0) < published.checkpoint_id:
        raise SinkDiverged(
            "a table lacks output that was published before the savepoint",
            hint="restore the table; or continue in it as it is: --tables keep",
            sink=node.uid,
            table=node.sink.location,
            token=table.token or 0,
            known_checkpoint_id=published.checkpoint_id,
        )
    return published.version if published is not None and is_known else rewind.to_version


def _check_later_commits(node: SinkNode, own: SinkContext, table: SinkTable, since: int | None, former: str) -> None:
    """Raises SinkDiverged when another job's sink has committed after version `since`, or ever if that is not known.

    Another root may have been created from the same savepoint, or from a later one.

    Args:
        former: uid of the sink in the savepoint's job.
    """
    if since is None:
        _check_other_jobs(node, own)
        return
    for commit in table.changes_since(since).others:
        names = (name.partition("/") for name in commit.applications)
        jobs = sorted(job for job, _, uid in names if uid in (node.uid, former))
        if jobs:
            raise SinkDiverged(
                "another job has written the table after the savepoint",
                hint="give the sink its own table; or restore this one to version_of_savepoint, with the table's own "
                "tools, and continue in it as it then is: --tables keep",
                sink=node.uid,
                table=node.sink.location,
                of_jobs=jobs,
                version=commit.version,
                version_of_savepoint=since,
            )


def _check_other_jobs(node: SinkNode, own: SinkContext) -> None:
    """Raises SinkDiverged when another job's sink has ever written the table.

    Another root may have been created from the same savepoint, and would have written the rows after it.
    """
    others = node.sink.other_jobs(own)
    if others:
        raise SinkDiverged(
            "the table of a sink was written by another job, which the savepoint does not record",
            hint="give the sink its own table; or continue in this one, whatever it holds: --tables keep",
            sink=node.uid,
            table=node.sink.location,
            of_jobs=sorted(others),
        )
