"""The façade that users start from: declares a job's graph, and puts a job together for a run."""

from __future__ import annotations

import importlib.util
import inspect
import os
import socket
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

from stateflow.api.graph import Graph, SourceNode
from stateflow.api.sink import SinkContext
from stateflow.api.source import LocalSource, Source
from stateflow.api.streams import DataStream
from stateflow.checkpoint.jobroot import JobRoot, NewJob, check_same_job, read_format
from stateflow.checkpoint.probe import probe_storage
from stateflow.clock import Clock
from stateflow.config import Settings, resolve
from stateflow.errors import JobDefinitionError, StateflowError
from stateflow.ids import check_name
from stateflow.keygroups import check_max_parallelism
from stateflow.runtime.plan import JobPlan, plan_job
from stateflow.runtime.publishing import BoundSink
from stateflow.runtime.run import Job
from stateflow.storage import Storage
from stateflow.storage.paths import FORMAT

Build = Callable[["StreamExecutionEnvironment"], object]


class StreamExecutionEnvironment:
    """What `build(env)` gets: sources begin here, and the job's parameters are here.

    Args:
        parameters: the ``job.NAME`` settings.
    """

    def __init__(self, parameters: Mapping[str, str] | None = None) -> None:
        self.graph = Graph()
        self.parameters = dict(parameters or {})
        self.defaults: dict[str, Any] = {}

    def from_source(self, source: Source | LocalSource, *, uid: str = "") -> DataStream:
        """A stream of a source's rows. The uid is what the source's position is matched by."""
        if not isinstance(source, Source | LocalSource):
            raise JobDefinitionError("from_source needs a source", given=repr(source), uid=uid)
        return DataStream(self.graph, self.graph.add_source(SourceNode(uid, source, source.schema)))

    def parameter(self, name: str, default: str | None = None) -> str:
        """A ``job.NAME`` setting. Raises JobDefinitionError when it has no value and no default."""
        value = self.parameters.get(name, default)
        if value is None:
            raise JobDefinitionError("the job needs a parameter", hint=f"pass --set job.{name}=…", name=name)
        return value

    def configure(self, **settings: Any) -> None:
        """Default settings of this job, in code; a settings file and the command line win over them.

        Dots of a setting's name are written as two underscores: ``checkpoints__retained=5``.
        """
        self.defaults.update({name.replace("__", "."): value for name, value in settings.items()})


def load_job(path: Path) -> ModuleType:
    """The module of a job file, importable under its own name here and on workers.

    Raises JobDefinitionError when the file is missing, does not import, or has no `build`.
    """
    if not path.is_file():
        raise JobDefinitionError("there is no such job file", path=str(path))
    name = path.stem
    if not name.isidentifier():
        raise JobDefinitionError("a job file's name must be one that Python can import", hint="use letters, digits "
                                 "and _", path=str(path))  # fmt: skip
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except StateflowError:
        raise
    except Exception as e:
        raise JobDefinitionError(f"the job file does not import: {type(e).__name__}: {e}", path=str(path)) from e
    if not callable(getattr(module, "build", None)):
        raise JobDefinitionError("the job file has no build(env)", hint="define def build(env: "
                                 "StreamExecutionEnvironment) -> None", path=str(path))  # fmt: skip
    return module


def declare(build: Build, name: str, layers: tuple[Mapping[str, Any], ...]) -> tuple[StreamExecutionEnvironment, Settings]:
    """Runs `build` and resolves the settings.

    Args:
        name: of the job, unless settings name it.
        layers: settings from a file and from the command line; later ones win.
    """
    env = StreamExecutionEnvironment(resolve(*layers).job)
    if not inspect.signature(build).parameters:
        raise JobDefinitionError("build must take the environment", hint="define def build(env)")
    build(env)
    settings = resolve({"name": name}, env.defaults, *layers)
    check_name("the job's name", settings.name)
    check_max_parallelism(settings.max_parallelism)
    return env, settings


def assemble(env: StreamExecutionEnvironment, settings: Settings, storage: Storage, clock: Clock) -> Job:
    """Checks everything that can be checked without changing anything, then opens or creates the job root.

    Raises ConfigError, WrongJobRoot, EnvironmentUnsupported, SinkRefused, SchemaMismatch.
    """
    plan = plan_job(env.graph, settings.parallelism)
    new = NewJob(settings.name, settings.max_parallelism, plan.key_types)
    if storage.size(FORMAT) is not None:
        check_same_job(read_format(storage), new, storage.uri)
    for node in env.graph.sinks:
        node.sink.check(SinkContext("", node.uid, node.parent.schema))
    root = _open_root(storage, clock, new)
    sinks = {n.uid: BoundSink(n.sink, SinkContext(root.job.job_uuid, n.uid, n.parent.schema)) for n in env.graph.sinks}
    for bound in sinks.values():
        bound.sink.prepare(bound.context)
    return Job(root, plan, settings, sinks, source_descriptions(plan))


def source_descriptions(plan: JobPlan) -> tuple[tuple[str, str], ...]:
    """(uid, description) of each source."""
    return ((plan.source.uid, plan.source.source.description),)


def _open_root(storage: Storage, clock: Clock, new: NewJob) -> JobRoot:
    writer = f"{socket.gethostname()}:{os.getpid()}"
    generation = 1
    if storage.size(FORMAT) is not None:
        head = JobRoot.open(storage, clock, writer).log.read_head()
        generation = head.entry.seq + 1 if head else 1
    probe_storage(storage, clock, generation)
    return JobRoot.create_or_open(storage, clock, new, writer)
