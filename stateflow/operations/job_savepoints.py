"""Savepoints of running and stopped jobs: creation, stop with a savepoint, and listing."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from datetime import timedelta

from stateflow.checkpoint.job_requests import RequestClient, RequestTimeouts, is_same_request
from stateflow.checkpoint.log.checkpoint_log import Head
from stateflow.checkpoint.log.completed_checkpoints import is_released
from stateflow.checkpoint.log.documents import (
    EntryRef,
    Origin,
    PublishedOutput,
    Request,
    RequestAnswer,
    RequestKind,
    SavepointFormat,
)
from stateflow.checkpoint.log.job_root import JobRoot
from stateflow.checkpoint.log.transitions import pending_of
from stateflow.checkpoint.savepoints.catalog import StoredSavepoint, find_savepoint, list_savepoints, savepoint_at
from stateflow.checkpoint.savepoints.claim_slots import owner_of
from stateflow.checkpoint.savepoints.create import (
    SavepointSpec,
    make_savepoint,
    newest_published_checkpoint,
    sink_positions_at,
)
from stateflow.checkpoint.savepoints.names import check_savepoint_name
from stateflow.config.settings import SavepointSettings
from stateflow.errors import ConfigError, DataError, Fenced, MissingFile, PlanOutdated, RequestTimeout
from stateflow.launch import RunRequest, open_existing, run_job
from stateflow.operations.checkpoints import OperatorDescription, operators_of
from stateflow.operations.job_root import JobCode, now, offsets_of, open_root, pins_of
from stateflow.outputs import Inline, Offset, OptionalId, OptionalText, Person, Timestamp
from stateflow.runtime.publisher import Publisher
from stateflow.runtime.restore.plan_execution import complete_rewind
from stateflow.storage import open_storage


@dataclass(frozen=True)
class SavepointRequest:
    """Parameters of a savepoint.

    Attributes:
        name: name of the savepoint; generated when empty.
        requested_by: who requested it, if `by` is another person, who approved it.
        note: what the person entered who approved it.
        request_id: a repeated request with the same id returns the same savepoint; generated when empty.
        earlier_request_ids: ids of earlier requests of the same caller. A stop returns the savepoint of this name that
            one of them made, as long as the job has not progressed since.
        from_head: do not ask the run, but take the newest checkpoint whose output is known to be published.
        code: job file; required when no run is active and output is not published yet.
        drain: fire all event-time timers before the savepoint.
        format: how the savepoint stores keyed state; None for the default, which for a stop is a setting of the run.
        settings: number of workers and of files, and the format of a stop's savepoint, if no run creates it.
        generation: the only run that the request is for, or was the newest one when no run is active; 0 for any. With
            another newest run the request is refused, whenever that has begun.
        acknowledge_timeout: time limit for a run to confirm the request, initially and on each re-check.
        timeout: time limit for the run's answer.
    """

    name: str = ""
    origin: Origin = Origin.MANUAL
    by: str = ""
    requested_by: str = ""
    reason: str = ""
    note: str = ""
    request_id: str = ""
    earlier_request_ids: tuple[str, ...] = ()
    from_head: bool = False
    code: JobCode | None = None
    drain: bool = False
    format: SavepointFormat | None = None
    settings: SavepointSettings = field(default_factory=SavepointSettings)
    generation: int = 0
    acknowledge_timeout: timedelta = RequestTimeouts.acknowledge
    timeout: timedelta = RequestTimeouts.answer


@dataclass(frozen=True)
class ClaimingJob:
    """A job that has claimed a savepoint.

    Attributes:
        job: name of the job.
        job_uuid: uuid of the job.
    """

    job: str
    job_uuid: str

    def __str__(self) -> str:
        return f"{self.job} {self.job_uuid}"


@dataclass(frozen=True)
class SavepointReport:
    """Description of a complete savepoint.

    Attributes:
        name: its name.
        id: its id, which no other savepoint has.
        path: URI of its folder.
        job: name of the job.
        checkpoint_id: id of the checkpoint that it was made of; 0 for state that no checkpoint had.
        offsets: the position of each source, by uid.
        size_bytes: size of all its files.
        origin: why it was made, such as ``manual``, ``stop`` or ``periodic``.
        made_at: when it was made.
        made_from: ``run``, or ``head`` for a copy of the newest checkpoint that was made without a run; empty if that
            is not known.
        format: ``native`` or ``canonical``.
        claimed_by: the job that has claimed it; None for one that belongs to the user.
        claimed_at: when it was claimed, by that job's clock.
    """

    name: str
    id: OptionalText
    path: str
    job: OptionalText
    checkpoint_id: OptionalId
    offsets: dict[str, Offset]
    size_bytes: int
    origin: OptionalText
    made_at: Timestamp
    made_from: OptionalText = ""
    format: str = SavepointFormat.NATIVE.value
    claimed_by: ClaimingJob | None = None
    claimed_at: Timestamp = ""


@dataclass(frozen=True)
class SinkPosition:
    """The position of a sink's table at a savepoint, as far as the job's log knew.

    Attributes:
        table_id: id of the table.
        version: version of the table; None if it is not known.
        checkpoint_id: the last checkpoint whose output was published there; 0 when there is none.
    """

    table_id: str
    version: int | None
    checkpoint_id: OptionalId

    @classmethod
    def of(cls, published: PublishedOutput) -> SinkPosition:
        """Returns the position that the log has recorded."""
        return cls(published.table_id, published.known_version, published.checkpoint_id)


@dataclass(frozen=True)
class SavepointDescription:
    """A savepoint with its contents.

    Attributes:
        report: its description.
        job_uuid: uuid of the job.
        by: who requested it, or approved it.
        requested_by: who requested it, if another person approved it.
        reason: why it was requested.
        note: what the person entered who approved it.
        committed_at: when its checkpoint was committed.
        drained: whether all event-time timers were fired before it.
        max_parallelism: number of key groups.
        code_hash: hash of the job's code that made its checkpoint; empty if it is not known.
        operators: the operators with their state.
        sinks: the position of each sink's table, by uid.
    """

    report: Inline[SavepointReport]
    job_uuid: str
    by: Person
    requested_by: Person
    reason: OptionalText
    note: OptionalText
    committed_at: Timestamp
    drained: bool
    max_parallelism: int
    code_hash: OptionalText
    operators: tuple[OperatorDescription, ...]
    sinks: dict[str, SinkPosition]


def create_savepoint(job_root: str, request: SavepointRequest) -> SavepointReport:
    """Creates a savepoint: at the next barrier of the run, or from the newest checkpoint if no run is active.

    Raises:
        RequestTimeout: the run did not reach a barrier in time; no savepoint was created.
        PlanOutdated: the newest run is another one than the request is for.
        ConfigError: the name is taken, or output is not published and no job file was given.
        DataError: the job has no checkpoint, or the run answered with an error.
    """
    root = open_root(job_root)
    request = with_defaults(root, request)
    if made := _made_before(root, request):
        return made
    head = _checked_head(root, request)
    if not request.from_head and not head.entry.ended:
        answer = _submit(root, request, RequestKind.SAVEPOINT)
        if answer is not None:
            return describe_savepoint(savepoint_at(answer.savepoint, root.storage.uri), "run")
    return _create_without_run(root, request)


def _create_without_run(root: JobRoot, request: SavepointRequest) -> SavepointReport:
    """Creates a savepoint from the newest checkpoint, after withdrawing an earlier attempt's request to a run."""
    if not request_client(root, request).withdraw(request.request_id) and (made := _made_before(root, request)):
        return made
    return describe_savepoint(_from_head(root, request), "head")


