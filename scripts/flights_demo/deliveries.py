"""Schedule of the input files: four files a month, delivered quarter by quarter.

One file is one micro-batch, so these dates are also the boundaries of the batches. The comparison at the end derives
the batches from here, and not from the results of the job.
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
        """Quarter of the year, 1 to 4."""
        return (self.first_day.month + 2) // 3

    @property
    def file_name(self) -> str:
        """Name of the file; names sort by time."""
        return f"flights-{self.first_day.isoformat()}.parquet"


DELIVERIES = tuple(
    Delivery(number, date(YEAR, month, day))
    for number, (month, day) in enumerate((m, d) for m in range(1, 13) for d in _FIRST_DAYS)
)


def delivery_number(month: int, day: int) -> int:
    """Returns the number of the delivery with the flights of a day."""
    return (month - 1) * len(_FIRST_DAYS) + sum(day >= first for first in _FIRST_DAYS) - 1


def of_quarter(quarter: int) -> tuple[Delivery, ...]:
    """Returns the deliveries of a quarter."""
    return tuple(delivery for delivery in DELIVERIES if delivery.quarter == quarter)
