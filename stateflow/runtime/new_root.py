"""A new job root that begins with a savepoint, whose own job root may be gone: the first step of ``run
--from-savepoint``."""

from __future__ import annotations

from dataclasses import dataclass

from stateflow import failpoints
from stateflow.api.graph import Graph
from stateflow.checkpoint.documents import FORMAT_VERSION, JobFormat, Manifest, Savepoint
from stateflow.checkpoint.entries import Adoption
from stateflow.checkpoint.history import MADE, ActionRecord, write_action
from stateflow.checkpoint.job_format import NewJob, check_same_job, check_vacant, read_format
from stateflow.checkpoint.jobroot import JobRoot
from stateflow.checkpoint.probe import probe_storage
from stateflow.checkpoint.restore import Wanted, plan_restore
from stateflow.checkpoint.stored_savepoints import StoredSavepoint, savepoint_at, savepoint_uri
from stateflow.clock import Clock
from stateflow.errors import ConfigError, StateflowError
from stateflow.runtime.assembly import source_descriptions, writer
from stateflow.runtime.declared import declared_if_known
from stateflow.runtime.old_tables import OldTables, check_table
from stateflow.runtime.plan import JobPlan, plan_job
from stateflow.runtime.planned import without
from stateflow.runtime.start_checks import check_reader
from stateflow.runtime.state_import import Place, import_state
from stateflow.settings import Settings
from stateflow.storage import Storage, open_storage
from stateflow.storage.paths import FORMAT


@dataclass(frozen=True)
class Beginning:
    """What a run begins with when its job root is new.

    Attributes:
        savepoint: path or URI of its folder, or of its ``_savepoint``.
        from_other_job: whether the savepoint may be of a job with another name.
        drop: uids of operators that the job does not have, whose state is dropped.
    """

    savepoint: str
    tables: OldTables = OldTables.REFUSE
    from_other_job: bool = False
    drop: frozenset[str] = frozenset()


@dataclass(frozen=True)
class RootToBegin:
    """The job, and where its root is to be.

    Attributes:
        reads_by_spark: whether Spark reads the job's sources.
        note: who or what asked for it.
    """

    storage: Storage
    clock: Clock
    graph: Graph
    settings: Settings
    reads_by_spark: bool
    note: str = ""

    def plan(self) -> JobPlan:
        """How the job runs."""
        return plan_job(self.graph, self.settings.parallelism)


def begin_job_root(new: RootToBegin, beginning: Beginning) -> None:
    """Makes a job root that begins with a savepoint. Does nothing where an earlier call has made it of the same one;
    completes what an earlier call that was killed has left.

    Nothing is written before job, tables and all of the savepoint's files are checked.

    Raises:
        ConfigError, WrongJobRoot: the place holds something else, or savepoint, job and tables do not fit.
        SinkDiverged: a table does not stand where the savepoint does.
        MissingFile, CorruptFile: the savepoint is damaged.
    """
    if has_begun(new.storage, new.clock, beginning):
        return
    began = new.clock.monotonic()
    stored = savepoint_at(beginning.savepoint)
    manifest = _check(new, stored, beginning)
    probe_storage(new.storage, new.clock, 0)
    root = JobRoot.begin(new.storage, new.clock, _format(new, stored, manifest), writer())
    _check_origin(root.job, stored.document, beginning, new.storage)
    failpoints.hit("begin.created")
    try:
        _fill(root, stored, manifest, _Noted(new.note, began))
    except StateflowError:
        # A run that was started at the same time may have been faster, and collects what is not its own.
        if root.log.read_head() is None:
            raise


def has_begun(storage: Storage, clock: Clock, beginning: Beginning) -> bool:
    """Whether the job root has begun with this savepoint. Raises ConfigError when it holds anything else."""
    if storage.size(FORMAT) is None:
        check_vacant(storage)
        return False
    found = read_format(storage)
    has_entries = JobRoot.open(storage, clock).log.read_head() is not None
    try:
        document = savepoint_at(beginning.savepoint).document
    except StateflowError:
        # The savepoint has done its work, and may be gone.
        if has_entries and found.begun_with == open_storage(savepoint_uri(beginning.savepoint)).uri:
            return True
        raise
    _check_origin(found, document, beginning, storage)
    return has_entries


