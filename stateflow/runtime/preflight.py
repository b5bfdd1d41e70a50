"""All checks of a start in one list. A run raises the first error; `check` and `explain` report all.

Two checks are made by a run only, because they change the storage: whether the storage creates objects atomically
(`stateflow doctor` checks it, too), and whether sink tables can be created.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import TYPE_CHECKING

from stateflow.api.graph import Graph, TransformNode, with_ancestors
from stateflow.api.joins.lookup_join import LookupJoin
from stateflow.api.sink import CatalogEntry, Delivery, PrintSink, SinkContext
from stateflow.api.source import Source, check_limits, limits_of
from stateflow.checkpoint.log.job_root import NewJob, check_same_job, read_format
from stateflow.clock import Clock
from stateflow.config import spark_versions
from stateflow.config.settings import EXACTLY_ONCE, Settings, SourceSettings
from stateflow.config.spark_versions import find_release
from stateflow.errors import SchemaMismatch, SinkDiverged, SinkRefused, StateflowError
from stateflow.runtime.job import StartChecks
from stateflow.runtime.job_loader import check_format, check_unshared_tables, graph_of_job_root, open_job
from stateflow.runtime.planning.physical_plan import JobPlan, check_no_transforms, plan_job
from stateflow.runtime.spark.session.requirements import (
    check_classic,
    check_java,
    check_master,
    check_python,
    check_required,
    check_root,
    check_sinks,
    check_spark,
    warn_of_untested,
)
from stateflow.storage import Storage
from stateflow.storage.paths import FORMAT

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


class Needs(StrEnum):
    """Resources that a check needs in addition to the job file and this machine."""

    NOTHING = "nothing"
    ROOT = "the job root"
    FILES = "the files of the newest checkpoint"
    SPARK = "Spark"


@dataclass(frozen=True)
class StartContext:
    """The job that is about to start.

    Attributes:
        graph: a checked graph.
        on_spark: whether the job runs on Spark.
        storage: storage of the job root; None if the job root is not known.
        session: None before Spark starts.
        reads: the sources as Spark reads them, in order of uids; empty without a session.
        shares_tables: whether sinks of the same uid of other job roots may write to the tables, too.
    """

    graph: Graph
    settings: Settings
    on_spark: bool
    clock: Clock
    storage: Storage | None = None
    session: SparkSession | None = None
    reads: tuple[Source, ...] = ()
    shares_tables: bool = False

    @property
    def plan(self) -> JobPlan:
        """The physical plan of the graph."""
        return plan_job(self.graph, self.settings.parallelism)

    @property
    def has_root(self) -> bool:
        """Whether the job root exists."""
        return self.storage is not None and self.storage.size(FORMAT) is not None

    @property
    def master(self) -> str:
        """The URL of Spark's master; empty if only spark-submit knows it."""
        if self.session is not None:
            return str(self.session.sparkContext.master)
        # spark-submit determines the master, whatever the settings say.
        under_submit = "PYSPARK_GATEWAY_PORT" in os.environ
        return "" if under_submit else self.settings.spark.conf.get("spark.master", self.settings.spark.master)


@dataclass(frozen=True)
class StartCheck:
    """One check of a start. `check` raises a StateflowError if the job must not start."""

    name: str
    needs: Needs
    check: Callable[[StartContext], None]


def start_errors(
    start: StartContext, needs: Sequence[Needs], checks: Sequence[StartCheck] = ()
) -> Iterator[StateflowError]:
    """Runs the checks with the given needs and yields their errors.

    Args:
        checks: the checks to run; by default `CHECKS`.
    """
    for each in checks or CHECKS:
        if each.needs in needs:
            try:
                each.check(start)
            except StateflowError as e:
                yield e


def check_start(start: StartContext, needs: Sequence[Needs], checks: Sequence[StartCheck] = ()) -> None:
    """Runs the checks with the given needs; raises the first error."""
    for error in start_errors(start, needs, checks):
        raise error


def _machine(start: StartContext) -> None:
    check_python()
    if start.on_spark:
        check_spark(find_release())
        check_classic(start.settings.spark.conf)
        check_java()


def _spark_settings(start: StartContext) -> None:
    if start.on_spark:
        check_required(start.settings.spark.conf)
        check_master(start.master)


