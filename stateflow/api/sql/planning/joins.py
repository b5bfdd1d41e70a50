"""JOIN: keys, bounds of time, and conditions that are applied before or after it."""

from __future__ import annotations

from collections.abc import Sequence, Set
from dataclasses import dataclass, replace
from datetime import UTC, date, datetime
from decimal import Decimal

from sqlglot import exp

from stateflow.api.sql.expressions.analysis import Analysis
from stateflow.api.sql.expressions.calls import NOT_DISTINCT, call, cast, common
from stateflow.api.sql.expressions.sql_types import BOOLEAN, Field
from stateflow.api.sql.expressions.tree import (
    Call,
    Constant,
    Expression,
    Ref,
    Value,
    columns_of,
    conjuncts,
    not_null,
    replaced,
)
from stateflow.api.sql.planning import lookups
from stateflow.api.sql.planning.names import Path, Relation, RelationScope, Source, computed_name
from stateflow.api.sql.planning.plan import (
    BOUNDS,
    Computed,
    Filtered,
    Joined,
    LookupTable,
    Plan,
    Window,
    WindowTable,
    source_time,
    time_of,
)
from stateflow.api.sql.planning.time_bounds import TimeBounds
from stateflow.api.sql.problems import SqlText

_KNOWN = {"this", "on", "kind", "side"}
_SOME: dict[str, Value] = {
    "bigint": 0,
    "double": 0.0,
    "decimal": Decimal(),
    "string": "",
    "boolean": False,
    "binary": b"",
    "date": date(1970, 1, 1),
    "timestamp_ntz": datetime(1970, 1, 1),  # noqa: DTZ001 - a timestamp without time zone
    "timestamp": datetime(1970, 1, 1, tzinfo=UTC),
}
"""A value of each type, in the place of null."""


