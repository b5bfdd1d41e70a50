"""Look-up joins: a stateless step that adds columns of a table, as it is in the batch, to the rows of a stream."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from functools import reduce
from typing import TYPE_CHECKING

from stateflow.api.column_origins import Influence, Origin, Origins
from stateflow.api.source import Source
from stateflow.clock import Clock, SystemClock
from stateflow.errors import JobDefinitionError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    ReadTable = Callable[[SparkSession], DataFrame]
    """Returns a table."""


@dataclass(frozen=True)
class LookupColumns:
    """The columns of a look-up join.

    Attributes:
        on: column of the stream to column of the table; all are equal in a pair.
        output: names of the columns of the result.
        how: ``inner`` or ``left``.
        of_table: columns of the result that are the table's, with their names there. Others have the value of the
            stream's column of their name, or else of the table's.
        condition: further condition of a pair, in Spark SQL, with the table's columns by the names of `name_of`; empty
            without.
    """

    on: Mapping[str, str]
    output: Sequence[str]
    how: str
    of_table: Mapping[str, str] = field(default_factory=dict)
    condition: str = ""


def name_of(column: str) -> str:
    """Returns the name that a column of the table has in a join, since the stream may have one of the same name."""
    return f"_sf_lookup_{column}"


class CachedTable:
    """A table that is read again when its content is too old. All joins that share it use the same content.

    Args:
        read: returns the table.
        cache: how long a content is used.
    """

    def __init__(self, read: ReadTable, cache: timedelta, clock: Clock | None = None) -> None:
        self.read = read
        self._cache = cache
        self._clock = clock or SystemClock()
        self._content: tuple[float, DataFrame] | None = None

    def __call__(self, spark: SparkSession) -> DataFrame:
        now = self._clock.monotonic()
        if self._content is not None and now - self._content[0] < self._cache.total_seconds():
            return self._content[1]
        found = self.read(spark)
        # Not persisted: Spark would use the content for other reads of the table, and refresh it after some writes. By
        # Arrow: rows of Python have local times, which are ambiguous in the hour that is repeated in autumn.
        table = spark.createDataFrame(found.toArrow(), found.schema)
        self._content = now, table
        return table


def cache_table(table: ReadTable | Source, cache: timedelta | None) -> ReadTable:
    """Returns what reads a table; with None for `cache`, each call reads it."""
    read = table.read_now if isinstance(table, Source) else table
    return read if cache is None else CachedTable(read, cache)


class LookupJoin:
    """Joins the DataFrame of a batch with a table.

    Args:
        read: returns the table.
    """

    def __init__(self, read: ReadTable, columns: LookupColumns) -> None:
        self._read = read
        self._columns = columns

    def column_origins(self) -> Origins:
        """See `HasColumnOrigins`; the origins of the table's columns are not known."""
        of_stream = [name for name in self._columns.output if name not in self._columns.of_table]
        rows = tuple((Origin(name), Influence.JOIN) for name in self._columns.on)
        return Origins({name: (Origin(name),) for name in of_stream}, rows)

    @property
    def source(self) -> Source | None:
        """The source that reads the table; None for a function."""
        read = self._read.read if isinstance(self._read, CachedTable) else self._read
        owner = getattr(read, "__self__", None)
        return owner if isinstance(owner, Source) else None

    def __call__(self, frame: DataFrame) -> DataFrame:
        """Returns the joined rows. Raises JobDefinitionError if neither the stream nor the table has a column."""
        from pyspark.sql import functions

        columns, table = self._columns, self._read(frame.sparkSession)
        wanted = {*columns.on.values(), *columns.of_table.values()} - {*table.columns}
        wanted |= {*columns.output} - {*columns.of_table, *frame.columns, *table.columns}
        missing = sorted(wanted)
        if missing:
            raise JobDefinitionError(
                "the table of a look-up join lacks columns",
                hint="correct on=, or the fields of the output class",
                missing=missing,
                table=table.columns,
            )
        renamed = table.select([table[name].alias(name_of(name)) for name in table.columns])
        equal = [frame[name] == renamed[name_of(of)] for name, of in columns.on.items()]
        if columns.condition:
            equal.append(functions.expr(columns.condition))
        joined = frame.join(renamed.hint("broadcast"), reduce(lambda a, b: a & b, equal), columns.how)
        own = {name for name in frame.columns if name not in columns.of_table}
        found = [
            frame[name] if name in own else renamed[name_of(columns.of_table.get(name, name))].alias(name)
            for name in columns.output
        ]
        return joined.select(found)


def check_lookup(read: object, on: Mapping[str, str], how: str, cache: object) -> None:
    """Raises JobDefinitionError if an argument of `lookup_join` is not valid."""
    is_table = read.is_table if isinstance(read, Source) else callable(read)
    if not is_table or not on or how not in ("inner", "left"):
        raise JobDefinitionError(
            "lookup_join has an invalid argument",
            hint="pass a DeltaSource, a FileSource or a function that returns the table, a column or more, and "
            "how='left' or how='inner'",
            read=repr(read)[:200],
            on=dict(on),
            how=repr(how)[:200],
        )
    if cache is not None and (not isinstance(cache, timedelta) or cache <= timedelta()):
        raise JobDefinitionError(
            "cache must be a positive timedelta",
            hint="pass a positive timedelta, or None to read the table in each batch",
            cache=repr(cache)[:200],
        )
