"""Everything that a start refuses, as one list: a run goes through it and raises the first refusal, `stateflow check`
and `stateflow plan` go through the same list and report all of them.

Two refusals are a run's alone, since finding them changes the storage: a storage that does not create objects
atomically (`stateflow doctor` looks for it), and sink tables that cannot be created.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from importlib import metadata
from typing import TYPE_CHECKING

from stateflow.api.graph import Graph
from stateflow.api.sink import SinkContext
from stateflow.api.source import Source
from stateflow.checkpoint.job_format import NewJob, check_same_job, read_format
from stateflow.clock import Clock
from stateflow.errors import StateflowError
from stateflow.runtime.assembly import check_format, graph_in, open_job
from stateflow.runtime.local import refuse_transforms
from stateflow.runtime.plan import JobPlan, plan_job
from stateflow.runtime.spark_settings import check_master, check_required, check_root, check_sinks
from stateflow.runtime.start_checks import StartChecks
from stateflow.runtime.versions import check_java, check_python, check_spark
from stateflow.settings import Settings
from stateflow.storage import Storage
from stateflow.storage.paths import FORMAT

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


class Needs(StrEnum):
    """What a check looks at, besides the job file and this machine."""

    NOTHING = "nothing"
    ROOT = "the job root"
    FILES = "the files of the newest checkpoint"
    SPARK = "Spark"


@dataclass(frozen=True)
class Start:
    """A start, as far as it is known before it.

    Attributes:
        graph: checked.
        on_spark: whether the job runs on Spark.
        storage: the job root's; None when it is not known.
        reads: the sources by uid, as Spark reads them; empty without a session.
    """

    graph: Graph
    settings: Settings
    on_spark: bool
    clock: Clock
    storage: Storage | None = None
    session: SparkSession | None = None
    reads: tuple[Source, ...] = ()

    @property
    def plan(self) -> JobPlan:
        return plan_job(self.graph, self.settings.parallelism)

    @property
    def has_root(self) -> bool:
        """Whether there is a job root already."""
        return self.storage is not None and self.storage.size(FORMAT) is not None

    @property
    def master(self) -> str:
        """Spark's master; empty where only the launcher knows it."""
        if self.session is not None:
            return str(self.session.sparkContext.master)
        # Under spark-submit the launcher chose one, and settings have no say.
        under_submit = "PYSPARK_GATEWAY_PORT" in os.environ
        return (
            "" if under_submit else self.settings.spark.conf.get("spark.master", self.settings.spark.master)
        )


@dataclass(frozen=True)
class StartCheck:
    """One reason to refuse a start. `check` raises a StateflowError."""

    name: str
    needs: Needs
    check: Callable[[Start], None]


def refusals(
    start: Start, needs: Sequence[Needs], checks: Sequence[StartCheck] = ()
) -> Iterator[StateflowError]:
    """What a run would be refused for, as far as the named needs go.

    Args:
        checks: instead of `CHECKS`.
    """
    for each in checks or CHECKS:
        if each.needs in needs:
            try:
                each.check(start)
            except StateflowError as e:
                yield e


def refuse(start: Start, needs: Sequence[Needs], checks: Sequence[StartCheck] = ()) -> None:
    """Raises the first of the refusals, if there is one."""
    for error in refusals(start, needs, checks):
        raise error


def _machine(start: Start) -> None:
    check_python()
    if start.on_spark:
        check_java()
        check_spark(metadata.version("pyspark"))


def _spark_settings(start: Start) -> None:
    if start.on_spark:
        check_required(start.settings.spark.conf)
        check_master(start.master)


def _sink_hosts(start: Start) -> None:
    if start.on_spark and start.master:
        check_sinks(start.graph.sinks, start.master, start.settings.storage.shared)


def _root_hosts(start: Start) -> None:
    if start.on_spark and start.master and start.storage is not None:
        check_root(start.storage, start.master, start.settings.storage.shared)


def _session_hosts(start: Start) -> None:
    """The same once more: under spark-submit, only the session knows the master."""
    _sink_hosts(start)
    _root_hosts(start)


