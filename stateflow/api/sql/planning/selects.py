"""Plans of SELECT over what FROM yields."""

from __future__ import annotations

from dataclasses import dataclass, replace

from sqlglot import exp

from stateflow.api.sql.expressions.analysis import Analysis
from stateflow.api.sql.expressions.sql_types import BIGINT, BOOLEAN, TIMESTAMP, Field
from stateflow.api.sql.expressions.tree import Constant, Expression, Ref, columns_of, conjuncts, replaced
from stateflow.api.sql.planning.aggregates import Groups, has_aggregate, is_aggregate, refuse_aggregates
from stateflow.api.sql.planning.names import Path, Relation, RelationScope, Source, computed_name
from stateflow.api.sql.planning.over import OverScope
from stateflow.api.sql.planning.plan import BOUNDS, Filtered, Grouped, Plan, Windowed, WindowTable, source_time, time_of
from stateflow.api.sql.planning.pushdown import columns, filtered
from stateflow.api.sql.planning.ranking import Numbered
from stateflow.api.sql.problems import SqlText

_EVERY = "all_rows"
"""The key of rows that have none."""


@dataclass(frozen=True)
class SelectPlanner:
    """Plans the clauses after FROM.

    Attributes:
        path: where the query stands.
    """

    text: SqlText
    path: Path

    def plan(self, node: exp.Select, relation: Relation) -> Plan:
        """Returns the plan. Raises JobDefinitionError with the position of what is not supported."""
        plan, scope = relation.plan, RelationScope(self.text, relation.sources)
        window = plan if isinstance(plan, WindowTable) else None
        if window is not None:
            plan = window.input
            scope = RelationScope(self.text, _with_bounds(relation.sources))
        plan = self._filtered(node, plan, scope)
        if window is not None or node.args.get("group") or any(map(has_aggregate, node.expressions)):
            return self._aggregated(node, plan, scope, window)
        having = node.args.get("having")
        if having:
            self.text.fail(having, "HAVING needs GROUP BY", "use WHERE")
        return self._distinct(node, self._computed(node, plan, relation.sources))

    def _filtered(self, node: exp.Select, plan: Plan, scope: RelationScope) -> Plan:
        """Returns the rows that pass WHERE."""
        conditions, _ = self._conditions(node, plan, scope)
        if not conditions:
            return plan
        at = self.text.of(node.args["where"])
        numbered = Numbered.of(plan, conditions)
        if numbered is not None:
            conditions = list(numbered.rest)
            used = {column for condition in conditions for column in columns_of(condition)}
            plan = numbered.top(used | ({numbered.name} if _uses(node, numbered.name) else set()))
        return filtered(plan, conditions, Filtered(plan, Constant(True, BOOLEAN), at))

    def _conditions(
        self, node: exp.Select, plan: Plan, scope: RelationScope
    ) -> tuple[list[Expression], list[Expression]]:
        """Returns the conditions of WHERE over the rows, and those over the windows of the rows.

        Raises:
            JobDefinitionError: a condition is over both.
        """
        where = node.args.get("where")
        if where is None:
            return [], []
        refuse_aggregates(self.text, where.this, "WHERE", "use HAVING, or WHERE of an outer query")
        own, of_rows, of_windows = {each.name for each in plan.fields}, list[Expression](), list[Expression]()
        for each in conjuncts(Analysis(self.text, scope).condition(where.this)):
            names = set(columns_of(each))
            if not names <= own and names & own:
                hint = "compare the bounds of a window with literals: a condition is over a row, or over its windows"
                self.text.fail(where, "a row is compared with its windows", hint)
            (of_rows if names <= own else of_windows).append(each)
        return of_rows, of_windows

    # -- columns ------------------------------------------------------------------------------------------------------

    def _computed(self, node: exp.Select, plan: Plan, sources: tuple[Source, ...]) -> Plan:
        scope = OverScope(self.text, sources, plan)
        analysis = Analysis(self.text, scope)
        items: list[tuple[str, Expression]] = []
        for each in node.expressions:
            if isinstance(each, exp.Star):
                self._check_star(each)
                items += scope.star(each)
            elif isinstance(each, exp.Column) and isinstance(each.this, exp.Star):
                self._check_star(each.this)
                items += scope.star(each, each.table)
            else:
                name = self._name(each)
                scope.wanted = name if isinstance(each.unalias(), exp.Window) else ""
                items.append((name, analysis.of(each.unalias())))
        self._check_items(node, items, plan)
        if scope.frame is not None:
            plan = scope.plan(self.path, items, node)
        return columns(plan, items, self.text.of(node))

    def _check_star(self, star: exp.Star) -> None:
        if any(star.args.values()):
            self.text.fail(star, "a star with other clauses is not supported", "name the columns")

    def _name(self, node: exp.Expr) -> str:
        name = node.alias_or_name if isinstance(node, exp.Alias | exp.Column) else ""
        if not name:
            self.text.fail(node, "a computed column has no name", "add AS name")
        return name

    def _check_items(self, node: exp.Select, items: list[tuple[str, Expression]], plan: Plan) -> None:
        names = [name.lower() for name, _ in items]
        time = source_time(plan)
        for at, (name, expression) in enumerate(items):
            where = node.expressions[at] if len(node.expressions) == len(items) else node
            if names.count(name.lower()) > 1 or not name.isidentifier() or name.startswith("_"):
                self.text.fail(
                    where,
                    "a column has a name that another one has, or that is no name of a field",
                    "add AS with a name of letters, digits and _, which differs in more than case",
                    name=name,
                )
            if expression.type.name in ("null", "interval"):
                self.text.fail(where, "a column has no type", "write CAST(… AS STRING)", name=name)
            is_time = isinstance(expression, Ref) and expression.name == time
            if name == time and not is_time:
                self.text.fail(
                    where, "a column has the name of the event time, and other values", "add AS with another name"
                )

    def _distinct(self, node: exp.Select, plan: Plan) -> Plan:
        distinct = node.args.get("distinct")
        if distinct is None:
            return plan
        if distinct.args.get("on"):
            self.text.fail(distinct, "DISTINCT ON is not supported", "use ROW_NUMBER() and a condition on it")
        keys = tuple(each.name for each in plan.fields)
        return Grouped(plan, keys, (), plan.fields, self.path.uid("distinct"), self.text.of(distinct))

    # -- GROUP BY -----------------------------------------------------------------------------------------------------

    def _aggregated(self, node: exp.Select, plan: Plan, scope: RelationScope, window: WindowTable | None) -> Plan:
        fixed = self._bounds(node, scope, window)
        groups = Groups(self.text, scope, self._keys(node, scope, fixed, window), fixed)
        analysis = Analysis(self.text, groups)
        items: list[tuple[str, Expression]] = []
        for each in node.expressions:
            if isinstance(each, exp.Star):
                self.text.fail(each, "a query with GROUP BY selects *", "name the columns")
            name = self._name(each)
            groups.wanted = name if is_aggregate(each.unalias()) else ""
            items.append((name, analysis.of(each.unalias())))
        having = node.args.get("having")
        conditions = [analysis.condition(having.this)] if having else []
        if window is not None:
            # A window passes WHERE with all of its rows, or with none.
            bounds = {bound: Ref(name, TIMESTAMP) for bound, name in fixed.items()}
            of_rows, of_windows = self._conditions(node, window.input, scope)
            conditions += [replaced(each, bounds) for each in of_windows]
            used = {column for each in conditions for column in columns_of(each)}
            # A condition over the keys of sessions removes all sessions of a key.
            divides = any(not set(columns_of(each)) <= set(window.keys) for each in of_rows)
            if divides and window.window.kind == "SESSION" and used & set(fixed.values()):
                # Flink then forms the sessions of all rows, and without a condition over windows of those that pass.
                hint = "filter the rows in a query of WITH, and name that in SESSION(TABLE …)"
                self.text.fail(node.args["where"], "rows and their sessions are filtered in one query", hint)
        self._check_items(node, items, plan)
        made = self._operator(node, plan, window, _Selected(groups, items, conditions))
        for each in conditions:
            made = Filtered(made, each, self.text.of(having or node.args["where"]))
        return self._distinct(node, columns(made, items, self.text.of(node)))

    def _bounds(self, node: exp.Select, scope: RelationScope, window: WindowTable | None) -> dict[str, str]:
        """Returns the columns of the result for bounds of the window in GROUP BY."""
        if window is None:
            return {}
        group = node.args.get("group")
        grouped = {each.name for each in group.expressions if isinstance(each, exp.Column)} if group else set()
        if not {"window_start", "window_end"} <= grouped:
            self.text.fail(
                group or node, "windows are not aggregated", "write GROUP BY window_start, window_end, and other keys"
            )
        aliases = {
            each.this.name: each.alias
            for each in node.expressions
            if isinstance(each, exp.Alias) and isinstance(each.this, exp.Column) and each.this.name in BOUNDS
        }
        return {bound: aliases.get(bound, bound) for bound in BOUNDS}

    def _keys(
        self, node: exp.Select, scope: RelationScope, fixed: dict[str, str], window: WindowTable | None
    ) -> dict[str, Expression]:
        """Returns the keys by name: that of a selected column that consists of the key, if there is one."""
        group = node.args.get("group")
        analysis = Analysis(self.text, scope)
        named = {each.unalias().sql(): self._name(each) for each in node.expressions if isinstance(each, exp.Alias)}
        if group:
            self._check_group(group)
        keys: dict[str, Expression] = {}
        for each in group.expressions if group else ():
            refuse_aggregates(self.text, each, "GROUP BY", "group by the result in an outer query")
            expression = analysis.of(each)
            if isinstance(expression, Ref) and expression.name in fixed:
                continue
            if isinstance(expression, Constant):
                self.text.fail(each, "GROUP BY has a literal", "name a column; its number is not supported")
            keys[named.get(each.sql()) or computed_name("key", expression)] = expression
        grouped = {each.name for each in keys.values() if isinstance(each, Ref)}
        if window is not None and not set(window.keys) <= grouped:
            self.text.fail(group or node, "keys of a session are not in GROUP BY", "add them", keys=list(window.keys))
        if not keys and window is None:
            self.text.fail(
                node,
                "an aggregate over all rows is not supported",
                "add GROUP BY: a result that is corrected needs a key",
            )
        return keys or {_EVERY: Constant(0, BIGINT)}

    def _check_group(self, group: exp.Group) -> None:
        for name, value in group.args.items():
            if value and name != "expressions":
                self.text.fail(group, "a form of GROUP BY is not supported", "write one query for each of the groups")

    def _operator(self, node: exp.Select, plan: Plan, window: WindowTable | None, selected: _Selected) -> Plan:
        groups = selected.groups
        if window is not None and not groups.aggregates:
            groups.wanted = "window_rows"
            groups.other(exp.Anonymous(this="COUNT", expressions=[exp.Star()]))
        groups.fixed = {bound: name for bound, name in groups.fixed.items() if name in selected.columns}
        before = self._before(node, plan, groups, time_of(plan) if window is not None else "")
        keys, fields = tuple(groups.keys), selected.fields
        aggregates = tuple(aggregate for aggregate, _ in groups.aggregates.values())
        if window is None:
            uid = self.path.uid("aggregate" if aggregates else "distinct")
            return Grouped(before, keys, aggregates, fields, uid, self.text.of(node.args["group"]))
        bounds = tuple((name, bound) for bound, name in groups.fixed.items())
        return Windowed(before, window.window, keys, aggregates, bounds, fields, self.path.uid("window"), window.at)

    def _before(self, node: exp.Select, plan: Plan, groups: Groups, time: str) -> Plan:
        """Returns what is computed of each row before the aggregation."""
        items = dict(groups.before)
        own = {each.name for each in plan.fields}
        if any(not set(columns_of(each)) <= own for each in items.values()):
            hint = "use them in SELECT, HAVING or WHERE by themselves, or aggregate the windows in an outer query"
            self.text.fail(node, "bounds of windows are part of a key or of an aggregate", hint)
        if time:
            ref = next(Ref(time, each.type) for each in plan.fields if each.name == time)
            if items.setdefault(time, ref) != ref:
                self.text.fail(node, "a key has the name of the event time, and other values", "add AS another name")
        return columns(plan, list(items.items()), self.text.of(node))


