"""The functions of joins of queries."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from stateflow.api.joins.functions import JoinContext, ProcessJoinFunction


class PairColumns:
    """Makes a row of columns of a left and a right row, of which one may be None.

    Args:
        row_class: class of the result.
        columns: for each of its columns the name, whether it is of the left row, and its name there.
        more: values of further columns.
    """

    def __init__(
        self,
        row_class: type[object],
        columns: tuple[tuple[str, bool, str], ...],
        more: Mapping[str, object] | None = None,
    ) -> None:
        self._row_class = row_class
        self._columns = columns
        self._more = dict(more or {})

    def __call__(self, left: object, right: object) -> object:
        """Returns the row."""
        values = {name: getattr(left if is_left else right, of, None) for name, is_left, of in self._columns}
        return self._row_class(**values, **self._more)


class EmitPair(ProcessJoinFunction[object, object, object]):
    """Emits the row of each pair.

    Args:
        columns: makes it.
    """

    def __init__(self, columns: PairColumns) -> None:
        self._columns = columns

    def process_element(self, left: object, right: object, ctx: JoinContext) -> Iterator[object]:
        yield self._columns(left, right)
