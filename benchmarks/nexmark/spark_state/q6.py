"""For each seller, the average winning bid of up to eleven closed auctions, in the order of the winning bids."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator
from typing import TYPE_CHECKING

from pyspark.sql import DataFrame, Row
from pyspark.sql.streaming.stateful_processor import StatefulProcessor, StatefulProcessorHandle

if TYPE_CHECKING:
    from pyspark.sql.streaming.stateful_processor import ExpiredTimerInfo, TimerValues

_EARLIER_AUCTIONS = 10
_Seller = tuple[list[list[int]], list[list[int]], list[int]]
"""Open auctions, each with the times of its end and its begin; winning bids that wait, each with its time, auction and
price; and the prices of earlier winning bids."""
_STATE = "open array<array<bigint>>, waiting array<array<bigint>>, earlier array<bigint>"


class SellingPrices(StatefulProcessor):
    """Averages the winning bids of a seller.

    A winning bid waits while an auction is open that began before the bid: its winning bid may be earlier. Times are in
    milliseconds.
    """

    def init(self, handle: StatefulProcessorHandle) -> None:
        self._handle = handle
        self._seller = handle.getValueState("seller", _STATE)

    def handleInputRows(self, key: tuple[int, ...], rows: Iterator[Row], timerValues: TimerValues) -> Iterator[Row]:
        auctions, waiting, earlier = self._seller.get() or ([], [], [])
        for _, _, opened, won in rows:
            if won is None:
                auctions.append(opened)
            else:
                waiting.append(won)
        yield from self._averages(key[0], (auctions, waiting, earlier), timerValues)

    def handleExpiredTimer(
        self, key: tuple[int, ...], timerValues: TimerValues, expiredTimerInfo: ExpiredTimerInfo
    ) -> Iterator[Row]:
        yield from self._averages(key[0], self._seller.get() or ([], [], []), timerValues)

    def _averages(self, seller: int, state: _Seller, timerValues: TimerValues) -> Iterator[Row]:
        watermark = timerValues.getCurrentWatermarkInMs()
        auctions = [auction for auction in state[0] if auction[0] > watermark]
        # By the watermark, no auction that is still to come begins before this time.
        earliest = min([watermark + 1, *(began for _, began in auctions)])
        waiting, prices = sorted(state[1]), list(state[2])
        ready = bisect_left(waiting, [earliest])
        for _, _, price in waiting[:ready]:
            prices = [*prices[-_EARLIER_AUCTIONS:], price]
            yield Row(seller=seller, avg_price=sum(prices) // len(prices))
        self._seller.update((auctions, waiting[ready:], prices[-_EARLIER_AUCTIONS:]))
        if waiting[ready:]:
            self._handle.registerTimer(min(closes for closes, _ in auctions))

    def close(self) -> None:
        pass


def result(auctions: DataFrame) -> DataFrame:
    """Returns the result for auctions, and for their winning bids."""
    return auctions.groupBy("seller").transformWithState(
        SellingPrices(), "seller bigint, avg_price bigint", outputMode="Append", timeMode="EventTime"
    )