def why_no_run(job_root: str, request: SavepointRequest) -> str:
    """Returns the reason, as text, why no run created the savepoint."""
    return "as requested" if request.from_head else _reason_for_no_run(open_root(job_root).head(), request)


def _reason_for_no_run(head: Head, request: SavepointRequest) -> str:
    """Returns what is known when no run has answered; a busy or paused run does not answer either."""
    if head.entry.ended:
        return "no run of the job is active"
    return f"no run confirmed the request within {request.acknowledge_timeout.total_seconds():g} s"


def _open_run(head: Head) -> dict[str, int]:
    """Returns the generation of a run that did not end normally, as a fact of an error."""
    return {} if head.entry.ended else {"generation": head.entry.generation}


def stop(job_root: str, request: SavepointRequest, *, savepoint: bool, may_run: bool = False) -> SavepointReport | None:
    """Ends the job's run after its next checkpoint, optionally with a savepoint of that checkpoint.

    The run commits and publishes the checkpoint, makes the savepoint, answers, and ends. If it is killed before that,
    the next run completes the request before its first batch. A request of origin *manual* gives a savepoint of origin
    *stop*.

    Args:
        may_run: whether this process may run the job of `request.code` to fire event-time timers if no run is active.
            Such a run reads no input: it starts from the newest checkpoint, fires the timers, and ends.

    Returns:
        The savepoint; None without one.

    Raises:
        ConfigError: no run is active and no savepoint is requested; otherwise as `create_savepoint`.
    """
    root = open_root(job_root)
    request = with_defaults(
        root, request if request.origin is not Origin.MANUAL else replace(request, origin=Origin.STOP)
    )
    if savepoint and (made := _made_before(root, request)):
        return made
    if request.generation and request_client(root, request).is_for_any_run(request.request_id):
        # A try that was killed has begun to drain the job in a run of its own, which is the newest one since then.
        request = replace(request, generation=0)
    answer, head = None, _checked_head(root, request)
    if savepoint and head.entry.ended and (made := _stopped_before(root, request, head)):
        return made
    if not head.entry.ended:
        answer = _submit(root, request if savepoint else _nameless(request), RequestKind.STOP)
    if answer is None and savepoint and may_run and request.drain and request.code and _undrained(root):
        answer = _drain_in_own_run(root, request, request.code)
    if answer is not None:
        return describe_savepoint(savepoint_at(answer.savepoint, root.storage.uri), "run") if savepoint else None
    if not savepoint:
        hint = (
            "no action is needed: the job is not running"
            if head.entry.ended
            else "if a run is active, wait longer: --acknowledge-timeout"
        )
        raise ConfigError(_reason_for_no_run(head, request), hint=hint, root=job_root, **_open_run(head))
    stored_as = request.format or SavepointFormat(request.settings.stop_format)
    return _create_without_run(root, replace(request, format=stored_as))


