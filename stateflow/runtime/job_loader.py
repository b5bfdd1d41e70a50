"""Loads a job file and the modules next to it, checks the job, and opens its root.

Spark's workers get the code of a job as the driver has loaded it. A worker that looked for a module along its own path
could find another file of that name: one in the folder that the driver was started in, an older one, or none. So the
text of the modules travels with each function that is sent to workers, and a worker imports them from that text only.
Modules keep their names.
"""

from __future__ import annotations

import ast
import hashlib
import importlib
import os
import socket
import sys
import zlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from importlib.util import resolve_name, spec_from_file_location
from pathlib import Path
from types import ModuleType
from typing import NoReturn

import msgspec

from stateflow.api.graph import Graph, JobFile
from stateflow.api.sink import SinkContext
from stateflow.checkpoint.log.documents import JobFormat
from stateflow.checkpoint.log.job_root import JobRoot, NewJob, check_same_job, probe_job_root, read_format
from stateflow.clock import Clock
from stateflow.config.settings import Settings
from stateflow.errors import ConfigError, JobDefinitionError, MissingFile, StateflowError
from stateflow.helpers import add_job_line, did_you_mean, import_hint, line_of_user
from stateflow.runtime.job import Job
from stateflow.runtime.planning.physical_plan import JobPlan, plan_job
from stateflow.runtime.publisher import BoundSink
from stateflow.storage import Storage
from stateflow.storage.mounts import check_root_mount
from stateflow.storage.paths import FORMAT, LOG


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
        with add_job_line():
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


def collect_job_files(path: Path) -> tuple[str, dict[str, bytes]]:
    """Returns the path of a job file and the texts of the modules that it imports by path, below one folder.

    Nothing is imported: the process that submits a job may lack the packages that the job needs.

    Raises:
        JobDefinitionError: the file does not exist, or has the name of an existing module.
    """
    if not is_file(path):
        raise JobDefinitionError("the job file does not exist", hint="check the path", path=str(path))
    return JobModules().collect(path)


def load_function(text: str) -> Callable[..., object]:
    """Returns the function that a text names.

    A file is loaded as a job file is, and one that is loaded already, such as the job file itself, is not loaded again.
    A module is imported.

    Args:
        text: ``FILE.py:FUNCTION`` with the path of a file, or ``MODULE:FUNCTION`` with a module that can be imported.

    Raises:
        JobDefinitionError: the file does not exist, or cannot be imported.
        ConfigError: the text is not of this form, the module cannot be imported, or has no such function.
    """
    where, _, name = text.rpartition(":")
    if not where or not name.isidentifier():
        raise ConfigError(
            "a function is not of the form FILE.py:FUNCTION or MODULE:FUNCTION",
            hint="for example changes.py:in_hours",
            function=text,
        )
    module = _from_file(Path(where)) if where.endswith(".py") else _imported(where)
    found = getattr(module, name, None)
    if not callable(found):
        functions = [known for known, value in vars(module).items() if callable(value) and not known.startswith("_")]
        raise ConfigError(
            "the module has no function of this name", hint=did_you_mean(name, functions), module=where, function=name
        )
    function: Callable[..., object] = found
    return function


def _from_file(path: Path) -> ModuleType:
    loaded = sys.modules.get(path.stem)
    file = getattr(loaded, "__file__", None)
    if loaded is not None and file is not None and is_file(path) and Path(file).resolve() == path.resolve():
        return loaded
    return load_file(path, "file of the function")


def _imported(module: str) -> ModuleType:
    try:
        return importlib.import_module(module)
    except StateflowError:
        raise
    except Exception as e:
        raise ConfigError(
            f"the module of a function cannot be imported: {type(e).__name__}: {e}",
            hint="pass the path of its file, as in changes.py:in_hours; or install the module",
            module=module,
            where=line_of_user(e),
        ) from e


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
    return graph.with_shadow_sinks() if job.shadow else graph


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
    """Checks the place of a job root, and that it is complete.

    Raises:
        EnvironmentUnsupported: it is on a file system without the necessary guarantees.
        MissingFile: it has a log but no FORMAT.
    """
    check_root_mount(storage)
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


_LIMIT = 16 << 20
"""Bytes of all modules of a job: each task gets them."""
_OWN = ("stateflow", "stateflow_airflow", "pyspark")
"""Modules that every worker has, whatever lies next to a job file."""
_DIGITS = 32


