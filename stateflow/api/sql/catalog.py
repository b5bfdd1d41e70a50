"""The tables, views and sinks of a job's SQL statements."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import timedelta
from typing import TYPE_CHECKING

from sqlglot import exp

from stateflow.api.graph.event_time import event_time_of
from stateflow.api.joins.lookup_join import cached, check_lookup
from stateflow.api.schema import RowSchema
from stateflow.api.sink import Sink
from stateflow.api.sql.expressions.sql_types import Field, fields_of
from stateflow.api.sql.expressions.tree import Expression, Ref
from stateflow.api.sql.parser import parsed
from stateflow.api.sql.planning.names import Path
from stateflow.api.sql.planning.plan import (
    Computed,
    LateRows,
    LookupTable,
    Plan,
    Shared,
    Table,
    time_of,
    windows_of,
    with_late_rows,
)
from stateflow.api.sql.planning.queries import QueryPlanner
from stateflow.api.sql.problems import Position, SqlText
from stateflow.api.sql.streams import Needs, StreamBuilder
from stateflow.api.streams.data_stream import DataStream
from stateflow.errors import JobDefinitionError
from stateflow.ids import check_name
from stateflow.similar_names import did_you_mean

if TYPE_CHECKING:
    from stateflow.api.joins.lookup_join import ReadTable

_STATEMENTS = "write INSERT INTO sink SELECT …, or CREATE TEMPORARY VIEW name AS SELECT …"


@dataclass
class SqlCatalog:
    """What the SQL statements of a job can name, and how they become operators.

    Attributes:
        tables: the plans of tables and views by name.
        sinks: the sinks by name.
    """

    tables: dict[str, Plan] = field(default_factory=dict)
    sinks: dict[str, Sink] = field(default_factory=dict)
    _streams: dict[str, DataStream] = field(default_factory=dict)
    _lookups: dict[str, ReadTable] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._builder = StreamBuilder(self._streams, self._lookups)

    def register_table(self, name: str, stream: object) -> None:
        """Adds a table. Raises as `StreamExecutionEnvironment.register_table`."""
        if not isinstance(stream, DataStream):
            raise JobDefinitionError(
                "register_table needs a DataStream",
                hint="pass the result of from_source",
                name=name,
                given=repr(stream)[:200],
            )
        self._check_new(name)
        self._streams[name] = stream
        fields, time = fields_of(stream.schema), event_time_of(stream._node)
        self.tables[name] = Table(name, fields, time, Position(1, 1, name))

    def register_lookup_table(self, name: str, read: ReadTable, rows: type[object], cache: timedelta | None) -> None:
        """Adds a table for look-up joins. Raises as `StreamExecutionEnvironment.register_lookup_table`."""
        if not callable(read):
            raise JobDefinitionError(
                "a look-up table has no function that reads it",
                hint='pass lambda spark: spark.read.format("delta").load(path)',
                name=name,
                given=repr(read)[:200],
            )
        fields = fields_of(RowSchema.of(rows))
        check_lookup(read, {each.name: each.name for each in fields}, "left", cache)
        self._check_new(name)
        # One for all joins with the table.
        self._lookups[name] = cached(read, cache)
        self.tables[name] = LookupTable(name, fields, Position(1, 1, name))

    def register_sink(self, name: str, sink: object) -> None:
        """Adds a sink. Raises as `StreamExecutionEnvironment.register_sink`."""
        if not isinstance(sink, Sink):
            raise JobDefinitionError(
                "register_sink needs a Sink", hint="pass DeltaSink(path)", name=name, given=repr(sink)[:200]
            )
        self._check_new(name)
        self.sinks[name] = sink

    def execute(self, text: str, late: LateRows) -> None:
        """Executes statements. Raises as `StreamExecutionEnvironment.sql`."""
        source, statements = SqlText(text), parsed(text)
        if late != LateRows() and (len(statements) > 1 or not isinstance(statements[0], exp.Insert)):
            source.fail(statements[-1], "late rows are of one INSERT", "call sql for each statement")
        for statement in statements:
            if isinstance(statement, exp.Insert):
                self._insert(source, statement, late)
            elif isinstance(statement, exp.Create):
                self._create_view(source, statement)
            else:
                source.fail(statement, "a statement is not supported", f"{_STATEMENTS}; sql_query returns a stream")

    def query(self, text: str, uid: str, late: LateRows) -> DataStream:
        """Returns the stream of a query. Raises as `StreamExecutionEnvironment.sql_query`."""
        source = SqlText(text)
        check_name("the uid of a query", uid)
        statement, *others = parsed(text)
        if others:
            source.fail(others[0], "there are two queries", "call sql_query for each")
        if not isinstance(statement, exp.Query):
            source.fail(statement, "a statement is no query", "write SELECT …; sql executes statements")
        plan = QueryPlanner(source, self.tables).plan(statement, Path(uid))
        return self._built(source, statement, plan, late, Needs(time=True))

    def _built(self, text: SqlText, node: exp.Expr, plan: Plan, late: LateRows, needs: Needs) -> DataStream:
        """Returns the stream of a plan, and registers the table of its late rows."""
        windows = windows_of(plan)
        if late.table:
            self._check_new(late.table)
        if late != LateRows() and not windows:
            hint = "allowed_lateness and late_rows are of TUMBLE, HOP and SESSION with GROUP BY"
            text.fail(node, "a statement does not aggregate windows", hint)
        if late.table and len(windows) > 1:
            hint = "write a statement for each, or a view for the others"
            text.fail(node, "late rows are of several windows", hint, uids=sorted(windows))
        if late.allowed_lateness and any(each.window.kind == "SESSION" for each in windows.values()):
            hint = "a late row moves the bounds of a session, and its earlier result would stay: use the API"
            text.fail(node, "sessions have no allowed lateness", hint)
        stream = self._builder.build(with_late_rows(plan, late), needs)
        if late.table:
            self.register_table(late.table, self._builder.late[late.table])
        return stream

    # -- statements ---------------------------------------------------------------------------------------------------

    def _insert(self, text: SqlText, node: exp.Insert, late: LateRows) -> None:
        target, columns = node.this, []
        if isinstance(target, exp.Schema):
            target, columns = target.this, list(target.expressions)
        if any(node.args.get(name) for name in ("overwrite", "where", "conflict", "returning", "partition")):
            text.fail(node, "a form of INSERT is not supported", "write INSERT INTO sink SELECT …")
        name = target.name
        if name not in self.sinks:
            text.fail(target, "there is no such sink", f"{did_you_mean(name, self.sinks)}; register_sink adds one")
        query = node.expression
        if not isinstance(query, exp.Query):
            text.fail(node, "INSERT has no query", "write INSERT INTO sink SELECT …")
        if node.args.get("with_"):
            query.set("with_", node.args["with_"])
        plan = QueryPlanner(text, self.tables).plan(query, Path(name))
        if columns:
            plan = _renamed(text, node, plan, [each.name for each in columns])
        self._built(text, node, plan, late, Needs()).sink_to(self.sinks[name], uid=name)

    def _create_view(self, text: SqlText, node: exp.Create) -> None:
        if node.kind != "VIEW" or node.args.get("replace") or not isinstance(node.this, exp.Table):
            text.fail(node, "a statement is not supported", _STATEMENTS)
        query, name = node.expression, node.this.name
        if not isinstance(query, exp.Query):
            text.fail(node, "a view has no query", _STATEMENTS)
        self._check_new(name)
        plan = QueryPlanner(text, self.tables).plan(query, Path(name))
        self.tables[name] = Shared(name, plan, time_of(plan), text.of(node), is_view=True)

    def _check_new(self, name: str) -> None:
        check_name("the name of a table or sink", name)
        if name in self.tables or name in self.sinks:
            raise JobDefinitionError(
                "a table, view or sink of this name is registered already", hint="use another name", name=name
            )


def _renamed(text: SqlText, node: exp.Insert, plan: Plan, names: list[str]) -> Plan:
    fields: tuple[Field, ...] = plan.fields
    if len(names) != len(fields) or len(set(names)) != len(names):
        text.fail(
            node.this,
            "INSERT names other columns than the query has",
            "name each column of the query once",
            columns=names,
            query=[each.name for each in fields],
        )
    items: list[tuple[str, Expression]] = [(n, Ref(of.name, of.type)) for n, of in zip(names, fields, strict=True)]
    return Computed(plan, tuple(items), text.of(node.this))
