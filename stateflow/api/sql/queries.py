"""Registered tables and sinks, and statements over them: parsed, planned, and declared as operators."""

from __future__ import annotations

from collections.abc import Mapping, Set
from dataclasses import dataclass, field, replace
from datetime import timedelta
from typing import TYPE_CHECKING

from sqlglot import exp

from stateflow.api.graph import event_time_of
from stateflow.api.joins.lookup_join import cache_table, check_lookup
from stateflow.api.schema import RowSchema
from stateflow.api.sink import Sink
from stateflow.api.source import Source
from stateflow.api.sql.analysis import Analysis
from stateflow.api.sql.build import DownstreamNeeds, StreamBuilder
from stateflow.api.sql.calls import cast, common
from stateflow.api.sql.expressions import INTERVAL, TIMESTAMP, Expression, Field, Ref, columns_of, fields_of
from stateflow.api.sql.joins import JoinPlanner
from stateflow.api.sql.parser import SqlPosition, SqlText, parse_statements
from stateflow.api.sql.plan import (
    Computed,
    LateRows,
    LookupTable,
    Path,
    Plan,
    Relation,
    RelationScope,
    Shared,
    Table,
    United,
    Window,
    WindowTable,
    time_of,
    windows_of,
    with_late_rows,
)
from stateflow.api.sql.selects import SelectPlanner
from stateflow.api.streams.data_stream import DataStream
from stateflow.api.windows.column_windows import BOUNDS
from stateflow.errors import JobDefinitionError
from stateflow.helpers import check_name, did_you_mean

if TYPE_CHECKING:
    from stateflow.api.joins.lookup_join import ReadTable


_SELECT_CLAUSES = {"kind", "expressions", "from_", "joins", "where", "group", "having", "with_", "hint", "distinct"}
_WAYS_OUT = {
    "limit": "use ROW_NUMBER() and a condition on it, for the first rows of a key",
    "order": "rows of a stream have no order; use ROW_NUMBER() OVER (… ORDER BY …) for the first rows of a key",
    "qualify": "filter ROW_NUMBER() in an outer query",
    "windows": "write the window after each OVER",
    "laterals": "use transform or map of the stream, and register the result",
    "match": "use match_pattern of the stream, and register the result",
}