@dataclass(frozen=True)
class CodeFile:
    """The text of a module.

    Attributes:
        path: where the driver found it. It is not read again; tracebacks show it.
        source: None for a folder without ``__init__.py``, a namespace package.
        is_package: whether the module has submodules.
    """

    path: str
    source: bytes | None
    is_package: bool


class _Loader(SourceFileLoader):
    """Compiles the text that a job was loaded with, without Python's bytecode cache.

    Python validates cached bytecode by modification time in seconds and by size. An edit within a second, or an
    artefact whose files all have the same time, would run the old job.
    """

    def __init__(self, name: str, file: CodeFile) -> None:
        super().__init__(name, file.path)
        self._file = file

    def path_stats(self, path: object) -> NoReturn:
        raise OSError("the modules of a job have no cached bytecode")

    def get_data(self, path: str) -> bytes:
        own = path == self._file.path and self._file.source is not None
        return self._file.source or b"" if own else super().get_data(path)


class JobModules(MetaPathFinder):
    """The modules of the job that this process has loaded, by name; imports them.

    Attributes:
        files: the modules.
    """

    def __init__(self) -> None:
        self.files: dict[str, CodeFile] = {}
        self._folders: list[Path] = []
        self._packages: dict[str, Path] = {}
        self._packed: tuple[str, bytes] = "", b""
        self._packed_files = 0
        self._received = set[str]()
        self._followed: set[str] = set()

    def load(self, path: Path) -> ModuleType:
        """Imports a file, after collecting the modules of its folder that it imports. Raises what its import raises."""
        name = self._add_root(path)
        self._install()
        self._follow()
        return importlib.import_module(name)

    def collect(self, path: Path) -> tuple[str, dict[str, bytes]]:
        """Returns the path of a job file and the texts of its modules by path, below one folder; imports nothing.

        Args:
            path: the job file.
        """
        self._add_root(path)
        self._follow()
        base = self._folders[0]
        if package := _package_of(base):
            base = base.parents[package.count(".")]
        texts = {}
        for file in self.files.values():
            if file.source is not None:
                found = Path(file.path).absolute()
                # Only the job file may be a link: its modules are next to the file that it leads to.
                at = self._folders[0] / path.name if file.path == str(path) else found
                texts[str(at.relative_to(base))] = file.source
        return str((self._folders[0] / path.name).relative_to(base)), texts

    def job_file(self, path: Path) -> JobFile:
        """Returns the file that was loaded from a path, as it was then."""
        text = next((file.source for file in self.files.values() if file.path == str(path)), None)
        return JobFile(path.name, text or b"", datetime.fromtimestamp(path.stat().st_mtime, UTC))

    def clear(self) -> None:
        """Forgets the modules of an earlier job: the files may have changed."""
        for name in self.files:
            if self._is_own(name):
                del sys.modules[name]
        self.files, self._folders, self._packages = {}, [], {}
        self._packed_files, self._followed, self._received = 0, set(), set()

    @property
    def digest(self) -> str:
        """A hash of the names and texts of all modules, whatever their folder; empty without a module."""
        texts = {name: file.source for name, file in self.files.items() if file.source is not None}
        parts = [f"{name} {hashlib.sha256(text).hexdigest()}\n" for name, text in sorted(texts.items())]
        return hashlib.sha256("".join(parts).encode()).hexdigest()[:_DIGITS] if parts else ""

    @property
    def packed(self) -> tuple[str, bytes]:
        """The modules as a worker needs them, and before them a key that differs if they do."""
        if self._packed_files != len(self.files):  # a module was added, by an import
            packed = zlib.compress(msgspec.msgpack.encode((self.files, _unwanted())))
            self._packed, self._packed_files = (hashlib.sha256(packed).hexdigest(), packed), len(self.files)
        return self._packed

    def receive(self, key: str, packed: bytes) -> None:
        """Takes the modules that a driver has sent, in place of the modules of another job.

        A driver that imports a module late sends more of them from then on, and fewer with what it pickled before.
        Imported modules stay in both cases: importing them again would make other classes of the same names.
        """
        if self._folders or key in self._received:
            return
        files, unwanted = msgspec.msgpack.decode(zlib.decompress(packed), type=tuple[dict[str, CodeFile], str])
        if files.items() < self.files.items():
            self._received.add(key)
            return
        if not files.items() >= self.files.items():
            self.clear()
        self.files = files
        self._received.add(key)
        self._packed, self._packed_files = (key, packed), len(self.files)
        self._install()
        # The driver was started in this folder, and does not import from it.
        sys.path[:] = [each for each in sys.path if not unwanted or each != unwanted]
        for name, file in self.files.items():
            if name in sys.modules and not _is_same(sys.modules[name], file):
                raise ImportError(f"a worker has imported another module {name} than {file.path}", name=name)

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Finds the modules of the job, before Python looks for them along its path."""
        if fullname.rpartition(".")[0] in self.files and fullname not in self.files and self._folders:
            # Imported by a computed name, which its package does not contain as text.
            self._add(fullname)
            self._follow()
        return self._spec(fullname)

    def find_computed(self, fullname: str) -> ModuleSpec | None:
        """Finds a module of the job's folder that is imported by a computed name, when Python has found none."""
        if "." not in fullname and self._folders:
            self._add(fullname)
            self._follow()
        return self._spec(fullname)

    def _spec(self, name: str) -> ModuleSpec | None:
        file = self.files.get(name)
        if file is None:
            return None
        if file.source is None:
            spec = ModuleSpec(name, None, is_package=True)
            spec.submodule_search_locations = [file.path]
            return spec
        folders = [os.path.dirname(file.path)] if file.is_package else None
        return spec_from_file_location(name, file.path, loader=_Loader(name, file), submodule_search_locations=folders)

    def _add_root(self, path: Path) -> str:
        folder = path.resolve().parent if path.is_symlink() else path.absolute().parent
        source = path.read_bytes()
        package = _package_of(folder)
        if package:
            self._packages[package.split(".")[0]] = folder.parents[package.count(".")]
        # Only a file that says so is a part of a package: importing the package runs its code.
        is_part = package and any(isinstance(n, ast.ImportFrom) and n.level for n in _nodes(source))
        name = f"{package}.{path.stem}" if is_part else path.stem
        self._folders.append(folder)
        if is_part:
            self._add(package)
        self._put(name, CodeFile(str(path), source, is_package=False))
        return name

    def _install(self) -> None:
        if self not in sys.meta_path:
            sys.meta_path[:] = [self, *sys.meta_path, _Computed(self)]

    def _follow(self) -> None:
        """Adds the modules that the known ones import, also in functions."""
        while names := self.files.keys() - self._followed:
            for name in sorted(names):
                self._followed.add(name)
                for imported in _imports(name, self.files[name]):
                    self._add(imported)
        if (size := sum(len(file.source or b"") for file in self.files.values())) > _LIMIT:
            raise JobDefinitionError(
                "the modules of the job are too large to send with each task",
                hint="install them as a package on the workers, in another folder than the job file's",
                size_bytes=size,
                limit_bytes=_LIMIT,
            )

    def _add(self, name: str) -> None:
        """Adds a module and the packages that it is in, as far as they are in the job's folder."""
        parts = name.split(".")
        if parts[0] in _OWN:
            return
        roots = [self._packages[parts[0]]] if parts[0] in self._packages else self._folders
        for root in roots:
            found = list(_files_of(root, parts))
            if found and found[0].source is None and _is_installed(parts[0]):
                continue
            for number, file in enumerate(found, 1):
                self._put(".".join(parts[:number]), file)
            if found:
                return

    def _put(self, name: str, file: CodeFile) -> None:
        known = self.files.get(name)
        if known is not None and os.path.abspath(known.path) == os.path.abspath(file.path):
            return
        loaded = sys.modules.get(name)
        other = known.path if known is not None else getattr(loaded, "__file__", "")
        is_taken = known is not None or (loaded is not None and not _is_same(loaded, file))
        if name in sys.stdlib_module_names or is_taken:
            # Whichever were imported, in the driver or in a worker: the other one may have been meant.
            raise JobDefinitionError(
                "a file of the job has the name of an existing module",
                hint="rename the file",
                path=file.path,
                module=name,
                other=other or "Python's standard library",
            )
        self.files[name] = file

    def _is_own(self, name: str) -> bool:
        spec = getattr(sys.modules.get(name), "__spec__", None)
        return spec is not None and (isinstance(spec.loader, _Loader) or self.files[name].source is None)


