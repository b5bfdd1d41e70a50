"""JOIN t FOR SYSTEM_TIME AS OF PROCTIME(): rows with columns of a table that Spark reads in each batch."""

from __future__ import annotations

from collections.abc import Sequence

from sqlglot import exp

from stateflow.api.sql.expressions.tree import Expression, Ref
from stateflow.api.sql.planning.plan import Computed, LookupTable, Plan, source_time
from stateflow.api.sql.problems import Position, SqlText

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
            version, "a stream is joined at the processing time", "add the table with register_lookup_table", form=_FORM
        )
    if isinstance(right, LookupTable) and not is_at_clock:
        text.fail(join.this, "a look-up table is joined as a stream", f"write {_FORM}")
    return is_at_clock


def check_kind(text: SqlText, join: exp.Join, how: str) -> None:
    """Raises JobDefinitionError unless a look-up join is inner or left."""
    if how not in ("inner", "left"):
        text.fail(join, f"a {how} look-up join is not supported", "use JOIN or LEFT JOIN")


def keyed_rows(rows: Plan, keys: Sequence[Expression], at: Position) -> tuple[Plan, tuple[str, ...]]:
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
            "a row is looked up by a computed value of the table",
            "compare a column of the table with a value of its type",
        )
    return tuple(names)
