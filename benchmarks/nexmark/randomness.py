"""Random numbers by position: a hash of seed, event number and draw, so that any slice of events can be generated."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Numbers = npt.NDArray[np.int64]
_Bits = npt.NDArray[np.uint64]

# The constants of the SplitMix64 generator: its increment, and its mixing function.
_INCREMENT = 0x9E3779B97F4A7C15
_FIRST, _SECOND = np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB)
_DRAW_INCREMENT = 0xD1342543DE82EF95
_MASK = (1 << 64) - 1


def _mix(bits: _Bits) -> _Bits:
    bits = (bits ^ (bits >> np.uint64(30))) * _FIRST
    bits = (bits ^ (bits >> np.uint64(27))) * _SECOND
    mixed: _Bits = bits ^ (bits >> np.uint64(31))
    return mixed


class Draws:
    """Random values for some event numbers: `draw` numbers the random decisions about one event."""

    def __init__(self, seed: int, numbers: Numbers) -> None:
        start = int(_mix(np.array([seed], np.int64).view(np.uint64))[0])
        self._events = _mix(numbers.view(np.uint64) * np.uint64(_INCREMENT) + np.uint64(start))

    def below(self, draw: int, bound: int | Numbers) -> Numbers:
        """Returns integers from 0 to below the bound, which is less than 2³²."""
        # The product of a 32-bit number and the bound fits into 64 bits, and its upper half is below the bound.
        limit = np.asarray(bound, np.uint64)
        drawn: Numbers = (((self._bits(draw) >> np.uint64(32)) * limit) >> np.uint64(32)).astype(np.int64)
        return drawn

    def fraction(self, draw: int) -> npt.NDArray[np.float64]:
        """Returns numbers from 0 to below 1, of 53 bits."""
        return (self._bits(draw) >> np.uint64(11)).astype(np.float64) * 2.0**-53

    def _bits(self, draw: int) -> _Bits:
        return _mix(self._events + np.uint64((draw + 1) * _DRAW_INCREMENT & _MASK))