class _Computed(MetaPathFinder):
    """Finds modules of the job's folder that are not named by an import statement, after all others."""

    def __init__(self, code: JobModules) -> None:
        self._code = code

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        return self._code.find_computed(fullname)


job_modules = JobModules()
"""The code of the job that this process has loaded, or that a driver has sent to it."""


def send_job_code() -> None:
    """Makes PySpark send the code of the job with each function that it sends to workers, from now on.

    PySpark has no way for it that leads to all of its processes: files of ``addPyFile`` do not arrive where Spark plans
    the reading of Python data sources. Rows are not affected: the JVM reads them.
    """
    from pyspark.core import rdd
    from pyspark.serializers import CloudPickleSerializer

    class WithJobCode(CloudPickleSerializer):
        dumps = _dumps

    # Used for functions only.
    vars(rdd)["CloudPickleSerializer"] = WithJobCode


def _dumps(serializer: object, obj: object) -> bytes:
    """Returns an object as PySpark pickles it, with the code of the job if one was loaded."""
    from pyspark.serializers import CloudPickleSerializer

    dumps: Callable[[object], bytes] = CloudPickleSerializer().dumps
    return dumps(_Sent(*job_modules.packed, dumps(obj))) if job_modules.files else dumps(obj)


@dataclass(frozen=True)
class _Sent:
    """Pickled data that installs the code of the job before it is unpickled."""

    key: str
    code: bytes
    data: bytes

    def __reduce__(self) -> tuple[object, ...]:
        return _received, (self.key, self.code, self.data)


