"""Conditions and columns of queries over joins: conditions move before joins, and unused columns are removed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from stateflow.api.sql.expressions.sql_types import BOOLEAN, Field
from stateflow.api.sql.expressions.tree import Call, Expression, Ref, columns_of, not_null, replaced
from stateflow.api.sql.planning.names import computed_name
from stateflow.api.sql.planning.plan import Computed, Filtered, Joined, Plan, time_of
from stateflow.api.sql.problems import Position


def filtered(plan: Plan, conditions: Sequence[Expression], at: Filtered) -> Plan:
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
        # The rows of a look-up table are no stream, which could be filtered; without a version the one before is valid.
        for is_left in (True,) if plan.kind in ("lookup", "temporal") else (True, False):
            own = {name: of for name, left, of in plan.columns if left == is_left}
            if names <= set(own):
                kinds = {each.name: each.type for each in (plan.left if is_left else plan.right).fields}
                moved = replaced(condition, {name: Ref(of, kinds[of]) for name, of in own.items()})
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
        key = replaced(found[0], {name: Ref(of, kinds[of]) for name, of in own.items()})
        if key.type.nullable:
            is_null = Call("is null", (key,), BOOLEAN)
            side = _before(side, Call("not", (is_null,), BOOLEAN), at)
            assert isinstance(side, Computed)
        keys.append(computed_name("key", key))
        items = dict(side.items)
        sides[not is_left] = replace(side, items=tuple((items | {keys[-1]: not_null(replaced(key, items))}).items()))
    if keys[0] in plan.left_keys or keys[1] in plan.right_keys:
        return None
    own_keys, their_keys = (*plan.left_keys, keys[0]), (*plan.right_keys, keys[1])
    return replace(plan, left=sides[0], right=sides[1], left_keys=own_keys, right_keys=their_keys)


def _before(plan: Plan, condition: Expression, at: Filtered) -> Plan:
    """Returns a side of a join with a condition, applied before its columns are computed."""
    if isinstance(plan, Computed):
        moved = replaced(condition, dict(plan.items))
        return replace(plan, input=_with_condition(plan.input, moved, at))
    return _with_condition(plan, condition, at)


def pruned(plan: Plan, used: set[str]) -> Plan:
    """Returns a plan without the columns of joins that are not used: joins store all columns of their inputs."""
    if isinstance(plan, Filtered):
        return replace(plan, input=pruned(plan.input, used | set(columns_of(plan.condition))))
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
    return replace(side, items=items, input=pruned(side.input, inner))


def columns(plan: Plan, items: Sequence[tuple[str, Expression]], at: Position) -> Plan:
    """Returns computed columns. A join emits them itself if all of them are its columns."""
    plan = pruned(plan, {name for _, expression in items for name in columns_of(expression)})
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