def _sink_hosts(start: StartContext) -> None:
    if start.on_spark and start.master:
        check_sinks(start.graph.sinks, start.master, start.settings.storage.shared)


def _root_hosts(start: StartContext) -> None:
    if start.on_spark and start.master and start.storage is not None:
        check_root(start.storage, start.master, start.settings.storage.shared)


def _session_hosts(start: StartContext) -> None:
    """Checks the hosts again: under spark-submit, only the session knows the master."""
    _sink_hosts(start)
    _root_hosts(start)


def _runner(start: StartContext) -> None:
    if not start.on_spark:
        check_no_transforms(start.plan)


def _source_settings(start: StartContext) -> None:
    check_limits({node.uid: node.source for node in start.graph.sources}, start.settings.source)
    for node in start.graph.sources:
        node.source.check_settings(limits_of(node.uid, node.source, start.settings.source))
    for table in _lookup_tables(start.graph):
        table.check_settings(SourceSettings())


def _lookup_tables(graph: Graph) -> Iterator[Source]:
    """Yields the sources that read tables of look-up joins."""
    for node in set(with_ancestors(sink.parent for sink in graph.sinks)):
        if isinstance(node, TransformNode) and isinstance(node.function, LookupJoin):
            table = node.function.source
            if table is not None:
                yield table


def _sink_tables(start: StartContext) -> None:
    for node in _graph(start).sinks:
        node.sink.check(SinkContext("", node.uid, node.parent.schema))


def _shared_tables(start: StartContext) -> None:
    if not (start.has_root or start.shares_tables):
        check_unshared_tables(start.graph)


def _job_root(start: StartContext) -> None:
    storage, settings = start.storage, start.settings
    assert storage is not None
    check_format(storage)
    if start.has_root:
        new = NewJob(settings.name, settings.max_parallelism, start.plan.key_types)
        check_same_job(read_format(storage), new, storage.uri)


def _checkpoint(start: StartContext) -> None:
    if checks := _start_checks(start):
        checks.without_files()


def _checkpoint_files(start: StartContext) -> None:
    if checks := _start_checks(start):
        checks.before_claim()


def _taken_over_tables(start: StartContext) -> None:
    checks = _start_checks(start)
    head = checks.job.root.log.read_head() if checks else None
    if checks is None or head is None:
        return
    for uid in sorted(checks.job.sinks.keys() & head.entry.published.keys()):
        try:
            # Raises Fenced if another job root has taken the table over.
            checks.job.sinks[uid].open_table()
        except (SchemaMismatch, SinkDiverged, SinkRefused):
            continue  # found by the checks of tables and of the checkpoint


def _start_checks(start: StartContext) -> StartChecks | None:
    if not start.has_root:
        return None
    assert start.storage is not None
    return StartChecks(open_job(start.graph, start.settings, start.storage, start.clock), start.on_spark)


def _source_columns(start: StartContext) -> None:
    from stateflow.runtime.spark.frames import errors_of_spark

    for source in start.reads:
        with errors_of_spark(source):
            source.check(_session(start))


def _source_frames(start: StartContext) -> None:
    from stateflow.runtime.spark.frames import check_frame

    for node, source in zip(start.graph.sources, start.reads, strict=False):
        check_frame(source, _session(start), limits_of(node.uid, source, start.settings.source))


def _transforms(start: StartContext) -> None:
    from stateflow.runtime.spark.frames import check_transforms

    check_transforms(_session(start), start.plan)


def _catalog(start: StartContext) -> None:
    from stateflow.runtime.spark.table_registration import check_entry

    for entry in _entries(start):
        check_entry(_session(start), entry)


def _entries(start: StartContext) -> list[CatalogEntry]:
    """Returns the names of tables that a run registers. A shadow's tables have none."""
    return [entry for node in _graph(start).sinks if (entry := node.sink.catalog_entry) is not None]


def _graph(start: StartContext) -> Graph:
    """Returns the graph as it runs in the job root."""
    if not start.has_root:
        return start.graph
    assert start.storage is not None
    return graph_of_job_root(read_format(start.storage), start.graph)


def _session(start: StartContext) -> SparkSession:
    assert start.session is not None
    return start.session


