"""Savepoints that are written from files, for a job file; and changed copies of savepoints."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from stateflow.api.source import StartKind
from stateflow.bootstrap.spark_checkpoint.checkpoint import SparkCheckpoint
from stateflow.bootstrap.state_files.frames import StateFiles, add_states, parse_states
from stateflow.bootstrap.writer import SavepointWriter
from stateflow.checkpoint.log.documents import Savepoint
from stateflow.checkpoint.savepoints.catalog import savepoint_at
from stateflow.config.sources import SettingsLayer
from stateflow.errors import ConfigError
from stateflow.launch import prepare
from stateflow.runtime.planning.declared_descriptors import declared_operators
from stateflow.runtime.planning.physical_plan import JobPlan
from stateflow.similar_names import did_you_mean
from stateflow.types.key_groups import DEFAULT_MAX_PARALLELISM

_SPARK = "spark:"
_POSITIONS = ("timestamp:", "position:", "{", "[")


@dataclass(frozen=True)
class WriteRequest:
    """A savepoint to write.

    Attributes:
        job_file: the job that starts from it, which declares operators, states and sources.
        output: path or URI of the folder of the savepoint.
        states: files of states, each as ``OPERATOR.STATE=FILES``.
        sources: positions of sources, each as ``UID=POSITION``; or ``UID=spark:CHECKPOINT``.
        layers: settings in addition to those of the job file.
        max_parallelism: number of key groups; by default that of the job's settings, or 128.
        parallelism: number of subtasks whose state is written; by default 4.
        name: name of the savepoint; by default that of the folder.
        at: the time of the savepoint; by default that of a savepoint which is in the folder already, or now.
        reason: why it is written, for display.
        on_step: called before each slow step with its description.
    """

    job_file: Path
    output: str
    states: tuple[str, ...] = ()
    sources: tuple[str, ...] = ()
    layers: tuple[SettingsLayer, ...] = ()
    max_parallelism: int | None = None
    parallelism: int | None = None
    name: str = ""
    at: datetime | None = None
    reason: str = ""
    on_step: Callable[[str], None] = lambda step: None


@dataclass(frozen=True)
class WrittenState:
    """A state of a written savepoint.

    Attributes:
        operator: uid of the operator.
        state: name of the state, as for `stateflow.read_state`.
        files: number of files.
        rows: number of their rows.
    """

    operator: str
    state: str
    files: int
    rows: int


@dataclass(frozen=True)
class WrittenSavepoint:
    """A savepoint that was written.

    Attributes:
        path: URI of its folder.
        name: its name.
        job: name of the job.
        max_parallelism: number of key groups.
        bytes: size of its state.
        operators: uids of its operators.
        states: the states that were written.
        sources: the position of each source, by uid.
        without_position: uids of sources of the job without a position: they begin at their start.
    """

    path: str
    name: str
    job: str
    max_parallelism: int
    bytes: int
    operators: list[str]
    states: list[WrittenState]
    sources: dict[str, str]
    without_position: list[str]


@dataclass(frozen=True)
class ChangeRequest:
    """A changed copy of a savepoint.

    Attributes:
        savepoint: path or URI of the folder of the savepoint, which stays as it is.
        output: path or URI of the folder of the copy.
        remove: uids of the operators that the copy does not have.
        name: name of the copy; by default that of its folder.
        reason: why it is written, for display.
    """

    savepoint: str
    output: str
    remove: tuple[str, ...]
    name: str = ""
    reason: str = ""


def write_savepoint(request: WriteRequest) -> WrittenSavepoint:
    """Writes a savepoint from files with the columns of `stateflow.read_state`; starts no Spark.

    Calls `build` of the job file, and `open` of copies of its functions to find the declared states. The files are read
    in parts. If the call is killed, no savepoint exists, and the same call writes it again.

    Raises:
        ConfigError: a state, source, file, column or position does not exist or is not valid, or another savepoint is
            in the folder.
        DataError, SchemaMismatch, StateError, EntryTooLarge: a row cannot be stored; the error has its key.
        UserCodeError, JobDefinitionError: the job file cannot be used.
    """
    request.on_step(f"loading {request.job_file}")
    start = prepare(request.job_file, layers=request.layers).start
    groups = request.max_parallelism or start.settings.max_parallelism or DEFAULT_MAX_PARALLELISM
    writer = SavepointWriter.new(
        start.settings.name,
        max_parallelism=groups,
        parallelism=request.parallelism,
        on_spark=start.on_spark,
        clock=start.clock,
    )
    operators = declared_operators(start.plan, groups)
    given = parse_states(request.states, operators, groups)
    _add_sources(writer, request.sources, start.plan)
    add_states(writer, given, operators, request.on_step)
    uri = writer.write(request.output, name=request.name, at=request.at, reason=request.reason)
    document = savepoint_at(uri).document
    begun = {position.uid for position in document.manifest.sources}
    missing = [node.uid for node in start.plan.sources if node.uid not in begun]
    return _report(uri, document, given, missing)


def change_savepoint(request: ChangeRequest) -> WrittenSavepoint:
    """Writes a changed copy of a savepoint.

    Raises:
        ConfigError: the savepoint or an operator does not exist, or another savepoint is in the folder.
        MissingFile, CorruptFile: a file of the savepoint is missing or damaged.
    """
    writer = SavepointWriter.from_savepoint(request.savepoint)
    for uid in request.remove:
        writer.without_operator(uid)
    uri = writer.write(request.output, name=request.name, reason=request.reason)
    return _report(uri, savepoint_at(uri).document, (), ())


def _add_sources(writer: SavepointWriter, options: Iterable[str], plan: JobPlan) -> None:
    sources = {node.uid: node.source for node in plan.sources}
    for option in options:
        uid, _, text = (part.strip() for part in option.partition("="))
        if uid not in sources:
            raise ConfigError(
                "the job has no source with this uid", hint=did_you_mean(uid, sources), uid=uid, known=sorted(sources)
            )
        if text.startswith(_SPARK):
            path, number = _numbered(text.removeprefix(_SPARK))
            query = SparkCheckpoint(path)
            watermark = query.watermark if uid in plan.strategies else None
            writer.with_source(uid, sources[uid], query.source_position(sources[uid], number), watermark=watermark)
        elif text in tuple(StartKind) or text.startswith(_POSITIONS):
            writer.with_source(uid, sources[uid], text)
        else:
            raise ConfigError(
                "a source's position is not known",
                hint="use UID=earliest, latest, timestamp:TIME, position:TEXT, the position's JSON, or "
                "spark:CHECKPOINT",
                source=option,
            )


def _numbered(text: str) -> tuple[str, int | None]:
    """Returns the path of a query's checkpoint, and the number of the source after a ``#``; None without one."""
    path, separator, number = text.rpartition("#")
    return (path, int(number)) if separator and number.isdecimal() else (text, None)


def _report(
    uri: str, document: Savepoint, given: Iterable[StateFiles], without_position: Iterable[str]
) -> WrittenSavepoint:
    manifest = document.manifest
    return WrittenSavepoint(
        path=uri,
        name=document.name,
        job=document.job,
        max_parallelism=document.max_parallelism,
        bytes=manifest.full_bytes,
        operators=[operator.uid for operator in manifest.operators],
        states=[WrittenState(each.operator, each.state, len(each.rows.files), each.rows.read) for each in given],
        sources={position.uid: position.offset for position in manifest.sources},
        without_position=list(without_position),
    )