@dataclass(frozen=True)
class _Selected:
    """The clauses after GROUP BY.

    Attributes:
        items: name and expression of each selected column.
        conditions: of HAVING, and those of WHERE over windows.
    """

    groups: Groups
    items: list[tuple[str, Expression]]
    conditions: list[Expression]

    @property
    def columns(self) -> set[str]:
        """The columns of the aggregation that are used."""
        every = [*(expression for _, expression in self.items), *self.conditions]
        return {column for expression in every for column in columns_of(expression)}

    @property
    def fields(self) -> tuple[Field, ...]:
        """The columns of the aggregation: those that are selected as they are first, in their order."""
        groups = self.groups
        made = {name: Field(name, expression.type) for name, expression in groups.keys.items()}
        made |= {name: Field(name, of) for name, (_, of) in groups.aggregates.items()}
        made |= {name: Field(name, TIMESTAMP) for name in groups.fixed.values()}
        selected = (name for name, each in self.items if isinstance(each, Ref) and each.name == name)
        return tuple(made[name] for name in dict.fromkeys([*selected, *made]) if name in made)


def _uses(node: exp.Select, name: str) -> bool:
    """Returns whether the clauses after WHERE use a column of FROM."""
    parts = [*node.expressions, *(node.args[clause] for clause in ("group", "having") if node.args.get(clause))]
    if any(isinstance(each, exp.Star) for each in node.expressions):
        return True
    found = [column for part in parts for column in part.find_all(exp.Column)]
    return any(column.name == name or isinstance(column.this, exp.Star) for column in found)


def _with_bounds(sources: tuple[Source, ...]) -> tuple[Source, ...]:
    """Returns the table of a window function with the columns for the bounds of its windows."""
    (only,) = sources
    return (replace(only, columns={**{bound: Field(bound, TIMESTAMP) for bound in BOUNDS}, **only.columns}),)