@dataclass
class JoinPlanner:
    """Plans one join.

    Attributes:
        text: the statement.
        node: the join.
        left, right: what it joins.
        number: of the join in its query, for its uid.
    """

    text: SqlText
    node: exp.Join
    left: Relation
    right: Relation
    path: Path
    number: int

    def plan(self) -> Relation:
        """Returns the joined rows. Raises JobDefinitionError with the position of what is not supported."""
        how, version = self._how(), self._version()
        (source,) = self.right.sources
        if not source.alias or source.alias in [each.alias for each in self.left.sources]:
            self.text.fail(self.node.this, "a joined table has no name of its own", "add AS with another name")
        self._right_names = self._renamed()
        self._left_names = {each.name for each in self.left.plan.fields}
        self._times = self._time_bounds()
        conditions = self._conditions(self._sources(False, False))
        keys, others = self._keys(conditions, how)
        window = _windows_of(self.text, self.node, self.left.plan, keys)
        if window is not None:
            keys = [pair for pair in keys if not _is_of_window(pair[0])]
        if not keys:
            self.text.fail(self.node, "a join needs an equality of columns", "add ON a.id = b.id")
        if lookups.is_lookup(self.text, self.node, self.right.plan):
            own = [each for each in others if how == "inner" and self._is_of(each, left=True)]
            made = self._joined("lookup", how, keys, [own, []])
            return self._filtered(made, how, [each for each in others if each not in own])
        before, rest = self._pushed(how, others)
        bounds = None if version is not None or window is not None else self._times.of_all(rest)
        if bounds is not None and self._times.is_exact:
            rest = [each for each in rest if self._times.of(each) is None]
        kind = "temporal" if version is not None else "interval" if bounds else "window" if window else "regular"
        self._check(kind, how)
        made = self._joined(kind, how, keys, before)
        made = replace(made, bounds=bounds) if bounds else made
        made = _with_windows(made, window) if window is not None else made
        return self._filtered(made, how, rest)

    def _filtered(self, made: Joined, how: str, conditions: Sequence[Expression]) -> Relation:
        """Returns the joined rows that pass conditions; in an outer join, a row without such a pair is kept."""
        plan: Plan = made
        if conditions and how != "inner":
            names = {column for each in conditions for column in columns_of(each)}
            tested = tuple(each for each in made.columns if each[0] in names)
            plan, conditions = replace(made, condition=call("and", conditions), tested=tested), ()
        for each in conditions:
            plan = Filtered(plan, each, self.text.of(self.node.args["on"]))
        outer = how in ("right", "full"), how in ("left", "full")
        return Relation(plan, self._sources(*outer))

    # -- what is declared ---------------------------------------------------------------------------------------------

    def _how(self) -> str:
        args = {name for name, value in self.node.args.items() if value}
        kind = str(self.node.args.get("kind") or "").upper()
        if not args <= _KNOWN or kind not in ("", "INNER", "OUTER") or not self.node.args.get("on"):
            self.text.fail(
                self.node, "a kind of join is not supported", "write JOIN, or LEFT JOIN, with ON a.id = b.id"
            )
        return str(self.node.args.get("side") or "inner").lower()

    def _version(self) -> exp.Version | None:
        """Returns the clause FOR SYSTEM_TIME AS OF. Raises JobDefinitionError for other forms."""
        version: exp.Version | None = self.node.this.args.get("version")
        if version is not None and (version.name, version.args["kind"]) != ("SYSTEM_TIME AS OF", "AS OF"):
            self.text.fail(version, "a form of versions is not supported", "write FOR SYSTEM_TIME AS OF and a time")
        return version

    def _renamed(self) -> dict[str, Field]:
        """Returns the columns of the right side by the name that they have in the result."""
        (source,) = self.right.sources
        taken = {each.name.lower() for each in self.left.plan.fields}
        taken |= {each.name.lower() for each in self.right.plan.fields}
        names: dict[str, Field] = {}
        clashes = {each.name.lower() for each in self.left.plan.fields}
        if isinstance(self.right.plan, LookupTable):
            clashes.add(source_time(self.left.plan).lower())
        for each in self.right.plan.fields:
            name = each.name
            if name.lower() in clashes:
                name = f"{source.alias}_{name}"
                while name.lower() in taken:
                    name += "_"
                taken.add(name.lower())
            names[name] = each
        return names

    def _sources(self, left_null: bool, right_null: bool) -> tuple[Source, ...]:
        (source,) = self.right.sources
        out = {each.name: Field(name, _nullable(each, right_null).type) for name, each in self._right_names.items()}
        left = tuple(
            replace(each, columns={name: _nullable(of, left_null) for name, of in each.columns.items()})
            for each in self.left.sources
        )
        return (*left, Source(source.alias, {name: out[of.name] for name, of in source.columns.items()}))

    def _conditions(self, sources: tuple[Source, ...]) -> list[Expression]:
        analysis = Analysis(self.text, RelationScope(self.text, sources))
        return conjuncts(analysis.condition(self.node.args["on"]))

    def _time_bounds(self) -> TimeBounds:
        left, right = time_of(self.left.plan), time_of(self.right.plan)
        names = [name for name, each in self._right_names.items() if right and each.name == right]
        kinds = {each.name: each.type for each in (*self.left.plan.fields, *self.right.plan.fields)}
        is_exact = not any(kinds[name].is_time for name in (left, right) if name)
        return TimeBounds([left] if left else [], names, is_exact)

    def _is_of(self, expression: Expression, *, left: bool) -> bool:
        """Returns whether an expression has columns, and only those of one side."""
        names = set(columns_of(expression))
        return bool(names) and names <= (self._left_names if left else set(self._right_names))

    def _of_right(self, expression: Expression) -> Expression:
        """Returns an expression of right columns by the names that they have there."""
        return replaced(expression, {name: Ref(of.name, of.type) for name, of in self._right_names.items()})

    def _keys(
        self, conditions: list[Expression], how: str
    ) -> tuple[list[tuple[Expression, Expression]], list[Expression]]:
        """Returns the pairs that are equal, and the other conditions."""
        keys, others = [], []
        times = [each for each in conditions if how == "inner" and self._times.of(each) is not None]
        if len(times) == len(conditions):
            times = []
        for each in conditions:
            if each in times:
                # Equal times are bounds: then rows are removed when their time has passed.
                others.append(each)
                continue
            pair = self._pair(each)
            if pair is None:
                others.append(each)
            elif isinstance(each, Call) and each.function == NOT_DISTINCT:
                keys += _null_safe(*pair)
            else:
                keys.append(pair)
        return keys, others

    def _pair(self, condition: Expression) -> tuple[Expression, Expression] | None:
        """Returns what is equal on the left and on the right side; None for a condition of another form."""
        if not isinstance(condition, Call) or condition.function not in ("eq", NOT_DISTINCT):
            return None
        for left, right in (condition.args, condition.args[::-1]):
            if self._is_of(left, left=True) and self._is_of(right, left=False):
                return left, self._of_right(right)
        return None

    def _pushed(self, how: str, others: list[Expression]) -> tuple[list[list[Expression]], list[Expression]]:
        """Returns the conditions of each side that its rows can be filtered by before the join, and the rest."""
        before: list[list[Expression]] = [[], []]
        # Rows have the bounds of their windows only after the join.
        bounds: set[str] = set()
        if isinstance(self.left.plan, WindowTable):
            bounds = {*BOUNDS, *(name for name, each in self._right_names.items() if each.name in BOUNDS)}
        # A version that does not meet a condition still ends the one before it.
        has_versions = self.node.this.args.get("version") is not None
        rest = []
        for each in others:
            if not set(columns_of(each)).isdisjoint(bounds):
                rest.append(each)
            elif self._is_of(each, left=True) and how in ("inner", "right"):
                before[0].append(each)
            elif self._is_of(each, left=False) and how in ("inner", "left") and not has_versions:
                before[1].append(self._of_right(each))
            else:
                rest.append(each)
        return before, rest

    def _check(self, kind: str, how: str) -> None:
        if kind in ("interval", "window") and how != "inner":
            self.text.fail(self.node, f"an outer {kind} join is not supported", "use an inner join")
        if kind != "temporal":
            return
        version = self.node.this.args["version"]
        time, scope = time_of(self.left.plan), RelationScope(self.text, self.left.sources)
        column = version.expression
        found = scope.column(column) if isinstance(column, exp.Column) else None
        if how not in ("inner", "left") or not time_of(self.right.plan) or found is None or not time:
            self.text.fail(version, "a temporal join needs two tables with event time", "use JOIN or LEFT JOIN of them")
        if not isinstance(found, Ref) or found.name != time:
            self.text.fail(version, "versions are those of another time", f"write FOR SYSTEM_TIME AS OF {time}")

    # -- the plan -----------------------------------------------------------------------------------------------------

    def _joined(
        self, kind: str, how: str, keys: list[tuple[Expression, Expression]], before: list[list[Expression]]
    ) -> Joined:
        pairs = [_same_type(*pair) for pair in keys]
        own, their = [pair[0] for pair in pairs], [pair[1] for pair in pairs]
        right: Plan
        if kind == "lookup":
            lookups.check_kind(self.text, self.node, how)
            rows = self.left.plan
            for each in before[0]:
                rows = Filtered(rows, each, self.text.of(self.node))
            left, left_keys = lookups.keyed_rows(rows, own, self.text.of(self.node))
            right, right_keys = self.right.plan, lookups.key_columns(self.text, self.node, their)
        else:
            left, left_keys = self._side(self.left.plan, own, before[0], how in ("left", "full"))
            right, right_keys = self._side(self.right.plan, their, before[1], how in ("right", "full"))
        columns = [(each.name, True, each.name) for each in self.left.plan.fields]
        columns += [(name, False, each.name) for name, each in self._right_names.items()]
        fields = self._fields(how, left_keys, right_keys)
        uid = self.path.uid("join" if self.number == 1 else f"join{self.number}")
        at = self.text.of(self.node)
        return Joined(left, right, kind, how, left_keys, right_keys, tuple(columns), tuple(fields), uid, at)

    def _fields(self, how: str, left_keys: Sequence[str], right_keys: Sequence[str]) -> list[Field]:
        """Returns the columns of the result, those of the left side first."""
        outer_left, outer_right = how in ("right", "full"), how in ("left", "full")
        # Null is equal to nothing: the keys of an inner join are not null.
        keys = (set(left_keys), set(right_keys)) if how == "inner" else (set[str](), set[str]())
        fields = [_emitted(each, each.name, outer_left, keys[0]) for each in self.left.plan.fields]
        return fields + [_emitted(each, name, outer_right, keys[1]) for name, each in self._right_names.items()]

    def _side(
        self, plan: Plan, keys: list[Expression], conditions: list[Expression], is_kept: bool
    ) -> tuple[Plan, tuple[str, ...]]:
        """Returns the rows of a side with its keys as columns.

        Args:
            is_kept: whether rows without a partner are kept.
        """
        at = self.text.of(self.node)
        if isinstance(plan, WindowTable):
            plan = plan.input
        for each in keys:
            if each.type.nullable and not is_kept:
                # Null is equal to nothing.
                conditions = [*conditions, Call("not", (Call("is null", (each,), BOOLEAN),), BOOLEAN)]
        for condition in conditions:
            plan = Filtered(plan, condition, at)
        items: dict[str, Expression] = {each.name: Ref(each.name, each.type) for each in plan.fields}
        names = []
        for each in keys:
            name = computed_name("key", each)
            items[name] = each if is_kept else not_null(each)
            names.append(name)
        return Computed(plan, tuple(items.items()), at), tuple(names)


