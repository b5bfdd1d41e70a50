"""The average of the winning bids of all auctions, by category."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from pyspark.sql import DataFrame, Row
from pyspark.sql.streaming.stateful_processor import StatefulProcessor, StatefulProcessorHandle

if TYPE_CHECKING:
    from pyspark.sql.streaming.stateful_processor import TimerValues


class Average(StatefulProcessor):
    """Emits the average of a category whenever a batch changes it."""

    def init(self, handle: StatefulProcessorHandle) -> None:
        self._prices = handle.getValueState("prices", "total bigint, count bigint")

    def handleInputRows(self, key: tuple[int, ...], rows: Iterator[Row], timerValues: TimerValues) -> Iterator[Row]:
        total, count = self._prices.get() or (0, 0)
        for _, price in rows:
            total += price
            count += 1
        self._prices.update((total, count))
        yield Row(id=key[0], final=total // count)

    def close(self) -> None:
        pass


def result(prices: DataFrame) -> DataFrame:
    """Returns the result for categories and prices of winning bids."""
    return prices.groupBy("id").transformWithState(
        Average(), "id bigint, final bigint", outputMode="Append", timeMode="None"
    )
