"""From a job file to a job that can run: loading, checking, opening its root."""

from __future__ import annotations

import importlib.util
import os
import socket
import sys
from collections.abc import Mapping
from importlib.machinery import SourceFileLoader
from pathlib import Path
from types import ModuleType
from typing import Any

from stateflow.api.graph import Graph
from stateflow.api.sink import SinkContext
from stateflow.checkpoint.documents import JobFormat
from stateflow.checkpoint.job_format import NewJob, check_same_job, read_format
from stateflow.checkpoint.jobroot import JobRoot
from stateflow.checkpoint.probe import probe_job_root
from stateflow.clock import Clock
from stateflow.errors import JobDefinitionError, MissingFile, StateflowError
from stateflow.runtime.error_position import naming_job_line
from stateflow.runtime.job import Job
from stateflow.runtime.plan import JobPlan, plan_job
from stateflow.runtime.publishing import BoundSink
from stateflow.settings import Settings
from stateflow.storage import Storage
from stateflow.storage.paths import FORMAT, LOG

_loaded: set[str] = set()
"""Names of the job files that this process has loaded."""


class _JobFile(SourceFileLoader):
    """Compiles the file that is there. What Python keeps of an earlier one is taken by time, in seconds, and size: an
    edit within a second, or an artefact whose files all have one time, would run the job of before."""

    def path_stats(self, path: Any) -> Mapping[str, Any]:
        raise OSError("nothing is kept")


def load_job(path: Path) -> ModuleType:
    """The module of a job file, importable under its own name here and on workers.

    Raises JobDefinitionError when the file is missing, does not import, or has no `build`.
    """
    if not path.is_file():
        raise JobDefinitionError("there is no such job file", hint="check the path", path=str(path))
    name = path.stem
    if not name.isidentifier():
        raise JobDefinitionError("a job file's name must be one that Python can import", hint="use letters, digits "
                                 "and _", path=str(path))  # fmt: skip
    _check_free(name, path)
    spec = importlib.util.spec_from_file_location(name, path, loader=_JobFile(name, str(path)))
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    _loaded.add(name)
    try:
        with naming_job_line():
            spec.loader.exec_module(module)
    except StateflowError:
        raise
    except Exception as e:
        raise JobDefinitionError(f"the job file does not import: {type(e).__name__}: {e}", hint="python JOB.py, with "
                                 "the same Python, shows where", path=str(path)) from e  # fmt: skip
    if not callable(getattr(module, "build", None)):
        raise JobDefinitionError("the job file has no build(env)", hint="define def build(env: "
                                 "StreamExecutionEnvironment) -> None", path=str(path))  # fmt: skip
    return module


def _check_free(name: str, path: Path) -> None:
    """A job file that took the name of a library would break whoever imports that library after it."""
    if name in sys.stdlib_module_names or (name in sys.modules and name not in _loaded):
        raise JobDefinitionError("the job file has the name of another module", hint="rename the file", path=str(path),
                                 module=name)  # fmt: skip


def assemble(graph: Graph, settings: Settings, storage: Storage, clock: Clock) -> Job:
    """Checks everything that can be checked without changing anything, then opens or creates the job root.

    Raises ConfigError, WrongJobRoot, EnvironmentUnsupported, SinkRefused, SchemaMismatch.
    """
    plan = plan_job(graph, settings.parallelism)
    new = NewJob(settings.name, settings.max_parallelism, plan.key_types)
    if storage.size(FORMAT) is not None:
        found = read_format(storage)
        check_same_job(found, new, storage.uri)
        graph = graph_in(found, graph)
    for node in graph.sinks:
        node.sink.check(SinkContext("", node.uid, node.parent.schema))
    return _bind(_open_root(storage, clock, new), graph, settings)


def open_job(graph: Graph, settings: Settings, storage: Storage, clock: Clock) -> Job:
    """An existing job, to look at it or to go back; changes nothing.

    Raises ConfigError when there is none, WrongJobRoot when it is another one.
    """
    root = JobRoot.open(storage, clock, writer())
    plan = plan_job(graph, settings.parallelism)
    check_same_job(root.job, NewJob(settings.name, settings.max_parallelism, plan.key_types), storage.uri)
    return _bind(root, graph_in(root.job, graph), settings)


def graph_in(job: JobFormat, graph: Graph) -> Graph:
    """The graph as it runs in this job root: a shadow has tables of its own."""
    return graph.shadowed() if job.shadow else graph


def _bind(root: JobRoot, graph: Graph, settings: Settings) -> Job:
    plan = plan_job(graph, settings.parallelism)
    sinks = {
        n.uid: BoundSink(n.sink, SinkContext(root.job.job_uuid, n.uid, n.parent.schema)) for n in graph.sinks
    }
    return Job(root, plan, settings, sinks, source_descriptions(plan))


def writer() -> str:
    """Names this process in what it writes, for people."""
    return f"{socket.gethostname()}:{os.getpid()}"


def source_descriptions(plan: JobPlan) -> tuple[tuple[str, str], ...]:
    """(uid, description) of each source, in order of uids."""
    return tuple((node.uid, node.source.description) for node in plan.sources)


def check_format(storage: Storage) -> None:
    """Raises MissingFile for a job root that has a log and no FORMAT."""
    if storage.list(LOG) and storage.size(FORMAT) is None:
        raise MissingFile("the job root has a log but no FORMAT", hint="restore it from a copy: a new one would be "
                          "another job's", file=FORMAT, root=storage.uri)  # fmt: skip


def _open_root(storage: Storage, clock: Clock, new: NewJob) -> JobRoot:
    check_format(storage)
    probe_job_root(storage, clock)
    return JobRoot.create_or_open(storage, clock, new, writer())