CHECKS = (
    StartCheck("machine", Needs.NOTHING, _machine),
    StartCheck("spark-settings", Needs.NOTHING, _spark_settings),
    StartCheck("runner", Needs.NOTHING, _runner),
    StartCheck("sink-hosts", Needs.NOTHING, _sink_hosts),
    StartCheck("source-settings", Needs.NOTHING, _source_settings),
    StartCheck("sink-tables", Needs.NOTHING, _sink_tables),
    StartCheck("root-hosts", Needs.ROOT, _root_hosts),
    StartCheck("job-root", Needs.ROOT, _job_root),
    StartCheck("shared-tables", Needs.ROOT, _shared_tables),
    StartCheck("checkpoint", Needs.ROOT, _checkpoint),
    StartCheck("checkpoint-files", Needs.FILES, _checkpoint_files),
    StartCheck("taken-over-tables", Needs.FILES, _taken_over_tables),
    StartCheck("session-hosts", Needs.SPARK, _session_hosts),
    StartCheck("catalog", Needs.SPARK, _catalog),
    StartCheck("source-columns", Needs.SPARK, _source_columns),
    StartCheck("source-frames", Needs.SPARK, _source_frames),
    StartCheck("transforms", Needs.SPARK, _transforms),
)
"""All checks in the order of a run: fast checks with few needs first."""


def describe_unchecked(start: StartContext) -> tuple[str, ...]:
    """Returns descriptions of what the checks did not cover, such as what only a Spark session can determine."""
    if not start.on_spark:
        return ()
    sources = [(n.uid, n.source) for n in start.graph.sources if isinstance(n.source, Source)]
    if start.session is not None:
        return tuple(f"source {uid}: {source.unchecked}" for uid, source in sources if source.unchecked)
    found = [f"source {uid}: {source.unchecked or _unread(source)}" for uid, source in sources]
    found += [f"the name {entry.text} in the catalog" for entry in _entries(start)]
    return tuple(f"{what} (needs Spark)" for what in (*found, "what transforms return", "Spark's own settings"))


def _unread(source: Source) -> str:
    return "its data" if source.files_address is None else "columns of the files"


def warnings(start: StartContext) -> tuple[str, ...]:
    """Returns what is likely to make a run fail but does not prevent its start; empty without a session."""
    session = start.session
    if session is None:
        return ()
    from stateflow.runtime.spark.table_registration import warn_of_lost_names

    sources = [(n.uid, n.source) for n in start.graph.sources if isinstance(n.source, Source)]
    found = [f"source {uid}: {warning}" for uid, source in sources for warning in source.warnings(session)]
    return (*found, *warn_of_lost_names(session, _entries(start)))


def warn_of_repeated_output(start: StartContext) -> tuple[str, ...]:
    """Returns a warning for each sink that may pass on rows again, if the mode of checkpoints is exactly-once.

    A sink that prints is for debugging, and gets none.
    """
    if start.settings.checkpoints.mode != EXACTLY_ONCE:
        return ()
    return tuple(
        f"sink {node.uid}: {node.sink!r} may receive the rows of a checkpoint again after a failure, although "
        "checkpoints.mode is exactly-once. Let it ignore repetitions, and declare it with idempotent=True"
        for node in start.graph.sinks
        if node.sink.delivery is Delivery.AT_LEAST_ONCE and not isinstance(node.sink, PrintSink)
    )


def warn_of_unregistered_tables(start: StartContext) -> tuple[str, ...]:
    """Returns a warning for each table that has a name in Spark's catalog, if the job runs without Spark."""
    if start.on_spark:
        return ()
    return tuple(
        f"the table {e.location} is not registered as {e.text}: the job runs without Spark"
        for node in start.graph.sinks
        if (e := node.sink.catalog_entry) is not None
    )


def warn_of_untested_versions(start: StartContext) -> tuple[str, ...]:
    """Returns a warning for each version of Spark, Java and Python that is supported and was not tested."""
    if not start.on_spark:
        return warn_of_untested()
    try:
        return (*spark_versions.warn_of_untested(find_release()), *warn_of_untested(check_java().major))
    except StateflowError:
        return ()  # found by the check of the machine


def with_session(start: StartContext, session: SparkSession, reads: Sequence[Source]) -> StartContext:
    """Returns the start with a Spark session and the sources that it reads."""
    return replace(start, session=session, reads=tuple(reads))
