"""Columns of times without a zone as texts in the format ISO 8601, as `msgspec` writes them."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Bytes = NDArray[np.uint8]
Numbers = NDArray[np.int64]
Flags = NDArray[np.bool_]

SHORT, LONGEST = 19, 26
"""The sizes of a text: ``2015-07-15T00:00:00``, or with six more digits if it has a fraction of a second."""
MIN_MICROS, MAX_MICROS = -62_135_596_800_000_000, 253_402_300_799_999_999
"""The first and last time that Python can represent, in microseconds since 1970."""
_PATTERN = np.frombuffer(b"0000-00-00T00:00:00.000000", np.uint8)
_PAIRS = np.frombuffer("".join(f"{n:02}" for n in range(100)).encode(), np.uint8).reshape(100, 2)
"""The two digits of each number below a hundred."""
_SECOND = 1_000_000
_DAY = 86_400


def write_times(micros: Numbers) -> tuple[Bytes, Numbers]:
    """Returns the texts of n times, in an array of shape (n, `LONGEST`), and their sizes.

    Args:
        micros: microseconds since 1970, from `MIN_MICROS` to `MAX_MICROS`.
    """
    seconds, fractions = np.divmod(micros, _SECOND)
    days, of_day = np.divmod(seconds, _DAY)
    dates = days.astype("datetime64[D]")
    months = dates.astype("datetime64[M]")
    day = (dates - months.astype("datetime64[D]")).astype(np.int64) + 1
    year, month = np.divmod(months.astype(np.int64) + 1970 * 12, 12)
    minute, second = np.divmod(of_day.astype(np.int32), 60)
    millis, micro = np.divmod(fractions.astype(np.int32), 100)
    pairs = (
        (0, year // 100),
        (2, year % 100),
        (5, month + 1),
        (8, day),
        (11, minute // 60),
        (14, minute % 60),
        (17, second),
        (20, millis // 100),
        (22, millis % 100),
        (24, micro),
    )
    texts = np.tile(_PATTERN, (len(micros), 1))
    for at, numbers in pairs:
        texts[:, at : at + 2] = _PAIRS[numbers]
    return texts, np.where(fractions == 0, SHORT, LONGEST)


def read_times(texts: Bytes, sizes: Numbers) -> tuple[Numbers, Flags]:
    """Returns the times of n texts, and which of them are written as `write_times` does; arbitrary for the others.

    Args:
        texts: an array of shape (n, `LONGEST`); what follows a shorter text is ignored.
        sizes: the size of each text.
    """
    year = _pair(texts, 0) * 100 + _pair(texts, 2)
    first = ((year - 1970) * 12 + _pair(texts, 5) - 1).astype("datetime64[M]").astype("datetime64[D]")
    of_day = (_pair(texts, 11) * 60 + _pair(texts, 14)) * 60 + _pair(texts, 17)
    fractions = (_pair(texts, 20) * 100 + _pair(texts, 22)) * 100 + _pair(texts, 24)
    seconds = (first.astype(np.int64) + _pair(texts, 8) - 1) * _DAY + of_day
    exact = seconds * _SECOND + np.where(sizes == LONGEST, fractions, 0)
    micros = np.clip(exact, MIN_MICROS, MAX_MICROS)
    # The text of a date that does not exist, or with other characters than digits, differs from that of its number.
    wanted, wanted_sizes = write_times(micros)
    same = (texts == wanted) | (np.arange(LONGEST) >= sizes[:, None])
    return micros, same.all(axis=1) & (sizes == wanted_sizes)


def _pair(texts: Bytes, at: int) -> Numbers:
    """Returns the number of two digits; another number below 2,300 and above -600 for other characters."""
    high, low = (texts[:, at + place].astype(np.int64) - ord("0") for place in (0, 1))
    return high * 10 + low
