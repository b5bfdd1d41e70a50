"""Plans JOIN: keys, bounds of time, and look-ups of tables.

Conditions move before joins, and columns that nothing uses are removed.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence, Set
from dataclasses import dataclass, replace
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal

from sqlglot import exp

from stateflow.api.sql.analysis import Analysis
from stateflow.api.sql.calls import NOT_DISTINCT, call, cast, common
from stateflow.api.sql.expressions import (
    BOOLEAN,
    Call,
    Constant,
    Expression,
    Field,
    Ref,
    Value,
    columns_of,
    conjuncts,
    not_null,
    replace_columns,
)
from stateflow.api.sql.parser import SqlPosition, SqlText
from stateflow.api.sql.plan import (
    Computed,
    Filtered,
    FromTable,
    Joined,
    LookupTable,
    Path,
    Plan,
    Relation,
    RelationScope,
    Window,
    WindowTable,
    name_computed_column,
    source_time,
    time_of,
)
from stateflow.api.windows.column_windows import BOUNDS
from stateflow.types.declared_types import SCALAR_TYPES

_KNOWN = {"this", "on", "kind", "side"}
_SOME: dict[str, Value] = {
    **{each.spark: each.python() for each in SCALAR_TYPES if each.python in (int, float, str, bool, bytes)},
    "decimal": Decimal(),
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
            self.text.fail(self.node.this, "a joined table needs a name of its own", "add AS with another name")
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
        if is_lookup(self.text, self.node, self.right.plan):
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

    def _sources(self, left_null: bool, right_null: bool) -> tuple[FromTable, ...]:
        (source,) = self.right.sources
        out = {each.name: Field(name, _nullable(each, right_null).type) for name, each in self._right_names.items()}
        left = tuple(
            replace(each, columns={name: _nullable(of, left_null) for name, of in each.columns.items()})
            for each in self.left.sources
        )
        return (*left, FromTable(source.alias, {name: out[of.name] for name, of in source.columns.items()}))

    def _conditions(self, sources: tuple[FromTable, ...]) -> list[Expression]:
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
        return replace_columns(expression, {name: Ref(of.name, of.type) for name, of in self._right_names.items()})

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
            self.text.fail(
                version,
                "FOR SYSTEM_TIME AS OF needs the event time of the left table",
                f"write FOR SYSTEM_TIME AS OF {time}",
            )

    # -- the plan -----------------------------------------------------------------------------------------------------

    def _joined(
        self, kind: str, how: str, keys: list[tuple[Expression, Expression]], before: list[list[Expression]]
    ) -> Joined:
        pairs = [_same_type(*pair) for pair in keys]
        own, their = [pair[0] for pair in pairs], [pair[1] for pair in pairs]
        right: Plan
        if kind == "lookup":
            check_kind(self.text, self.node, how)
            rows = self.left.plan
            for each in before[0]:
                rows = Filtered(rows, each, self.text.of(self.node))
            left, left_keys = keyed_rows(rows, own, self.text.of(self.node))
            right, right_keys = self.right.plan, key_columns(self.text, self.node, their)
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
            name = name_computed_column("key", each)
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
            "a join of tables with windows needs equal bounds of windows",
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


_FORM = "JOIN t FOR SYSTEM_TIME AS OF PROCTIME() AS alias ON …"


def is_lookup(text: SqlText, join: exp.Join, right: Plan) -> bool:
    """Returns whether a join looks rows up.

    Raises:
        JobDefinitionError: a stream is joined at the processing time, or a look-up table without it.
    """
    version = join.this.args.get("version")
    time = version.expression if version is not None else None
    is_at_clock = isinstance(time, exp.Anonymous) and time.name.upper() == "PROCTIME" and not time.expressions
    if is_at_clock and not isinstance(right, LookupTable):
        text.fail(
            version,
            "only a look-up table can be joined at the processing time",
            "add the table with register_lookup_table",
            form=_FORM,
        )
    if isinstance(right, LookupTable) and not is_at_clock:
        text.fail(join.this, "a look-up table must be joined at the processing time", f"write {_FORM}")
    return is_at_clock


def check_kind(text: SqlText, join: exp.Join, how: str) -> None:
    """Raises JobDefinitionError unless a look-up join is inner or left."""
    if how not in ("inner", "left"):
        text.fail(join, f"a {how} look-up join is not supported", "use JOIN or LEFT JOIN")


def keyed_rows(rows: Plan, keys: Sequence[Expression], at: SqlPosition) -> tuple[Plan, tuple[str, ...]]:
    """Returns rows with a column for each key, and the names of these columns."""
    items: dict[str, Expression] = {each.name: Ref(each.name, each.type) for each in rows.fields}
    taken = {name.lower() for name in (*items, source_time(rows))}
    names: list[str] = []
    for number, each in enumerate(keys):
        name = each.name if isinstance(each, Ref) else ""
        # One column may be equal to two columns of the table.
        if not name or name in names:
            name = f"key{number}"
            while name.lower() in taken:
                name += "_"
            taken.add(name.lower())
            items[name] = each
        names.append(name)
    return Computed(rows, tuple(items.items()), at), tuple(names)


def key_columns(text: SqlText, join: exp.Join, keys: Sequence[Expression]) -> tuple[str, ...]:
    """Returns the columns of a look-up table that are keys. Raises JobDefinitionError for computed ones."""
    names = [each.name for each in keys if isinstance(each, Ref)]
    if len(names) < len(keys):
        text.fail(
            join.args["on"],
            "a look-up join needs a column of the table, not a computed value",
            "compare a column of the table with a value of its type",
        )
    return tuple(names)


_MILLISECOND = timedelta(milliseconds=1)
_FLIPPED = {"le": "ge", "ge": "le", "lt": "gt", "gt": "lt", "eq": "eq"}


@dataclass(frozen=True)
class TimeBounds:
    """Bounds of how much later than the left row the right row may be.

    Attributes:
        left, right: the names that the joined rows have for the event times of both sides; of one column, or none.
        is_exact: whether these columns have whole milliseconds, as event times do; else the bounds of event times are
            the narrowest that no pair exceeds which meets the conditions.
    """

    left: Collection[str]
    right: Collection[str]
    is_exact: bool

    def of_all(self, conditions: Sequence[Expression]) -> tuple[timedelta, timedelta] | None:
        """Returns the bounds that conditions set together; None without two bounds."""
        found = [bound for each in conditions if (bound := self.of(each)) is not None]
        lower = [low for low, _ in found if low is not None]
        upper = [high for _, high in found if high is not None]
        if not lower or not upper:
            return None
        return max(lower) // _MILLISECOND * _MILLISECOND, -(-min(upper) // _MILLISECOND) * _MILLISECOND

    def of(self, condition: Expression) -> tuple[timedelta | None, timedelta | None] | None:
        """Returns the lower and the upper bound that a condition sets; None if it is not a bound of times."""
        if not isinstance(condition, Call) or condition.function not in _FLIPPED or len(condition.args) != 2:
            return None
        function, one, other = condition.function, self._time(condition.args[0]), self._time(condition.args[1])
        if one is None or other is None or one[0] == other[0]:
            return None
        (is_left, first), (_, second) = one, other
        if not is_left:
            function, first, second = _FLIPPED[function], second, first
        later, shortest = first - second, _MILLISECOND if self.is_exact else timedelta()
        return {
            "ge": (None, later),
            "gt": (None, later - shortest),
            "le": (later, None),
            "lt": (later + shortest, None),
            "eq": (later, later),
        }[function]

    def _time(self, expression: Expression) -> tuple[bool, timedelta] | None:
        """Returns whether an expression is the event time of the left side, and what is added to it."""
        shift = timedelta()
        if isinstance(expression, Call) and expression.function == "shift":
            expression, interval = expression.args
            assert isinstance(interval, Constant) and isinstance(interval.value, timedelta)
            shift = interval.value
        if not isinstance(expression, Ref) or expression.name not in (*self.left, *self.right):
            return None
        return expression.name not in self.right, shift


def push_conditions(plan: Plan, conditions: Sequence[Expression], at: Filtered) -> Plan:
    """Returns rows that pass conditions. Those of one side of an inner join are applied before it.

    Args:
        at: a filter with the position of the conditions.
    """
    for each in conditions:
        plan = _with_condition(plan, each, at)
    return plan


def _with_condition(plan: Plan, condition: Expression, at: Filtered) -> Plan:
    names = set(columns_of(condition))
    if isinstance(plan, Filtered) and isinstance(plan.input, Joined | Filtered):
        return replace(plan, input=_with_condition(plan.input, condition, at))
    if isinstance(plan, Joined) and plan.how == "inner" and names:
        # A look-up table is not a stream, which could be filtered; without a version the one before is valid.
        for is_left in (True,) if plan.kind in ("lookup", "temporal") else (True, False):
            own = {name: of for name, left, of in plan.columns if left == is_left}
            if names <= set(own):
                kinds = {each.name: each.type for each in (plan.left if is_left else plan.right).fields}
                moved = replace_columns(condition, {name: Ref(of, kinds[of]) for name, of in own.items()})
                if is_left:
                    return replace(plan, left=_before(plan.left, moved, at))
                return replace(plan, right=_before(plan.right, moved, at))
        if plan.kind not in ("lookup", "temporal"):
            narrower = _with_key(plan, condition, at)
            if narrower is not None:
                return narrower
    return replace(at, input=plan, condition=condition)


def _with_key(plan: Joined, condition: Expression, at: Filtered) -> Joined | None:
    """Returns a join with one more key, which a condition compares: else all pairs of the other keys are made."""
    if not isinstance(condition, Call) or condition.function != "eq" or len(condition.args) != 2:
        return None
    sides: list[Plan] = [plan.left, plan.right]
    keys: list[str] = []
    for is_left, side in ((True, plan.left), (False, plan.right)):
        own = {name: of for name, left, of in plan.columns if left == is_left}
        found = [each for each in condition.args if (names := set(columns_of(each))) and names <= set(own)]
        # As a key, a NaN is equal to itself.
        if len(found) != 1 or found[0].type.name == "double" or not isinstance(side, Computed):
            return None
        kinds = {each.name: each.type for each in side.fields}
        key = replace_columns(found[0], {name: Ref(of, kinds[of]) for name, of in own.items()})
        if key.type.nullable:
            is_null = Call("is null", (key,), BOOLEAN)
            side = _before(side, Call("not", (is_null,), BOOLEAN), at)
            assert isinstance(side, Computed)
        keys.append(name_computed_column("key", key))
        items = dict(side.items)
        sides[not is_left] = replace(
            side, items=tuple((items | {keys[-1]: not_null(replace_columns(key, items))}).items())
        )
    if keys[0] in plan.left_keys or keys[1] in plan.right_keys:
        return None
    own_keys, their_keys = (*plan.left_keys, keys[0]), (*plan.right_keys, keys[1])
    return replace(plan, left=sides[0], right=sides[1], left_keys=own_keys, right_keys=their_keys)


def _before(plan: Plan, condition: Expression, at: Filtered) -> Plan:
    """Returns a side of a join with a condition, applied before its columns are computed."""
    if isinstance(plan, Computed):
        moved = replace_columns(condition, dict(plan.items))
        return replace(plan, input=_with_condition(plan.input, moved, at))
    return _with_condition(plan, condition, at)


def prune_columns(plan: Plan, used: set[str]) -> Plan:
    """Returns a plan without the columns of joins that are not used: joins store all columns of their inputs."""
    if isinstance(plan, Filtered):
        return replace(plan, input=prune_columns(plan.input, used | set(columns_of(plan.condition))))
    if not isinstance(plan, Joined):
        return plan
    columns = tuple(each for each in plan.columns if each[0] in used)
    bounds = tuple(each for each in plan.window_bounds if each[0] in used)
    if not columns and not bounds:
        columns = plan.columns[:1]
    fields = {each.name: each for each in plan.fields}
    needed = (*columns, *plan.tested)
    return replace(
        plan,
        columns=columns,
        fields=tuple(fields[name] for name in (*(name for name, _, _ in columns), *(name for name, _ in bounds))),
        window_bounds=bounds,
        left=_pruned_side(plan, plan.left, {*plan.left_keys, *(of for _, left, of in needed if left)}),
        right=_pruned_side(plan, plan.right, {*plan.right_keys, *(of for _, left, of in needed if not left)}),
    )


def _pruned_side(join: Joined, side: Plan, used: set[str]) -> Plan:
    if not isinstance(side, Computed):
        return side
    used = used | ({time_of(side)} if join.kind != "regular" else set())
    items = tuple(each for each in side.items if each[0] in used)
    inner = {name for _, expression in items for name in columns_of(expression)}
    return replace(side, items=items, input=prune_columns(side.input, inner))


def select_columns(plan: Plan, items: Sequence[tuple[str, Expression]], at: SqlPosition) -> Plan:
    """Returns computed columns. A join emits them itself if all of them are its columns."""
    plan = prune_columns(plan, {name for _, expression in items for name in columns_of(expression)})
    kinds = {each.name: each.type for each in plan.fields}
    # A column that is never null in the rows is not null in the result either.
    items = [
        (name, not_null(each) if isinstance(each, Ref) and not kinds[each.name].nullable else each)
        for name, each in items
    ]
    is_narrowed = any(isinstance(each, Ref) and each.type.nullable < kinds[each.name].nullable for _, each in items)
    has_other = is_narrowed or not all(isinstance(each, Ref) for _, each in items)
    if not isinstance(plan, Joined) or plan.kind == "lookup" or has_other:
        return Computed(plan, tuple(items), at)
    sides, bounds = {name: (left, of) for name, left, of in plan.columns}, dict(plan.window_bounds)
    refs = [(name, each.name) for name, each in items if isinstance(each, Ref)]
    return replace(
        plan,
        columns=tuple((name, *sides[of]) for name, of in refs if of in sides),
        fields=tuple(Field(name, each.type) for name, each in items),
        window_bounds=tuple((name, bounds[of]) for name, of in refs if of in bounds),
    )
