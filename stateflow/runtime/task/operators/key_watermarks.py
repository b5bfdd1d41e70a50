"""Event time within a batch for vectorized functions: the watermark before each row of a key, as a column.

The same rules as in `key_time`.
"""

from __future__ import annotations

import numpy as np

from stateflow.api.functions.vectorized import Array
from stateflow.runtime.task_spec import Numbers, SourceTime
from stateflow.state.kinds.timers import NO_WATERMARK


def watermarks_before_rows(
    sources: tuple[SourceTime, ...], watermark: int, times: Numbers, origins: Numbers, first_rows: Array
) -> Numbers:
    """Returns the watermark before each row.

    Args:
        sources: the sources that determine the watermark of the operator.
        watermark: the watermark before the first row of each key.
        times: event time of each row, in order within a key; `NO_WATERMARK` for a row without one.
        origins: number of each row's source.
        first_rows: for each row, the number of the first row of its key.
    """
    reached: Numbers | None = None
    for source in sources:
        is_known = times > NO_WATERMARK + source.out_of_orderness
        by_rows = np.where(is_known, times - source.out_of_orderness - 1, NO_WATERMARK)
        of_source = np.maximum(_latest_of(by_rows, origins == source.number, first_rows), source.watermark)
        reached = of_source if reached is None else np.minimum(reached, of_source)
    assert reached is not None
    found: Numbers = np.maximum(reached, watermark)
    return found


def _latest_of(by_rows: Numbers, is_of_source: Array, first_rows: Array) -> Numbers:
    """Returns for each row the value of the last row of its key, up to this one, that is of a source."""
    if is_of_source.all():
        return by_rows
    last = np.maximum.accumulate(np.where(is_of_source, np.arange(len(by_rows)), -1))
    return np.where(last >= first_rows, by_rows[last], NO_WATERMARK)