@dataclass(frozen=True)
class QueryPlanner:
    """Plans a query.

    Attributes:
        text: the statement.
        tables: the plans of tables, views and queries of WITH, by name.
    """

    text: SqlText
    tables: Mapping[str, Plan]

    def plan(self, node: exp.Expr, path: Path) -> Plan:
        """Returns the plan of a query. Raises JobDefinitionError with the position of what is not supported."""
        planner = self._with_queries(node, path)
        if isinstance(node, exp.Subquery):
            self._check_clauses(node, {"this", "alias", "with_"})
            return planner.plan(node.this, path)
        if isinstance(node, exp.Union):
            return planner._union(node, path)
        if isinstance(node, exp.Select):
            return planner._select(node, path)
        self.text.fail(node, "a query is not supported", "write SELECT, or UNION ALL of several")

    def _with_queries(self, node: exp.Expr, path: Path) -> QueryPlanner:
        clause = node.args.get("with_")
        if clause is None:
            return self
        if clause.args.get("recursive"):
            self.text.fail(clause, "a recursive query is not supported", "leave out RECURSIVE")
        planner = self
        for each in clause.expressions:
            if each.args["alias"].args.get("columns"):
                self.text.fail(
                    each,
                    "a list of columns is not supported after the name of a query in WITH",
                    "name the columns in its SELECT",
                )
            plan = planner.plan(each.this, path.child(each.alias))
            shared = Shared(path.child(each.alias).name, plan, time_of(plan), self.text.of(each))
            planner = replace(planner, tables={**planner.tables, each.alias: shared})
        return planner

    # -- UNION ALL ----------------------------------------------------------------------------------------------------

    def _union(self, node: exp.Union, path: Path) -> Plan:
        branches = self._branches(node)
        plans = [self.plan(each, path.child(str(number))) for number, each in enumerate(branches, 1)]
        names = [each.name for each in plans[0].fields]
        types = []
        for at in range(len(names)):
            kinds = [plan.fields[at].type for plan in plans if len(plan.fields) == len(names)]
            found = common(kinds)
            same = found or (kinds[0] if all(kind.equals(kinds[0]) for kind in kinds) else None)
            if same is None or len(kinds) != len(plans):
                self.text.fail(
                    node,
                    "the queries of UNION ALL have different columns",
                    "select the same number of columns, with the same types",
                    columns=[[f"{each.name} {each.type.spark}" for each in plan.fields] for plan in plans],
                )
            types.append(same.with_null(any(kind.nullable for kind in kinds)))
        converted = []
        for branch, plan in zip(branches, plans, strict=True):
            items: list[tuple[str, Expression]] = []
            for name, kind, each in zip(names, types, plan.fields, strict=True):
                # Only a union of columns can be declared to have nulls: the values are the same.
                ref = Ref(each.name, each.type)
                items.append((name, Ref(each.name, kind) if each.type.equals(kind) else cast(ref, kind)))
            converted.append(Computed(plan, tuple(items), self.text.of(branch)))
        return United(tuple(converted), self.text.of(node))

    def _branches(self, node: exp.Expr) -> list[exp.Expr]:
        if not isinstance(node, exp.Union):
            return [node]
        if node.args.get("distinct") or not isinstance(node, exp.Union):
            self.text.fail(node, "UNION without ALL is not supported", "write UNION ALL, and SELECT DISTINCT of it")
        self._check_clauses(node, {"this", "expression", "distinct", "with_"})
        return [*self._branches(node.this), *self._branches(node.expression)]

    # -- SELECT -------------------------------------------------------------------------------------------------------

    def _select(self, node: exp.Select, path: Path) -> Plan:
        self._check_clauses(node, _SELECT_CLAUSES)
        path = self._hinted(node, path)
        clause = node.args.get("from_")
        if clause is None:
            self.text.fail(node, "a query needs FROM", "name a table that is registered")
        relation = self._table(clause.this, path, "from")
        if isinstance(relation.plan, LookupTable):
            self.text.fail(
                clause.this, "FROM needs a stream, not a look-up table", "name a stream first, and JOIN the table"
            )
        for number, join in enumerate(node.args.get("joins") or (), 1):
            right = self._table(join.this, path, f"join{number}", {"version"})
            self._check_windows(join, relation.plan, right.plan)
            relation = JoinPlanner(self.text, join, relation, right, path, number).plan()
        return SelectPlanner(self.text, path).plan(node, relation)

    def _check_windows(self, join: exp.Join, left: Plan, right: Plan) -> None:
        if isinstance(right, LookupTable) and isinstance(left, WindowTable):
            self.text.fail(
                join,
                "a look-up join does not support rows with windows",
                "look up in an inner query, or aggregate first",
            )
        windows = [each.window if isinstance(each, WindowTable) else None for each in (left, right)]
        if windows == [None, None] or (windows[0] == windows[1] and windows[0] and windows[0].kind != "SESSION"):
            return
        self.text.fail(
            join,
            "joined tables must have the same windows",
            "use TUMBLE or HOP with the same lengths for both, or aggregate the windows in an inner query first",
        )

    def _hinted(self, node: exp.Select, path: Path) -> Path:
        """Returns the path that the hint uid sets."""
        hint = node.args.get("hint")
        for each in hint.expressions if hint else ():
            args = each.expressions if isinstance(each, exp.Anonymous) else []
            if str(each.name).lower() != "uid" or len(args) != 1 or not args[0].is_string:
                self.text.fail(node, "a hint is not supported", "write /*+ uid('name') */ after SELECT")
            path = Path(str(args[0].this))
        return path

    def _check_clauses(self, node: exp.Expr, known: set[str]) -> None:
        self.text.check_parts(node, known, _WAYS_OUT)

    # -- FROM ---------------------------------------------------------------------------------------------------------

    def _table(self, node: exp.Expr, path: Path, default: str, more: Set[str] = frozenset()) -> Relation:
        """Returns what a table of FROM yields.

        Args:
            default: names an inner query without an alias.
            more: further clauses that the table may have.
        """
        if isinstance(node, exp.Subquery):
            self._check_clauses(node, {"this", "alias", "with_", *more})
            if node.args.get("alias") and node.args["alias"].args.get("columns"):
                self.text.fail(
                    node,
                    "a list of columns is not supported after the name of an inner query",
                    "name the columns in its SELECT",
                )
            return Relation.of(self.plan(node.this, path.child(node.alias or default)), node.alias)
        call = window_call(node)
        if call is not None:
            self._check_clauses(node, {"this", "alias"})
            named = call.expressions[0]
            return Relation.of(window_table(self.text, call, self._named(named)), node.alias or named.name)
        if not isinstance(node, exp.Table) or not isinstance(node.this, exp.Identifier):
            self.text.fail(node, "FROM needs a table, a query or a window function", "name a registered table")
        self._check_clauses(node, {"this", "alias", *more})
        return Relation.of(self._named(node), node.alias or node.name)

    def _named(self, node: exp.Table) -> Plan:
        if node.name not in self.tables:
            self.text.fail(
                node, "the table does not exist", f"{did_you_mean(node.name, self.tables)}; register_table adds one"
            )
        return self.tables[node.name]


