"""The Iceberg sink: the rows of a checkpoint and its token become visible in one commit of the table.

Tasks stage rows in the job root. After the COMMIT of the checkpoint, the driver writes them to data files of the table,
and makes a snapshot with these files and the token, on condition that the current snapshot is the one with which it
decided to publish. So no two runs publish a checkpoint twice, and an old driver that wakes up changes nothing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import pyarrow as pa

from stateflow.api.datasets import Dataset
from stateflow.api.sink import SinkContext, SinkTable, SinkWriter, Writing
from stateflow.connectors.iceberg.target import (
    ADD_COLUMNS,
    REFUSE,
    IcebergSettings,
    SchemaEvolution,
    parse_name,
    require_pyiceberg,
)
from stateflow.connectors.staged_output import StagedSink, StagedWriter
from stateflow.connectors.upserts import names_of
from stateflow.helpers import check_choice

if TYPE_CHECKING:
    from stateflow.connectors.iceberg.catalog import CatalogConnection


class IcebergSink(StagedSink):
    """Appends a stream's rows to an Iceberg table, exactly once.

    The sink creates a missing table with one optional column per field of the row class. An existing table must have
    these columns; where its types are narrower, as int, float or required are, a row with another value ends the batch.
    Further columns must be optional. It may be partitioned. The format version must be 2. Each checkpoint is one
    snapshot of the branch ``main``, which has the token of the sink in its summary. A restore can put the table back to
    each checkpoint whose snapshot has not expired.

    Args:
        table: ``namespace.table``; the namespace must exist.
        catalog: name of the catalog: PyIceberg looks for it in its configuration file and in environment variables
            such as ``PYICEBERG_CATALOG__PROD__URI``.
        properties: properties of the catalog, in addition to that configuration. They are not sent to tasks, and no
            `repr`, log, plan or stored file contains them.
        partition_by: partitions of a new table: columns, ``year(…)``, ``month(…)``, ``day(…)`` or ``hour(…)`` of a date
            or datetime, ``bucket(16, …)`` or ``truncate(4, …)``. An existing table keeps its own.
        schema_evolution: what happens to columns that only the row class has: ``"refuse"`` ends the start of a run;
            ``"add-columns"`` adds them to the table, where they are null in existing rows. A column that seems to have
            been renamed is refused in any case.

    Raises:
        JobDefinitionError: the name of the table is malformed.
        ConfigError: `schema_evolution` is not one of its values.
        EnvironmentUnsupported: pyiceberg is not installed; only the driver needs it.
    """

    def __init__(
        self,
        table: str,
        *,
        catalog: str = "default",
        properties: Mapping[str, str] | None = None,
        partition_by: str | Sequence[str] = (),
        schema_evolution: SchemaEvolution = "refuse",
    ) -> None:
        check_choice("schema_evolution", schema_evolution, (REFUSE, ADD_COLUMNS))
        require_pyiceberg()
        connecting = tuple(sorted((properties or {}).items()))
        self._settings = IcebergSettings(
            parse_name(table), catalog, schema_evolution, names_of(partition_by), connecting
        )
        self._opened: CatalogConnection | None = None
        self._target: pa.Schema | None = None

    def __repr__(self) -> str:
        return f"IcebergSink({self.location!r})"

    def __deepcopy__(self, memo: object) -> IcebergSink:
        # Stays in this process.
        return self._with(self._settings, self._target)

    def __getstate__(self) -> tuple[IcebergSettings, pa.Schema | None]:
        # For tasks, in other processes.
        return self._settings.for_tasks(), self._target

    def __setstate__(self, state: tuple[IcebergSettings, pa.Schema | None]) -> None:
        self._settings, self._target = state
        self._opened = None

    @property
    def location(self) -> str:
        return self._settings.location

    def datasets(self) -> Sequence[Dataset]:
        return (self._settings.dataset,)

    def check(self, context: SinkContext) -> str | None:
        from stateflow.connectors.iceberg.table import find_usable_table, target_schema

        table = find_usable_table(self._connection, context.schema)
        if table is None:
            return None
        self._target = target_schema(context.schema, table.schema())
        return str(table.metadata.table_uuid)

    def other_jobs(self, context: SinkContext) -> frozenset[str]:
        from stateflow.connectors.iceberg.snapshots import other_jobs

        table = self._connection.find_table()
        return other_jobs(table.metadata, context.uid) - {context.job_uuid} if table else frozenset()

    def prepare(self, context: SinkContext) -> str:
        from stateflow.connectors.iceberg.table import prepare_table

        self.check(context)
        return prepare_table(self._connection, context)

    def open_table(self, context: SinkContext) -> SinkTable:
        from stateflow.connectors.iceberg.table import IcebergTable, open_table, target_schema

        table = open_table(self._connection, context.schema)
        self._target = target_schema(context.schema, table.schema())
        return IcebergTable(self._connection, context, table)

    def writer(self, context: SinkContext, writing: Writing) -> SinkWriter:
        return StagedWriter(context, writing, self._target)

    def shadow(self) -> IcebergSink:
        return self._with(self._settings.shadow())

    @property
    def _connection(self) -> CatalogConnection:
        if self._opened is None:
            from stateflow.connectors.iceberg.catalog import CatalogConnection

            self._opened = CatalogConnection(self._settings)
        return self._opened

    def _with(self, settings: IcebergSettings, target: pa.Schema | None = None) -> IcebergSink:
        sink = IcebergSink.__new__(IcebergSink)
        sink.__setstate__((settings, target))
        return sink
