"""Savepoints that are written from files, for a job file."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING

from stateflow.api.source import StartKind
from stateflow.bootstrap.document import time_of_savepoint
from stateflow.bootstrap.layout import SavepointFolder
from stateflow.bootstrap.spark_imported_states import PREFIX, SOURCE, ImportedState, QueryAddress, SparkQueries
from stateflow.bootstrap.state_files import StateFiles, add_states, parse_states
from stateflow.bootstrap.writer import SavepointWriter
from stateflow.checkpoint.log.documents import Savepoint
from stateflow.checkpoint.savepoints.catalog import savepoint_at
from stateflow.config.sources import SettingsLayer
from stateflow.errors import ConfigError
from stateflow.helpers import did_you_mean
from stateflow.launch import prepare
from stateflow.operations.job_root import offsets_of
from stateflow.outputs import Offset, OptionalText
from stateflow.runtime.planning.physical_plan import JobPlan
from stateflow.runtime.planning.state_discovery import discover_operators
from stateflow.storage import open_location
from stateflow.types.key_groups import DEFAULT_MAX_PARALLELISM

if TYPE_CHECKING:
    from stateflow.bootstrap.spark_imported_states import SparkSession
    from stateflow.runtime.preflight import StartContext

_POSITIONS = ("timestamp:", "position:", "{", "[")


@dataclass(frozen=True)
class WriteRequest:
    """A savepoint to write.

    Attributes:
        job_file: the job that starts from it, which declares operators, states and sources.
        output: path or URI of the folder of the savepoint.
        states: files of states, each as ``OPERATOR.STATE=FILES``; or ``OPERATOR.STATE=spark:CHECKPOINT`` for state of
            a query of Spark's Structured Streaming.
        sources: positions of sources, each as ``UID=POSITION``; or ``UID=spark:CHECKPOINT``.
        columns: columns of states of queries, each as ``OPERATOR.STATE.COLUMN=EXPRESSION`` of Spark's SQL.
        layers: settings in addition to those of the job file.
        max_parallelism: number of key groups; by default that of the job's settings, or 128.
        parallelism: number of subtasks whose state is written; by default 4.
        name: name of the savepoint; by default that of the folder.
        at: the time of the savepoint; by default that of a savepoint which is in the folder already, or now.
        reason: why it is written, for display.
        on_step: called before each slow step with its description.
        by: who writes it, for display; by default the user of the operating system.
    """

    job_file: Path
    output: str
    states: tuple[str, ...] = ()
    sources: tuple[str, ...] = ()
    columns: tuple[str, ...] = ()
    layers: tuple[SettingsLayer, ...] = ()
    max_parallelism: int | None = None
    parallelism: int | None = None
    name: str = ""
    at: datetime | None = None
    reason: str = ""
    on_step: Callable[[str], None] = lambda step: None
    by: str = ""


@dataclass(frozen=True)
class WrittenState:
    """A state of a written savepoint.

    Attributes:
        operator: uid of the operator.
        state: name of the state, as for `stateflow.read_state`.
        files: number of files; 0 for state of a query of Spark.
        rows: number of their rows; None for state of a query of Spark.
        imported_from: path of the checkpoint of the query; empty for files.
    """

    operator: str
    state: str
    files: int
    rows: int | None
    imported_from: OptionalText = ""


@dataclass(frozen=True)
class WrittenSavepoint:
    """A savepoint that was written.

    Attributes:
        path: URI of its folder.
        name: its name.
        job: name of the job.
        max_parallelism: number of key groups.
        size_bytes: size of its state.
        operators: uids of its operators.
        states: the states that were written.
        offsets: the position of each source, by uid.
        without_position: uids of sources of the job without a position: they begin at their start.
    """

    path: str
    name: str
    job: str
    max_parallelism: int
    size_bytes: int
    operators: list[str]
    states: list[WrittenState]
    offsets: dict[str, Offset]
    without_position: list[str]


def write_savepoint(request: WriteRequest) -> WrittenSavepoint:
    """Writes a savepoint from files with the columns of `stateflow.read_state`, or from states of queries of Spark.

    Starts Spark only for such states, with the settings of the job. Calls `build` of the job file, and `open` of copies
    of its functions to find the declared states. The files are read in parts. If the call is killed, no savepoint
    exists, and the same call writes it again.

    Raises:
        ConfigError: a state, source, file, column or position does not exist or is not valid, or another savepoint is
            in the folder.
        DataError, SchemaMismatch, StateError, EntryTooLarge: a row cannot be stored; the error has its key.
        UserCodeError, JobDefinitionError: the job file cannot be used.
    """
    request.on_step(f"loading {request.job_file}")
    start = prepare(request.job_file, layers=request.layers).start
    groups = request.max_parallelism or start.settings.max_parallelism or DEFAULT_MAX_PARALLELISM
    operators = discover_operators(start.plan, groups)
    given: list[StateFiles | ImportedState] = []

    def write() -> str:
        queries = SparkQueries(lambda: _opened_spark(start, request))
        given[:] = parse_states(request.states, operators, groups, request.columns)
        writer = SavepointWriter.new(
            start.settings.name,
            max_parallelism=groups,
            parallelism=request.parallelism,
            on_spark=start.on_spark,
            clock=start.clock,
        )
        _add_sources(writer, request.sources, start.plan, queries)
        add_states(writer, given, operators, queries, request.on_step)
        return writer.write(request.output, name=request.name, at=request.at, reason=request.reason, by=request.by)

    uri = write_at_one_time(request.output, request.at, write)
    document = savepoint_at(uri).document
    begun = {position.uid for position in document.manifest.sources}
    missing = [node.uid for node in start.plan.sources if node.uid not in begun]
    return report_of(uri, document, given, missing)


def write_at_one_time(output: str, at: datetime | None, write: Callable[[], str]) -> str:
    """Writes a savepoint, and writes it again if another call has completed one in the folder meanwhile.

    Without a time, each of two calls that begin together has its own, and so have the entries from which a time to live
    counts. The second attempt takes the time of the savepoint that it finds, so that both calls return it if they write
    the same.

    Args:
        output: path or URI of the folder.
        at: the time that the user has stated; None without one.
        write: writes the savepoint and returns the URI of its folder; called a second time at most.

    Raises:
        StateflowError: what `write` raises.
    """
    if at is not None or time_of_savepoint(SavepointFolder(open_location(output), "")) is not None:
        return write()
    try:
        return write()
    except ConfigError as e:
        if "made_at" not in e.facts:
            raise
        return write()


def _opened_spark(start: StartContext, request: WriteRequest) -> SparkSession:
    # Importing Spark takes a second, which a savepoint from files saves.
    from stateflow.runtime.spark.session.session import job_traits, open_session

    request.on_step("starting Spark")
    # Spark copies the files of a query's RocksDB by FileSystem.getLocal, which fails with the implementation that runs
    # use for want of checksum files.
    conf = {"spark.hadoop.fs.file.impl": "org.apache.hadoop.fs.LocalFileSystem", **start.settings.spark.conf}
    settings = replace(start.settings, spark=replace(start.settings.spark, conf=conf))
    return open_session(settings, job_traits(start.graph))


def _add_sources(writer: SavepointWriter, options: Iterable[str], plan: JobPlan, queries: SparkQueries) -> None:
    sources = {node.uid: node.source for node in plan.sources}
    for option in options:
        uid, _, text = (part.strip() for part in option.partition("="))
        if uid not in sources:
            raise ConfigError(
                "the job has no source with this uid", hint=did_you_mean(uid, sources), uid=uid, known=sorted(sources)
            )
        if text.startswith(PREFIX):
            address = QueryAddress.of_source(text.removeprefix(PREFIX))
            query = queries.checkpoint(address)
            watermark = query.watermark if uid in plan.strategies else None
            position = query.source_position(sources[uid], address.numbers.get(SOURCE))
            writer.with_source(uid, sources[uid], position, watermark=watermark)
        elif text in tuple(StartKind) or text.startswith(_POSITIONS):
            writer.with_source(uid, sources[uid], text)
        else:
            raise ConfigError(
                "a source's position is not known",
                hint="use UID=earliest, latest, timestamp:TIME, position:TEXT, the position's JSON, or "
                "spark:CHECKPOINT",
                source=option,
            )


def report_of(
    uri: str,
    document: Savepoint,
    given: Iterable[StateFiles | ImportedState] = (),
    without_position: Iterable[str] = (),
) -> WrittenSavepoint:
    """Returns the description of a savepoint that was written.

    Args:
        uri: URI of its folder.
        document: its document.
        given: the states that were written.
        without_position: uids of sources of the job without a position.
    """
    manifest = document.manifest
    return WrittenSavepoint(
        path=uri,
        name=document.name,
        job=document.job,
        max_parallelism=document.max_parallelism,
        size_bytes=manifest.full_bytes,
        operators=[operator.uid for operator in manifest.operators],
        states=[_written(each) for each in given],
        offsets=offsets_of(manifest.sources),
        without_position=list(without_position),
    )


def _written(given: StateFiles | ImportedState) -> WrittenState:
    if isinstance(given, ImportedState):
        return WrittenState(given.operator, given.state, 0, None, given.address.path)
    return WrittenState(given.operator, given.state, len(given.rows.files), given.rows.read)