_FORMS = {
    "TUMBLE": "TUMBLE(TABLE t, DESCRIPTOR(time), INTERVAL '10' SECOND)",
    "HOP": "HOP(TABLE t, DESCRIPTOR(time), slide, size)",
    "SESSION": "SESSION(TABLE t PARTITION BY key, DESCRIPTOR(time), gap)",
}
_ARGUMENTS = {
    "TUMBLE": ("TIMECOL", "SIZE", "OFFSET"),
    "HOP": ("TIMECOL", "SLIDE", "SIZE", "OFFSET"),
    "SESSION": ("TIMECOL", "GAP"),
}


def window_call(node: exp.Expr) -> exp.Anonymous | None:
    """Returns the window function of ``TABLE(TUMBLE(TABLE …))``; None if it is another table."""
    this = node.this if isinstance(node, exp.Table) else None
    if not isinstance(this, exp.Anonymous) or str(this.name).upper() != "TABLE" or len(this.expressions) != 1:
        return None
    call = this.expressions[0]
    return call if isinstance(call, exp.Anonymous) and isinstance((call.expressions or [None])[0], exp.Table) else None


def window_table(text: SqlText, call: exp.Anonymous, plan: Plan) -> WindowTable:
    """Returns the rows of a table with their windows.

    Args:
        call: what `window_call` returned.
        plan: the rows of its table.

    Raises:
        JobDefinitionError: the call is not a window function, or its time is not the event time of the rows.
    """
    name = str(call.name).upper()
    if name not in _FORMS:
        text.fail(call, "a window function is not supported", f"use {', '.join(_FORMS)}", function=name)
    scope = RelationScope(text, Relation.of(plan, "").sources)
    _, *args = call.expressions
    keys: list[str] = []
    if args and isinstance(args[0], exp.Tuple):
        args = list(args[0].expressions)
        while args and isinstance(args[0], exp.Column):
            keys += columns_of(scope.column(args.pop(0)))
    args = _in_order(text, name, args)
    wanted = 3 if name == "HOP" else 2
    if not wanted <= len(args) <= wanted + (name != "SESSION"):
        text.fail(call, "a window function needs other arguments", f"write {_FORMS[name]}", function=name)
    _check_time(text, args[0], plan, scope)
    lengths = [_length(text, each, scope) for each in args[1:]]
    window = _window(name, lengths)
    taken = {each.name for each in plan.fields}
    fields = (*plan.fields, *(Field(bound, TIMESTAMP) for bound in BOUNDS if bound not in taken))
    return WindowTable(plan, window, fields, tuple(keys), text.of(call))


def _in_order(text: SqlText, name: str, args: list[exp.Expr]) -> list[exp.Expr]:
    """Returns the arguments after the table by position; all of them may be named, ``SIZE => …``."""
    names = [each.name if isinstance(each, exp.Kwarg) else "" for each in args]
    if not any(names):
        return args
    wanted = [each for each in _ARGUMENTS[name] if each in names]
    if sorted(wanted) != sorted(names) or wanted != list(_ARGUMENTS[name][: len(wanted)]):
        hint = f"name {', '.join(_ARGUMENTS[name])}, or none"
        text.fail(args[0], "a window function does not have the named arguments", hint, function=name, given=names)
    return [args[names.index(each)].expression for each in wanted]


def _hint_without_time(plan: Plan) -> str:
    """Returns how rows that have no event time get one."""
    windows = windows_of(plan)
    times = {name for each in windows.values() if (name := time_of(each.input))}
    if len(times) == 1:
        return f"in the query of the windows, select window_time AS {times.pop()}"
    return "register a stream with assign_timestamps_and_watermarks, and select its column"


def _window(name: str, lengths: list[timedelta]) -> Window:
    if name == "HOP":
        slide, size, *offset = lengths
        return Window(name, size, slide, *offset)
    size, *offset = lengths
    return Window(name, size, timedelta(), *offset)


def _length(text: SqlText, node: exp.Expr, scope: RelationScope) -> timedelta:
    value = Analysis(text, scope).constant(node, INTERVAL, "a length of windows").value
    assert isinstance(value, timedelta)
    return value