def _null_safe(left: Expression, right: Expression) -> list[tuple[Expression, Expression]]:
    """Returns pairs that are equal where both values are equal, or both are null."""
    pair = _same_type(left, right)
    if not all(each.type.nullable for each in pair):
        return [pair]
    of = pair[0].type.with_null(False)
    some = Constant(_SOME[of.name], of)
    values = (Call("coalesce", (each, some), of) for each in pair)
    is_null = (Call("is null", (each,), BOOLEAN) for each in pair)
    return [(next(is_null), next(is_null)), (next(values), next(values))]


def _same_type(left: Expression, right: Expression) -> tuple[Expression, Expression]:
    target = common([left.type, right.type])
    assert target is not None
    return cast(left, target), cast(right, target)


def _windows_of(
    text: SqlText, node: exp.Join, plan: Plan, keys: Sequence[tuple[Expression, Expression]]
) -> Window | None:
    """Returns the windows of a join of two tables with windows; None for other tables."""
    if not isinstance(plan, WindowTable):
        return None
    equal = {left.name for left, right in keys if isinstance(left, Ref) and left == right}
    if not equal >= {"window_start", "window_end"} or any(map(_is_mixed, keys)):
        text.fail(
            node.args["on"],
            "tables with windows are joined without their windows",
            "add ON a.window_start = b.window_start AND a.window_end = b.window_end, and other keys",
        )
    return plan.window


def _is_of_window(expression: Expression) -> bool:
    return isinstance(expression, Ref) and expression.name in BOUNDS


def _is_mixed(pair: tuple[Expression, Expression]) -> bool:
    """Returns whether a bound of a window is equal to something else."""
    has_bounds = [bool(set(columns_of(each)) & set(BOUNDS)) for each in pair]
    return any(has_bounds) and not (_is_of_window(pair[0]) and pair[0] == pair[1])


def _with_windows(join: Joined, window: Window) -> Joined:
    """Returns a join of windows: columns with bounds are those of the window, not of a row."""
    bounds = tuple((name, of) for name, _, of in join.columns if of in BOUNDS)
    columns = tuple(each for each in join.columns if each[2] not in BOUNDS)
    return replace(join, columns=columns, window=window, window_bounds=bounds)


def _emitted(of: Field, name: str, is_null: bool, keys: Set[str]) -> Field:
    """Returns a column of the result by its name there, which is not null if it is one of the keys."""
    kind = _nullable(of, is_null).type
    return Field(name, kind.with_null(False) if of.name in keys else kind)


def _nullable(of: Field, is_null: bool) -> Field:
    return Field(of.name, of.type.with_null(True)) if is_null else of