def _drain_in_own_run(root: JobRoot, request: SavepointRequest, code: JobCode) -> RequestAnswer | None:
    """Runs the job for this request only: a run serves an open stop request before it reads input."""
    client = request_client(root, request)
    # For the run that follows, whose number is not known yet.
    posted = client.submit(_request(root, replace(request, generation=0), RequestKind.STOP))
    try:
        run_job(RunRequest(code.file, root.storage.uri, code.layers, note=f"stop {request.name}"))
    except Fenced:
        # The newer run serves the request.
        return client.wait(posted)
    except BaseException:
        # Otherwise the request would stop the next run, which reads input.
        client.withdraw(request.request_id)
        raise
    return client.wait(posted)


def withdraw(job_root: str, request_id: str) -> bool:
    """Withdraws a request that no run has answered; returns whether it was open."""
    return RequestClient(open_root(job_root)).withdraw(request_id)


def list_all(job_root: str) -> list[SavepointReport]:
    """Returns every complete savepoint in a job root, oldest first; omits damaged ones."""
    return [describe_savepoint(s) for s in list_savepoints(open_storage(job_root))]


def find(job_root: str, name_or_path: str) -> StoredSavepoint:
    """Returns a savepoint by its name in the job root, or by the path of its folder or ``_savepoint`` anywhere.

    Raises ConfigError when it does not exist.
    """
    if "/" in name_or_path:
        return savepoint_at(name_or_path, job_root)
    stored = find_savepoint(open_storage(job_root), name_or_path)
    if stored is None:
        names = [s.document.name for s in list_savepoints(open_storage(job_root))]
        raise ConfigError("the savepoint does not exist", hint=f"existing savepoints: {names}", name=name_or_path)
    return stored


