"""The meaning of names in a query."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass

from sqlglot import exp

from stateflow.api.sql.expressions.analysis import Scope
from stateflow.api.sql.expressions.sql_types import Field
from stateflow.api.sql.expressions.tree import Expression, Ref, canonical
from stateflow.api.sql.planning.plan import Plan
from stateflow.api.sql.problems import SqlText
from stateflow.similar_names import did_you_mean


@dataclass(frozen=True)
class Source:
    """A table of FROM.

    Attributes:
        alias: the name that qualifies its columns.
        columns: the column of the plan for each of its columns.
    """

    alias: str
    columns: Mapping[str, Field]


@dataclass(frozen=True)
class Relation:
    """What FROM yields: a plan, and its columns by table."""

    plan: Plan
    sources: tuple[Source, ...]

    @classmethod
    def of(cls, plan: Plan, alias: str) -> Relation:
        """Returns the rows of one table."""
        return cls(plan, (Source(alias, {each.name: each for each in plan.fields}),))


class RelationScope(Scope):
    """The columns of the tables in FROM."""

    def __init__(self, text: SqlText, sources: tuple[Source, ...]) -> None:
        self._text = text
        self._sources = sources

    def column(self, node: exp.Column) -> Expression:
        table, name = node.table, node.name
        of = [each for each in self._sources if not table or each.alias == table]
        if not of:
            hint = did_you_mean(table, [each.alias for each in self._sources])
            self._text.fail(node, "a table is not in FROM", hint, table=table)
        found = [each.columns[name] for each in of if name in each.columns]
        if len(found) > 1:
            tables = [each.alias for each in of if name in each.columns]
            self._text.fail(node, "a column is in several tables", f"write {tables[0]}.{name}", tables=tables)
        if not found:
            hint = did_you_mean(name, [each for source in of for each in source.columns])
            self._text.fail(node, "there is no such column", hint, name=name)
        return Ref(found[0].name, found[0].type)

    def star(self, node: exp.Expr, table: str = "") -> list[tuple[str, Expression]]:
        """Returns all columns, or those of a table, for ``*``."""
        of = [each for each in self._sources if not table or each.alias == table]
        if not of:
            hint = did_you_mean(table, [each.alias for each in self._sources])
            self._text.fail(node, "a table is not in FROM", hint, table=table)
        return [(name, Ref(each.name, each.type)) for source in of for name, each in source.columns.items()]


@dataclass(frozen=True)
class Path:
    """The place of a query in a statement; the uids of its operators begin with it.

    Attributes:
        name: names of the statement, and of the queries around it, with dots.
    """

    name: str

    def child(self, name: str) -> Path:
        """Returns the path of a query inside this one."""
        return Path(f"{self.name}.{name}")

    def renamed(self, name: str) -> Path:
        """Returns a path that a hint sets."""
        return Path(name)

    def uid(self, kind: str) -> str:
        """Returns the uid of an operator of this query."""
        return f"{self.name}.{kind}"


def computed_name(prefix: str, expression: Expression) -> str:
    """Returns the name of a computed column that has none: the same for the same expression."""
    if isinstance(expression, Ref):
        return expression.name
    digest = hashlib.sha256(canonical(expression).encode()).hexdigest()
    return f"{prefix}_{digest[:10]}"
