"""Plans queries: WITH, UNION ALL, and the tables, windows and joins that FROM names."""

from __future__ import annotations

from collections.abc import Mapping, Set
from dataclasses import dataclass, replace
from datetime import timedelta

from sqlglot import exp

from stateflow.api.sql.analysis import Analysis
from stateflow.api.sql.calls import cast, common
from stateflow.api.sql.expressions import INTERVAL, TIMESTAMP, Expression, Field, Ref, columns_of
from stateflow.api.sql.joins import JoinPlanner
from stateflow.api.sql.parser import SqlText
from stateflow.api.sql.plan import (
    Computed,
    LookupTable,
    Path,
    Plan,
    Relation,
    RelationScope,
    Shared,
    United,
    Window,
    WindowTable,
    time_of,
    windows_of,
)
from stateflow.api.sql.selects import SelectPlanner
from stateflow.api.windows.column_windows import BOUNDS
from stateflow.helpers import did_you_mean

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
            path = path.renamed(str(args[0].this))
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
                node, "there is no such table", f"{did_you_mean(node.name, self.tables)}; register_table adds one"
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