def _received(key: str, code: bytes, data: bytes) -> object:
    from pyspark import worker_util
    from pyspark.serializers import CloudPickleSerializer

    job_modules.receive(key, code)
    # What plans the reading of a data source sends functions in turn, by this object.
    vars(worker_util.pickleSer)["dumps"] = partial(_dumps, None)
    load: Callable[[bytes], object] = CloudPickleSerializer().loads
    return load(data)


def _unwanted() -> str:
    """Returns the working folder unless this process imports from it: ``python -m`` adds it in Spark's workers."""
    try:
        folder = os.getcwd()
    except OSError:  # it was deleted
        return ""
    return "" if {"", folder} & set(sys.path) else folder


def _is_same(module: ModuleType, file: CodeFile) -> bool:
    """Returns whether a module was imported from this file."""
    is_folder = file.source is None and hasattr(module, "__path__")
    # Modules that are built into Python have no file.
    paths = list(module.__path__) if is_folder else [getattr(module, "__file__", None) or ""]
    return os.path.realpath(file.path) in map(os.path.realpath, paths)


def _is_installed(name: str) -> bool:
    """Returns whether Python finds a module other than a namespace package, which it prefers to any of these."""
    try:
        spec = PathFinder.find_spec(name)
    except (ImportError, ValueError):
        return False
    return name in sys.builtin_module_names or (spec is not None and spec.loader is not None and bool(spec.origin))


def _package_of(folder: Path) -> str:
    """Returns the name of the package that a folder is; empty if it is none."""
    names: list[str] = []
    while (folder / "__init__.py").is_file() and folder.name.isidentifier():
        names.insert(0, folder.name)
        folder = folder.parent
    return ".".join(names)


def _files_of(folder: Path, parts: Sequence[str]) -> Iterator[CodeFile]:
    """Yields the packages that a dotted name consists of, and the module at its end, up to the first missing one."""
    for part in parts:
        package, module, inner = folder / part / "__init__.py", folder / f"{part}.py", folder / part
        if package.is_file():
            yield CodeFile(str(package), package.read_bytes(), is_package=True)
        elif module.is_file():
            yield CodeFile(str(module), module.read_bytes(), is_package=False)
            return
        elif inner.is_dir():
            yield CodeFile(str(inner), None, is_package=True)
        else:
            return
        folder = inner


def _nodes(source: bytes) -> list[ast.AST]:
    try:
        return list(ast.walk(ast.parse(source)))
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return []  # the import reports it


def _imports(name: str, file: CodeFile) -> Iterator[str]:
    """Yields the dotted names of what a module imports, wherever in its text; some may not be modules."""
    package = name if file.is_package else name.rpartition(".")[0]
    for node in _nodes(file.source or b""):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = _absolute("." * node.level + (node.module or ""), package)
            yield from (base, *(f"{base}.{alias.name}" for alias in node.names)) if base else ()
        elif isinstance(node, ast.Call) and node.args and isinstance(node.args[0], ast.Constant):
            called = getattr(node.func, "attr", getattr(node.func, "id", ""))
            if called in ("import_module", "__import__") and isinstance(node.args[0].value, str):
                yield _absolute(node.args[0].value, package)


def _absolute(name: str, package: str) -> str:
    try:
        return resolve_name(name, package or None)
    except ImportError:
        return ""  # beyond the top package: the import reports it