def _check_time(text: SqlText, node: exp.Expr, plan: Plan, scope: RelationScope) -> None:
    columns = node.expressions if isinstance(node, exp.Anonymous) and str(node.name).upper() == "DESCRIPTOR" else []
    if len(columns) != 1 or not isinstance(columns[0], exp.Column):
        text.fail(node, "a window function needs the time of the rows", "write DESCRIPTOR(time)")
    found = scope.column(columns[0])
    time = time_of(plan)
    if not isinstance(found, Ref) or found.name != time:
        text.fail(
            columns[0],
            "windows need the event time of the table",
            f"use DESCRIPTOR({time})" if time else _hint_without_time(plan),
            event_time=time,
        )


_STATEMENTS = "write INSERT INTO sink SELECT …, or CREATE TEMPORARY VIEW name AS SELECT …"


@dataclass
class SqlCatalog:
    """The names that the SQL statements of a job can use, and how statements become operators.

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
        self.tables[name] = Table(name, fields, time, SqlPosition(1, 1, name))

    def register_lookup_table(
        self, name: str, read: ReadTable | Source, rows: type[object], cache: timedelta | None
    ) -> None:
        """Adds a table for look-up joins. Raises as `StreamExecutionEnvironment.register_lookup_table`."""
        if not callable(read) and not isinstance(read, Source):
            raise JobDefinitionError(
                "register_lookup_table needs a source, or a function that reads the table",
                hint="pass DeltaSource(path, schema=Row), or lambda spark: spark.read.jdbc(…)",
                name=name,
                given=repr(read)[:200],
            )
        fields = fields_of(RowSchema.of(rows))
        check_lookup(read, {each.name: each.name for each in fields}, "left", cache)
        self._check_new(name)
        # One for all joins with the table.
        self._lookups[name] = cache_table(read, cache)
        self.tables[name] = LookupTable(name, fields, SqlPosition(1, 1, name))

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
        source, statements = SqlText(text), parse_statements(text)
        if late != LateRows() and (len(statements) > 1 or not isinstance(statements[0], exp.Insert)):
            source.fail(
                statements[-1], "allowed_lateness and late_rows need a single INSERT", "call sql for each statement"
            )
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
        statement, *others = parse_statements(text)
        if others:
            source.fail(others[0], "sql_query takes one query", "call sql_query for each")
        if not isinstance(statement, exp.Query):
            source.fail(statement, "sql_query needs a query", "write SELECT …; sql executes statements")
        plan = QueryPlanner(source, self.tables).plan(statement, Path(uid))
        return self._built(source, statement, plan, late, DownstreamNeeds(time=True))

    def _built(self, text: SqlText, node: exp.Expr, plan: Plan, late: LateRows, needs: DownstreamNeeds) -> DataStream:
        """Returns the stream of a plan, and registers the table of its late rows."""
        windows = windows_of(plan)
        if late.table:
            self._check_new(late.table)
        if late != LateRows() and not windows:
            hint = "allowed_lateness and late_rows are of TUMBLE, HOP and SESSION with GROUP BY"
            text.fail(node, "allowed_lateness and late_rows need a statement that aggregates windows", hint)
        if late.table and len(windows) > 1:
            hint = "write a statement for each, or a view for the others"
            text.fail(node, "late_rows needs a statement with windows of one operator", hint, uids=sorted(windows))
        if late.allowed_lateness and any(each.window.kind == "SESSION" for each in windows.values()):
            hint = "a late row moves the bounds of a session, and its earlier result would stay: use the API"
            text.fail(node, "SQL does not support the allowed lateness of sessions", hint)
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
            text.fail(target, "the sink does not exist", f"{did_you_mean(name, self.sinks)}; register_sink adds one")
        query = node.expression
        if not isinstance(query, exp.Query):
            text.fail(node, "INSERT needs a query", "write INSERT INTO sink SELECT …")
        if node.args.get("with_"):
            query.set("with_", node.args["with_"])
        plan = QueryPlanner(text, self.tables).plan(query, Path(name))
        if columns:
            plan = _renamed(text, node, plan, [each.name for each in columns])
        self._built(text, node, plan, late, DownstreamNeeds()).sink_to(self.sinks[name], uid=name)

    def _create_view(self, text: SqlText, node: exp.Create) -> None:
        if node.kind != "VIEW" or node.args.get("replace") or not isinstance(node.this, exp.Table):
            text.fail(node, "a statement is not supported", _STATEMENTS)
        query, name = node.expression, node.this.name
        if not isinstance(query, exp.Query):
            text.fail(node, "CREATE VIEW needs a query", _STATEMENTS)
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
            "INSERT must name the columns of the query",
            "name each column of the query once",
            columns=names,
            query=[each.name for each in fields],
        )
    items: list[tuple[str, Expression]] = [(n, Ref(of.name, of.type)) for n, of in zip(names, fields, strict=True)]
    return Computed(plan, tuple(items), text.of(node.this))
