"""When the year's flights arrive: four files a month, delivered quarter by quarter.

One file is one micro-batch, so these dates are also where the batches end; the comparison at the end of the demo
knows the batches from here, and not from what the job did.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import date

YEAR = 2013
_FIRST_DAYS = (1, 9, 17, 25)


@dataclass(frozen=True)
class Delivery:
    """One file of flights."""

    number: int
    """From 0; files arrive and are read in this order."""
    first_day: date

    @property
    def quarter(self) -> int:
        """1 to 4."""
        return (self.first_day.month + 2) // 3

    @property
    def file_name(self) -> str:
        """Sorts in the order of time."""
        return f"flights-{self.first_day.isoformat()}.parquet"


DELIVERIES = tuple(
    Delivery(number, date(YEAR, month, day))
    for number, (month, day) in enumerate((m, d) for m in range(1, 13) for d in _FIRST_DAYS)
)


def delivery_number(month: int, day: int) -> int:
    """Which delivery holds the flights of that day."""
    return (month - 1) * len(_FIRST_DAYS) + sum(day >= first for first in _FIRST_DAYS) - 1


def of_quarter(quarter: int) -> tuple[Delivery, ...]:
    """The deliveries of one quarter."""
    return tuple(delivery for delivery in DELIVERIES if delivery.quarter == quarter)