def _check_origin(found: JobFormat, document: Savepoint, beginning: Beginning, storage: Storage) -> None:
    if found.forked_from != document.id:
        raise ConfigError("the job root was not begun with this savepoint", hint="leave --from-savepoint out to go on "
                          "from the root's newest checkpoint; go back to the savepoint with stateflow restore; or give "
                          "another --job-root", root=storage.uri, begun_with=found.begun_with or found.forked_from
                          or "nothing: it is a job of its own", savepoint=beginning.savepoint,
                          savepoint_id=document.id)  # fmt: skip


def _check(new: RootToBegin, stored: StoredSavepoint, beginning: Beginning) -> Manifest:
    """Returns the state to begin with, when everything fits."""
    manifest = check_fits(new, stored, beginning)
    for node in new.graph.sinks:
        check_table(node, stored.document, beginning.tables)
    stored.verify()
    return manifest


def check_fits(new: RootToBegin, stored: StoredSavepoint, beginning: Beginning) -> Manifest:
    """Returns the state to begin with. Raises ConfigError, WrongJobRoot or IncompatibleState when the job does not fit
    the savepoint; tables and the savepoint's files are not looked at."""
    document = stored.document
    if document.job != new.settings.name and not beginning.from_other_job:
        raise ConfigError("the savepoint belongs to another job", hint="to begin with its state all the same, say "
                          "--from-other-job; or set the job's name: --set name=…", savepoint=stored.uri,
                          of_job=document.job, this_job=new.settings.name)  # fmt: skip
    plan, settings = new.plan(), new.settings
    same = NewJob(settings.name, settings.max_parallelism, plan.key_types)
    manifest = without(document.manifest, beginning.drop)
    check_same_job(_format(new, stored, manifest), same, stored.uri)
    states = declared_if_known(plan, document.max_parallelism)
    wanted = Wanted(
        plan.parallelism, document.max_parallelism, plan.key_types, source_descriptions(plan), states
    )
    plan_restore(document.checkpoint_id, manifest, wanted)
    check_reader(manifest, new.reads_by_spark)
    return manifest


def _format(new: RootToBegin, stored: StoredSavepoint, manifest: Manifest) -> JobFormat:
    document = stored.document
    return JobFormat(
        version=FORMAT_VERSION, job=new.settings.name, job_uuid=new.clock.new_id(),
        max_parallelism=document.max_parallelism, forked_from=document.id, begun_with=stored.uri,
        key_types={o.uid: o.key_types for o in manifest.operators},
    )  # fmt: skip


@dataclass(frozen=True)
class _Noted:
    """For the history: who asked, and since when it is under way."""

    note: str
    began: float


def _fill(root: JobRoot, stored: StoredSavepoint, manifest: Manifest, noted: _Noted) -> None:
    document = stored.document
    label = f"savepoint {document.name} (checkpoint {document.checkpoint_id}) of {document.job}"
    place = Place(stored.storage, stored.folder, checked=True)
    handle = import_state(root, manifest, place, 0)
    failpoints.hit("begin.imported")
    # Before the first entry: a try that comes later finds it done. A second try after a kill uses the name again.
    write_action(root.storage, ActionRecord(
        seq=1, kind="fork", at=root.clock.now().isoformat(timespec="milliseconds"), by=root.writer, reason=noted.note,
        took_ms=round((root.clock.monotonic() - noted.began) * 1000, 1), bytes=manifest.full_bytes,
        facts={"of": document.id, "at": label, "shadow": "False", "parent_job": f"{document.job} {document.job_uuid}",
               "savepoint_path": stored.uri},
    ), MADE)  # fmt: skip
    adoption = Adoption(upto=0, manifest=handle, sources=manifest.sources, savepoint=label)
    root.adopt(None, adoption, f"begins with {label}" + (f": {noted.note}" if noted.note else ""))
    failpoints.hit("begin.adopted")
