"""The number of digits of a Decimal."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from stateflow.errors import JobDefinitionError

MOST_DIGITS = 38
"""The largest number of digits of a Decimal in Spark and Delta."""
_PRECISION, _SCALE = "precision", "scale"


def precision(digits: int, scale: int = 0) -> msgspec.Meta:
    """Returns the annotation that sets the digits of a Decimal.

    For a column: ``amount: Annotated[Decimal, precision(12, scale=2)]``.

    Args:
        digits: the largest number of digits, 1 to 38.
        scale: the number of digits after the decimal point, 0 to `digits`.

    Raises:
        JobDefinitionError: a number is out of range.
    """
    whole = all(type(number) is int for number in (digits, scale))
    if not (whole and 1 <= digits <= MOST_DIGITS and 0 <= scale <= digits):
        raise JobDefinitionError(
            "the precision of a Decimal is out of range",
            hint=f"use 1 to {MOST_DIGITS} digits, of which 0 to all are after the decimal point",
            digits=digits,
            scale=scale,
        )
    return msgspec.Meta(extra={_PRECISION: digits, _SCALE: scale})


def precision_of(extra: Mapping[str, object] | None) -> tuple[int, int] | None:
    """Returns precision and scale of what `precision` returned; None without them.

    Args:
        extra: `msgspec.Meta.extra`.
    """
    found = extra or {}
    digits, scale = found.get(_PRECISION), found.get(_SCALE)
    return (digits, scale) if isinstance(digits, int) and isinstance(scale, int) else None