def describe_savepoint(stored: StoredSavepoint, made_from: str = "") -> SavepointReport:
    """Returns the description of a stored savepoint."""
    document, claim = stored.document, owner_of(stored.storage, stored.folder)
    return SavepointReport(
        name=document.name,
        id=document.id,
        path=stored.uri,
        job=document.job,
        checkpoint_id=document.checkpoint_id,
        offsets=offsets_of(document.manifest.sources),
        size_bytes=stored.size,
        origin=document.origin.value,
        made_at=document.made_at,
        made_from=made_from,
        format=document.format.value,
        claimed_by=ClaimingJob(claim.job, claim.job_uuid) if claim else None,
        claimed_at=claim.at if claim else "",
    )


def describe_contents(stored: StoredSavepoint) -> SavepointDescription:
    """Returns the description of a stored savepoint with its operators and sinks."""
    document = stored.document
    return SavepointDescription(
        describe_savepoint(stored),
        document.job_uuid,
        document.by,
        document.requested_by,
        document.reason,
        document.note,
        document.committed_at,
        document.drained,
        document.max_parallelism,
        document.manifest.code,
        operators_of(document.manifest),
        {uid: SinkPosition.of(published) for uid, published in document.sinks.items()},
    )


def _submit(root: JobRoot, request: SavepointRequest, kind: RequestKind) -> RequestAnswer | None:
    """Has the run carry out a request, and returns its answer; None if none has acknowledged it.

    The request names its run: one that begins meanwhile withdraws it.
    """
    client = request_client(root, request)
    try:
        return client.wait(client.submit(_request(root, request, kind)))
    except RequestTimeout:
        _checked_head(root, request)
        raise


def _checked_head(root: JobRoot, request: SavepointRequest) -> Head:
    """Returns the newest log entry. Raises PlanOutdated if its run is another one than the request is for."""
    head = root.head()
    if request.generation not in (0, head.entry.generation):
        raise PlanOutdated(
            "a newer run of the job has begun since this was requested",
            hint="look at the newest run: stateflow status; then request it again",
            requested_for=request.generation,
            generation=head.entry.generation,
        )
    return head


def _request(root: JobRoot, request: SavepointRequest, kind: RequestKind) -> Request:
    return Request(
        id=request.request_id,
        kind=kind,
        savepoint=request.name,
        origin=request.origin,
        by=request.by or root.requester,
        requested_by=request.requested_by,
        reason=request.reason,
        note=request.note,
        drain=request.drain,
        format=request.format,
        at=now(root),
        generation=request.generation,
    )


def request_client(root: JobRoot, request: SavepointRequest) -> RequestClient:
    """Returns a client that submits requests to the job's run, with the time limits of `request`."""
    return RequestClient(root, RequestTimeouts(request.acknowledge_timeout, request.timeout))


def _made_before(root: JobRoot, request: SavepointRequest) -> SavepointReport | None:
    """Returns the savepoint that an earlier attempt of the same request made, in a run or without one."""
    stored = find_savepoint(root.storage, check_savepoint_name(request.name))
    if stored is None or not is_same_request(stored.document.request, request.request_id):
        return None
    if stored.document.generation:
        return describe_savepoint(stored, "run")
    _drop_pins(root, request.by or root.requester, request.name)
    return describe_savepoint(stored, "head")


def _stopped_before(root: JobRoot, request: SavepointRequest, head: Head) -> SavepointReport | None:
    """Returns the savepoint of an earlier stop by the same caller, if it still is of the newest checkpoint."""
    for request_id in request.earlier_request_ids:
        made = _made_before(root, replace(request, request_id=request_id))
        if made is not None and made.checkpoint_id == newest_published_checkpoint(root, head).id:
            return made
    return None


def _drop_pins(root: JobRoot, by: str, name: str) -> None:
    """Drops the pins of an earlier attempt that was killed.

    An attempt that is only paused finds its savepoint given up when it continues.
    """
    for pin in pins_of(root, by, f"savepoint {name}"):
        root.admin.unpin(pin)


