"""The window functions TUMBLE, HOP and SESSION in FROM."""

from __future__ import annotations

from datetime import timedelta

from sqlglot import exp

from stateflow.api.sql.expressions.analysis import Analysis
from stateflow.api.sql.expressions.sql_types import INTERVAL, TIMESTAMP, Field
from stateflow.api.sql.expressions.tree import Ref, columns_of
from stateflow.api.sql.planning.names import Relation, RelationScope
from stateflow.api.sql.planning.plan import BOUNDS, Plan, Window, WindowTable, time_of, windows_of
from stateflow.api.sql.problems import SqlText

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
        text.fail(call, "a window function has other arguments", f"write {_FORMS[name]}", function=name)
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
