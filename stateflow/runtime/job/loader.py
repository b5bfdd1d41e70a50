"""Loads a job file, checks the job, and opens its root."""

from __future__ import annotations

import os
import socket
from pathlib import Path
from types import ModuleType

from stateflow.api.graph.job_graph import Graph
from stateflow.api.sink import SinkContext
from stateflow.checkpoint.log.documents import JobFormat
from stateflow.checkpoint.log.job_format import NewJob, check_same_job, read_format
from stateflow.checkpoint.log.job_root import JobRoot
from stateflow.checkpoint.log.storage_probe import probe_job_root
from stateflow.clock import Clock
from stateflow.config.settings import Settings
from stateflow.errors import JobDefinitionError, MissingFile, StateflowError
from stateflow.runtime.job.job import Job
from stateflow.runtime.job.modules import job_modules
from stateflow.runtime.planning.physical_plan import JobPlan, plan_job
from stateflow.runtime.publisher import BoundSink
from stateflow.runtime.user_code import naming_job_line
from stateflow.storage import Storage
from stateflow.storage.paths import FORMAT, LOG
from stateflow.user_lines import import_hint, line_of_user


def load_job(path: Path) -> ModuleType:
    """Loads a job file, with the modules next to it that it imports; forgets another one that was loaded before.

    Raises:
        JobDefinitionError: the file does not exist, cannot be imported, or defines no `build`.
    """
    job_modules.clear()
    module = load_file(path, "job file")
    if not callable(getattr(module, "build", None)):
        raise JobDefinitionError(
            "the job file does not define build(env)",
            hint="add def build(env: StreamExecutionEnvironment) -> None",
            path=str(path),
        )
    return module


def load_file(path: Path, what: str) -> ModuleType:
    """Loads a file of Python as a module that can be imported under its own name.

    Args:
        path: the file.
        what: what the file is, for errors, such as ``job file``.

    Raises:
        JobDefinitionError: the file does not exist or cannot be imported.
    """
    if not is_file(path):
        raise JobDefinitionError(f"the {what} does not exist", hint="check the path", path=str(path))
    if not path.stem.isidentifier():
        raise JobDefinitionError(
            f"the name of the {what} is not a Python identifier", hint="use letters, digits and _", path=str(path)
        )
    try:
        with naming_job_line():
            return job_modules.load(path)
    except StateflowError:
        raise
    except ImportError as e:
        raise _cannot_import(path, what, e) from e
    except (Exception, SystemExit) as e:
        raise JobDefinitionError(
            f"the {what} cannot be imported: {type(e).__name__}: {e}",
            hint=f"run python {path.name} with the same Python to see the traceback",
            path=str(path),
            where=line_of_user(e),
        ) from e


def _cannot_import(path: Path, what: str, error: ImportError) -> JobDefinitionError:
    """Returns the error for an import that failed in a file or in a module that it imports."""
    hint = "correct the import"
    if isinstance(error, ModuleNotFoundError):
        hint = import_hint(error)
    elif "relative import" in str(error):
        hint = "import a module next to the file by its name, or make the folder a package with __init__.py"
    return JobDefinitionError(
        f"the {what} cannot be imported: {error}", hint=hint, path=str(path), where=line_of_user(error)
    )


def is_file(path: Path) -> bool:
    """Returns whether a file exists, also for a path that cannot be one, such as one with a name that is too long."""
    try:
        return path.is_file()
    except OSError:
        return False


def create_or_open_job(
    graph: Graph, settings: Settings, storage: Storage, clock: Clock, *, shares_tables: bool = False
) -> Job:
    """Checks job and sinks without changing anything, then opens or creates the job root.

    Args:
        graph: the graph that the job file declares.
        settings: the settings of the run.
        storage: the job root.
        clock: the clock of the run.
        shares_tables: whether sinks of the same uid of other job roots may write to the tables, too.

    Raises:
        ConfigError, WrongJobRoot: the storage or its job root does not fit the job, or another job root writes to a
            table.
        EnvironmentUnsupported: the storage lacks an operation that the log needs.
        SinkRefused, SchemaMismatch: a sink's table does not fit.
    """
    plan = plan_job(graph, settings.parallelism)
    new = NewJob(settings.name, settings.max_parallelism, plan.key_types)
    # First: a root whose FORMAT is lost would look like a new one over the tables of its own job.
    check_format(storage)
    is_new = storage.size(FORMAT) is None
    if not is_new:
        found = read_format(storage)
        check_same_job(found, new, storage.uri)
        graph = graph_of_job_root(found, graph)
    for node in graph.sinks:
        node.sink.check(SinkContext("", node.uid, node.parent.schema))
    if is_new and not shares_tables:
        check_unshared_tables(graph)
    return _bind(_open_root(storage, clock, new), graph, settings, shares_tables)


def check_unshared_tables(graph: Graph) -> None:
    """Raises ConfigError if another job root writes to a table, for a job root that does not exist yet."""
    for node in graph.sinks:
        BoundSink(node.sink, SinkContext("", node.uid, node.parent.schema)).check_unshared()


def open_job(graph: Graph, settings: Settings, storage: Storage, clock: Clock) -> Job:
    """Opens an existing job, to inspect or restore it; changes nothing.

    Raises:
        ConfigError: the storage is not a job root.
        WrongJobRoot: it is the root of another job.
    """
    root = JobRoot.open(storage, clock, writer_name())
    plan = plan_job(graph, settings.parallelism)
    check_same_job(root.job, NewJob(settings.name, settings.max_parallelism, plan.key_types), storage.uri)
    return _bind(root, graph_of_job_root(root.job, graph), settings)


def graph_of_job_root(job: JobFormat, graph: Graph) -> Graph:
    """Returns the graph as it runs in a job root: a shadow writes to its own tables."""
    return graph.shadowed() if job.shadow else graph


def _bind(root: JobRoot, graph: Graph, settings: Settings, shares_tables: bool = False) -> Job:
    plan = plan_job(graph, settings.parallelism)
    contexts = {n.uid: SinkContext(root.job.job_uuid, n.uid, n.parent.schema, root.storage) for n in graph.sinks}
    sinks = {n.uid: BoundSink(n.sink, contexts[n.uid], shares_tables) for n in graph.sinks}
    return Job(root, plan, settings, sinks, source_descriptions(plan), graph.code)


def writer_name() -> str:
    """Returns the name of this process in the documents that it writes, as HOST:PID."""
    return f"{socket.gethostname()}:{os.getpid()}"


def source_descriptions(plan: JobPlan) -> tuple[tuple[str, str], ...]:
    """Returns (uid, description) of each source, ordered by uid."""
    return tuple((node.uid, node.source.description) for node in plan.sources)


def check_format(storage: Storage) -> None:
    """Raises MissingFile for a job root that has a log but no FORMAT."""
    if storage.list(LOG) and storage.size(FORMAT) is None:
        raise MissingFile(
            "the job root has a log but no FORMAT",
            hint="restore the file from a copy; a new one would belong to another job",
            file=FORMAT,
            root=storage.uri,
        )


def _open_root(storage: Storage, clock: Clock, new: NewJob) -> JobRoot:
    check_format(storage)
    probe_job_root(storage, clock)
    return JobRoot.create_or_open(storage, clock, new, writer_name())
