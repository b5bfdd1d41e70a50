"""Plans of queries: WITH, UNION ALL, and what FROM names."""

from __future__ import annotations

from collections.abc import Mapping, Set
from dataclasses import dataclass, replace

from sqlglot import exp

from stateflow.api.sql.expressions.calls import cast, common
from stateflow.api.sql.expressions.tree import Expression, Ref
from stateflow.api.sql.planning.joins import JoinPlanner
from stateflow.api.sql.planning.names import Path, Relation
from stateflow.api.sql.planning.plan import Computed, LookupTable, Plan, Shared, United, WindowTable, time_of
from stateflow.api.sql.planning.selects import SelectPlanner
from stateflow.api.sql.planning.windows import window_call, window_table
from stateflow.api.sql.problems import SqlText
from stateflow.similar_names import did_you_mean

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
                self.text.fail(each, "a query of WITH has a list of columns", "name the columns in its SELECT")
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
            self.text.fail(node, "a query has no FROM", "name a table that is registered")
        relation = self._table(clause.this, path, "from")
        if isinstance(relation.plan, LookupTable):
            self.text.fail(clause.this, "a look-up table is no stream", "name a stream first, and JOIN the table")
        for number, join in enumerate(node.args.get("joins") or (), 1):
            right = self._table(join.this, path, f"join{number}", {"version"})
            self._check_windows(join, relation.plan, right.plan)
            relation = JoinPlanner(self.text, join, relation, right, path, number).plan()
        return SelectPlanner(self.text, path).plan(node, relation)

    def _check_windows(self, join: exp.Join, left: Plan, right: Plan) -> None:
        if isinstance(right, LookupTable) and isinstance(left, WindowTable):
            self.text.fail(join, "rows with windows are looked up", "look up in an inner query, or aggregate first")
        windows = [each.window if isinstance(each, WindowTable) else None for each in (left, right)]
        if windows == [None, None] or (windows[0] == windows[1] and windows[0] and windows[0].kind != "SESSION"):
            return
        self.text.fail(
            join,
            "a table with windows is joined with a table that has others",
            "use TUMBLE or HOP with the same lengths for both, or aggregate the windows in an inner query first",
        )

    def _hinted(self, node: exp.Select, path: Path) -> Path:
        """Returns the path that the hint uid sets."""
        hint = node.args.get("hint")
        for each in hint.expressions if hint else ():
            args = each.expressions if isinstance(each, exp.Anonymous) else []
            if str(each.name).lower() != "uid" or len(args) != 1 or not args[0].is_string:
                self.text.fail(node, "a hint is not known", "write /*+ uid('name') */ after SELECT")
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
                self.text.fail(node, "an inner query has a list of columns", "name the columns in its SELECT")
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