def _runner(start: Start) -> None:
    if not start.on_spark:
        refuse_transforms(start.plan)


def _source_settings(start: Start) -> None:
    for node in start.graph.sources:
        if isinstance(node.source, Source):
            node.source.check_settings(start.settings.source)


def _sink_tables(start: Start) -> None:
    graph = start.graph
    if start.has_root:
        assert start.storage is not None
        graph = graph_in(read_format(start.storage), graph)
    for node in graph.sinks:
        node.sink.check(SinkContext("", node.uid, node.parent.schema))


def _job_root(start: Start) -> None:
    storage, settings = start.storage, start.settings
    assert storage is not None
    check_format(storage)
    if start.has_root:
        new = NewJob(settings.name, settings.max_parallelism, start.plan.key_types)
        check_same_job(read_format(storage), new, storage.uri)


def _checkpoint(start: Start) -> None:
    if checks := _start_checks(start):
        checks.without_files()


def _checkpoint_files(start: Start) -> None:
    if checks := _start_checks(start):
        checks.before_claim()


def _start_checks(start: Start) -> StartChecks | None:
    if not start.has_root:
        return None
    assert start.storage is not None
    return StartChecks(open_job(start.graph, start.settings, start.storage, start.clock), start.on_spark)


def _source_columns(start: Start) -> None:
    for source in start.reads:
        source.check(_session(start))


def _source_frames(start: Start) -> None:
    from stateflow.runtime.frames import check_frame

    for source in start.reads:
        check_frame(source, _session(start), start.settings.source)


def _transforms(start: Start) -> None:
    from stateflow.runtime.frames import check_transforms

    check_transforms(_session(start), start.plan)


def _session(start: Start) -> SparkSession:
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
    StartCheck("checkpoint", Needs.ROOT, _checkpoint),
    StartCheck("checkpoint-files", Needs.FILES, _checkpoint_files),
    StartCheck("session-hosts", Needs.SPARK, _session_hosts),
    StartCheck("source-columns", Needs.SPARK, _source_columns),
    StartCheck("source-frames", Needs.SPARK, _source_frames),
    StartCheck("transforms", Needs.SPARK, _transforms),
)
"""In the order in which a run goes through them: what is fast and needs little first."""


def not_checked(start: Start) -> tuple[str, ...]:
    """What no check has looked at, for people: what only Spark knows, without a session, and what nothing looks at."""
    if not start.on_spark:
        return ()
    sources = [(n.uid, n.source) for n in start.graph.sources if isinstance(n.source, Source)]
    if start.session is not None:
        return tuple(f"source {uid}: {source.unchecked}" for uid, source in sources if source.unchecked)
    found = [f"source {uid}: {source.unchecked or 'columns of the files'}" for uid, source in sources]
    return tuple(
        f"{what} (needs Spark)" for what in (*found, "what transforms return", "Spark's own settings")
    )


def warnings(start: Start) -> tuple[str, ...]:
    """What is likely to make a run fail, and does not refuse it; without a session nothing is known of it."""
    session = start.session
    if session is None:
        return ()
    sources = [(n.uid, n.source) for n in start.graph.sources if isinstance(n.source, Source)]
    return tuple(
        f"source {uid}: {warning}" for uid, source in sources for warning in source.warnings(session)
    )


def reused_tables(start: Start) -> tuple[str, ...]:
    """A sentence for each sink of a job root that does not exist yet whose table another job's sink of the same uid has
    written: what a mistyped job root looks like."""
    if start.storage is None or start.has_root:
        return ()
    contexts = [(node.sink, SinkContext("", node.uid, node.parent.schema)) for node in start.graph.sinks]
    return tuple(
        f"sink {context.uid}: a job with another job root has written {sink.location}, and {start.storage.uri} is new: "
        "its first run reads all input, and adds its rows to that table. Check the job root"
        for sink, context in contexts
        if sink.other_jobs(context)
    )


def with_session(start: Start, session: SparkSession, reads: Sequence[Source]) -> Start:
    """The start, with Spark running."""
    return replace(start, session=session, reads=tuple(reads))
