"""The `StreamExecutionEnvironment` that a job file's `build` receives, and the evaluation of `build`."""

from __future__ import annotations

import importlib.util
import inspect
from collections.abc import Callable, Iterable, Mapping
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from stateflow.api.graph import Graph
from stateflow.api.sink import Sink
from stateflow.api.source import CollectionSource, LocalSource, Source
from stateflow.api.state_backends import StateBackend
from stateflow.api.streams.connected_streams import BroadcastStream
from stateflow.api.streams.data_stream import DataStream
from stateflow.config.settings import Settings
from stateflow.config.sources import SettingsLayer, resolve
from stateflow.errors import EnvironmentUnsupported, JobDefinitionError, StateflowError
from stateflow.helpers import add_job_line, check_name
from stateflow.runtime.user_code import find_user_line
from stateflow.types.key_groups import check_max_parallelism

if TYPE_CHECKING:
    from stateflow.api.joins.lookup_join import ReadTable
    from stateflow.api.sql.queries import SqlCatalog

Build = Callable[["StreamExecutionEnvironment"], object]
R = TypeVar("R")


class StreamExecutionEnvironment:
    """Entry point of a job: creates streams from sources and holds the parameters and settings of the job.

    Args:
        parameters: values of the ``job.NAME`` settings by ``NAME``.
    """

    def __init__(self, parameters: Mapping[str, str] | None = None) -> None:
        self.graph = Graph()
        self.defaults: dict[str, object] = {}
        self._parameters = dict(parameters or {})
        self._read: dict[str, None] = {}
        self._catalog: SqlCatalog | None = None

    def from_source(self, source: Source | LocalSource, *, uid: str = "") -> DataStream:
        """Returns a stream of a source's rows.

        Args:
            uid: identifies the source: the next run finds its stored position by it.

        Raises:
            JobDefinitionError: `source` is not a source.
        """
        if not isinstance(source, Source | LocalSource):
            raise JobDefinitionError(
                "from_source needs a Source", hint="such as FileSource(path, schema=Row)", given=repr(source), uid=uid
            )
        return DataStream.from_node(self.graph, self.graph.add_source(uid, source))

    def from_collection(self, rows: Iterable[R], row_class: type[R], *, uid: str = "") -> DataStream:
        """Returns a bounded stream of rows from the job file, with or without Spark; for tests and examples.

        Args:
            rows: objects of `row_class`. A later run skips as many rows as the runs before have read.
            row_class: the dataclass that defines the columns.
            uid: uid of the source, as in `from_source`.
        """
        return self.from_source(CollectionSource(rows, row_class), uid=uid)

    def from_table(
        self, table: str | Path, *, schema: type[object], refresh: timedelta, deleted: str = "deleted", uid: str = ""
    ) -> BroadcastStream:
        """Returns a broadcast stream that follows a Delta table: all its rows, and then what each version changes.

        Connect it with a keyed stream, and keep what its function needs of the rows in broadcast state. The rows of a
        batch are processed before those of the keyed stream, removed ones first. See `BatchTable`.

        Args:
            table: path of the table, or a URI.
            schema: row class of the rows, with columns of the table and the field `deleted`.
            refresh: time between two looks for a newer version while the job runs; each run begins with one.
            deleted: the field of type bool that is True in rows that are no longer in the table.
            uid: uid of the source, as in `from_source`.

        Raises:
            JobDefinitionError: the row class has no such field, or the time is not positive.
            EnvironmentUnsupported: the package deltalake is not installed.
        """
        # Reading tables needs libraries that most jobs do not.
        from stateflow.connectors.batch_table import BatchTable

        return self.from_source(BatchTable(table, schema=schema, refresh=refresh, deleted=deleted), uid=uid).broadcast()

    def register_table(self, name: str, stream: DataStream) -> None:
        """Makes the rows of a stream a table of `sql` and `sql_query`.

        Args:
            name: of the table.
            stream: with event time if windows or other clauses of the queries need it.

        Raises:
            JobDefinitionError: `stream` is not a stream, or a table, view or sink has this name.
            EnvironmentUnsupported: the package sqlglot is not installed.
        """
        self._sql.register_table(name, stream)

    def register_lookup_table(
        self, name: str, read: ReadTable | Source, *, rows: type[object], cache: timedelta | None = None
    ) -> None:
        """Makes a table one that ``JOIN name FOR SYSTEM_TIME AS OF PROCTIME()`` looks rows up in.

        The semantics are those of `DataStream.lookup_join`. With `cache`, all joins with the table use what one of them
        has read; without it, each of them reads it.

        Args:
            name: of the table.
            read: as of `DataStream.lookup_join`.
            rows: row class with the columns that queries can use; the table may have others.
            cache: for how long a content that was read is used for further batches; by default for one batch.

        Raises:
            JobDefinitionError: an argument is not valid, or a table, view or sink has this name.
            EnvironmentUnsupported: the package sqlglot is not installed.
        """
        self._sql.register_lookup_table(name, read, rows, cache)

    def register_sink(self, name: str, sink: Sink) -> None:
        """Makes a sink one that `sql` can insert into. `name` is the uid of the sink. Raises as `register_table`."""
        self._sql.register_sink(name, sink)

    def sql(self, text: str, *, allowed_lateness: timedelta = timedelta(), late_rows: str = "") -> None:
        """Declares operators and sinks by SQL statements.

        Args:
            text: ``INSERT INTO sink SELECT …`` or ``CREATE TEMPORARY VIEW name AS SELECT …``; several with semicolons.
            allowed_lateness: for how long after its end, by the watermark, a window of the statement accepts rows.
                Each of them corrects the result of its window. For one INSERT with ``TUMBLE`` or ``HOP``.
            late_rows: name of a new table for the rows that the windows of the statement do not accept, with the
                columns that the query has before it aggregates them; by default they are dropped. For one INSERT that
                aggregates windows once.

        Raises:
            JobDefinitionError: a statement is malformed, or a part of it is not supported. The error has its line and
                column.
            EnvironmentUnsupported: the package sqlglot is not installed.
        """
        from stateflow.api.sql.plan import LateRows

        self._sql.execute(text, LateRows(allowed_lateness, late_rows))

    def sql_query(
        self, text: str, *, uid: str, allowed_lateness: timedelta = timedelta(), late_rows: str = ""
    ) -> DataStream:
        """Returns the stream of a query, ``SELECT …``.

        Args:
            uid: the uids of its operators begin with it.
            allowed_lateness: as for `sql`.
            late_rows: as for `sql`.

        Raises:
            JobDefinitionError, EnvironmentUnsupported: as `sql`.
        """
        from stateflow.api.sql.plan import LateRows

        return self._sql.query(text, uid, LateRows(allowed_lateness, late_rows))

    @property
    def _sql(self) -> SqlCatalog:
        if self._catalog is None:
            # Most jobs have no SQL.
            if importlib.util.find_spec("sqlglot") is None:
                raise EnvironmentUnsupported(
                    "the package sqlglot for SQL statements is missing", hint="install stateflow[sql]"
                )
            from stateflow.api.sql.queries import SqlCatalog

            self._catalog = SqlCatalog()
        return self._catalog

    def parameter(self, name: str, default: str | None = None) -> str:
        """Returns the value of the ``job.NAME`` setting, or `default`.

        Raises:
            JobDefinitionError: the setting has neither a value nor a default.
        """
        self._read[name] = None
        value = self._parameters.get(name, default)
        if value is None:
            raise JobDefinitionError(
                "the job needs a parameter", hint=f"pass --set job.{name}=…", name=name, given=sorted(self._parameters)
            )
        return value

    @property
    def parameters(self) -> dict[str, str]:
        """All ``job.NAME`` settings by ``NAME``. Reading this counts as using each of them."""
        self._read |= dict.fromkeys(self._parameters)
        return dict(self._parameters)

    def warn_of_unused_parameters(self) -> tuple[str, ...]:
        """Returns a warning for each ``job.NAME`` setting that `build` has not read."""
        known = f"the job reads {', '.join(self._read)}" if self._read else "the job reads no parameter"
        unused = [name for name in self._parameters if name not in self._read]
        return tuple(f"parameter job.{name} is not used; {known}" for name in unused)

    def configure(self, **settings: object) -> None:
        """Sets defaults of settings in code; a settings file and the command line override them.

        Args:
            settings: values by name, with two underscores for each dot: ``checkpoints__retained=5``.
        """
        self.defaults.update({name.replace("__", "."): value for name, value in settings.items()})

    def set_state_backend(self, backend: StateBackend) -> None:
        """Sets the default state backend; a settings file and the command line override it.

        Raises:
            JobDefinitionError: `backend` is not one of stateflow's, such as one of Flink's classes.
        """
        if not isinstance(backend, StateBackend):
            raise JobDefinitionError(
                "set_state_backend needs a state backend of stateflow",
                hint="use MemoryStateBackend(), FsStateBackend() or RocksDBStateBackend() from stateflow",
                given=repr(backend),
            )
        self.defaults.update(backend.settings)