def _from_head(root: JobRoot, request: SavepointRequest) -> StoredSavepoint:
    by = request.by or root.requester
    if request.drain:
        _check_drained(root)
    _drop_pins(root, by, request.name)
    while True:
        checkpoint, sinks = find_published_checkpoint(root, request)
        spec = SavepointSpec(
            name=request.name,
            checkpoint=checkpoint,
            sinks=sinks,
            origin=request.origin,
            by=by,
            requested_by=request.requested_by,
            reason=request.reason,
            note=request.note,
            request=request.request_id,
            drained=request.drain,
            format=request.format or SavepointFormat.NATIVE,
            settings=request.settings,
        )
        try:
            return make_savepoint(root, spec)
        except DataError as e:
            # A run that began meanwhile may have released the checkpoint before it was pinned.
            if not is_released(e, checkpoint):
                raise


def _undrained(root: JobRoot) -> list[str]:
    """Returns the uids of operators with event-time timers, which only a run can fire."""
    manifest = root.checkpoints.manifest_at(root.head())
    operators = manifest.operators if manifest else []
    return [o.uid for o in operators if any(s.event_timer is not None for s in o.subtasks)]


def _check_drained(root: JobRoot) -> None:
    """Raises ConfigError when there are event-time timers."""
    if pending := _undrained(root):
        raise ConfigError(
            "the job has event-time timers, and no run is active to fire them",
            hint="pass the job file to `stateflow stop`, which then fires them in its own run: --job JOB.py; or fire "
            "them first with stateflow run --drain",
            operators=pending,
        )


def find_published_checkpoint(root: JobRoot, request: SavepointRequest) -> tuple[EntryRef, dict[str, PublishedOutput]]:
    """Returns a checkpoint whose output is published, and the published output of each sink by uid.

    Raises ConfigError when output is not published and the request has no job file.
    """
    while True:
        head = _checked_head(root, request)
        try:
            return _published_at(root, head, request)
        except MissingFile:
            # A run that started concurrently publishes pending output, and then deletes its list.
            if root.head() == head:
                raise


def _published_at(root: JobRoot, head: Head, request: SavepointRequest) -> tuple[EntryRef, dict[str, PublishedOutput]]:
    unfinished = bool(pending_of(head)) or head.entry.rewind is not None
    if request.from_head or not unfinished:
        checkpoint = newest_published_checkpoint(root, head)
        return checkpoint, sink_positions_at(head, checkpoint)
    if request.code is None:
        raise _unfinished(head, request)
    job = open_existing(request.code.file, root.storage.uri, request.code.layers)
    head = complete_rewind(root, job.sinks, head)
    publisher = Publisher(root, job.sinks)
    publisher.publish_pending(head)
    if head.checkpoint is None:
        raise DataError("the job has no checkpoint to make a savepoint of", hint="run the job first")
    return head.checkpoint, {**sink_positions_at(head, head.checkpoint), **publisher.published}


def _unfinished(head: Head, request: SavepointRequest) -> ConfigError:
    if (rewind := head.entry.rewind) is not None:
        to = rewind.restore.label if rewind.restore else head.checkpoint_label
        return ConfigError(
            f"a restore to {to} is not completed",
            hint="start the job, or repeat the command with the job file: --job JOB.py; either completes the restore, "
            "which stateflow status shows",
            tables=sorted(rewind.sinks),
        )
    return ConfigError(
        "the log does not record that the output of the newest checkpoint is published, and "
        f"{_reason_for_no_run(head, request)}",
        hint="if no run is active, repeat the command with the job file, which publishes the output: --job JOB.py; if "
        "one is, wait longer for it: --acknowledge-timeout; or copy an older checkpoint: "
        "stateflow savepoint create --from-head",
        checkpoint_id=head.checkpoint_id,
        **_open_run(head),
    )


def with_defaults(root: JobRoot, request: SavepointRequest) -> SavepointRequest:
    """Returns the request with a name and an id."""
    stamp = root.clock.now().strftime("%Y%m%dT%H%M%SZ")
    name, request_id = request.name or f"{request.origin.value}-{stamp}", request.request_id or root.clock.new_id()
    return replace(request, name=name, request_id=request_id)


def _nameless(request: SavepointRequest) -> SavepointRequest:
    return replace(request, name="")