def declare(build: Build, name: str, layers: tuple[SettingsLayer, ...]) -> tuple[StreamExecutionEnvironment, Settings]:
    """Calls `build` and resolves the settings.

    Args:
        name: the job's name, unless a setting gives another.
        layers: settings from a file and from the command line; later ones win.

    Raises:
        JobDefinitionError: `build` takes no argument or raised an exception.
        ConfigError: a setting or the job's name is invalid.
    """
    parameters = {k: v for layer in layers for k, v in layer.items() if k.startswith("job.")}
    env = StreamExecutionEnvironment(resolve(parameters).job)
    if not inspect.signature(build).parameters:
        raise JobDefinitionError(
            "build must take the environment", hint="define def build(env)", found=f"build{inspect.signature(build)}"
        )
    try:
        with add_job_line():
            build(env)
    except StateflowError:
        raise
    # A job file that ends the process would choose the exit code, such as the one of a fenced run.
    except (Exception, SystemExit) as e:
        raise JobDefinitionError(
            f"build raised {type(e).__name__}: {e}", hint="fix the job file", where=find_user_line(e)
        ) from e
    settings = resolve({"name": name}, env.defaults, *layers)
    check_name("the job's name", settings.name)
    check_max_parallelism(settings.key_groups)
    return env, settings
