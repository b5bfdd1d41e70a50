"""The watermark of each source and each operator, from batch to batch. Pure.

A batch's watermark comes from the batches before it, so that a batch that is tried again has the same one.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping
from datetime import UTC, datetime, timedelta

from stateflow.api.watermarks import WatermarkStrategy
from stateflow.checkpoint.documents import SourceWatermark
from stateflow.runtime.plan import Unit
from stateflow.state.timers import MAX_WATERMARK

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def milliseconds(moment: datetime) -> int:
    """A moment in milliseconds since 1970; without a zone it is taken for UTC."""
    zoned = moment if moment.tzinfo else moment.replace(tzinfo=UTC)
    return (zoned - _EPOCH) // timedelta(milliseconds=1)


def advanced(
    known: Iterable[SourceWatermark],
    strategies: Mapping[str, WatermarkStrategy],
    seen: Mapping[str, int],
    now: int,
) -> list[SourceWatermark]:
    """The sources' watermarks behind a batch, by uid.

    Args:
        known: those before it.
        seen: the latest event time of each source that had rows in it.
        now: its processing time.
    """
    before = {each.uid: each for each in known}
    return [
        _advanced(uid, before.get(uid), strategies[uid], seen.get(uid), now) for uid in sorted(strategies)
    ]


def _advanced(
    uid: str, before: SourceWatermark | None, strategy: WatermarkStrategy, latest: int | None, now: int
) -> SourceWatermark:
    watermark = before.watermark if before else None
    if latest is None:
        active_at = before.active_at if before else now
        idle = now - active_at >= strategy.idleness
        return SourceWatermark(uid=uid, watermark=watermark, active_at=active_at, idle=idle)
    # As in Flink: a row of just that time may still come, so the watermark stays below it.
    reached = latest - strategy.out_of_orderness - 1
    watermark = reached if watermark is None else max(watermark, reached)
    return SourceWatermark(uid=uid, watermark=watermark, active_at=now)


def of_operators(
    units: Iterable[Unit],
    before: Mapping[str, int | None],
    sources: Iterable[SourceWatermark],
    ended: Container[str] = (),
) -> dict[str, int | None]:
    """The watermark of each unit in a batch, by uid.

    Args:
        before: that of the batch before.
        sources: of the batches before.
        ended: uids of sources that have no more rows; their watermark is the highest, as in Flink.
    """
    known = {each.uid: each for each in sources}
    return {unit.uid: _of_operator(unit, before.get(unit.uid), known, ended) for unit in units}


def _of_operator(
    unit: Unit, before: int | None, known: Mapping[str, SourceWatermark], ended: Container[str]
) -> int | None:
    # A source without a strategy has no say, unless there are only such: their end ends the operator's input, too.
    deciding = unit.watermark_sources or unit.sources
    if deciding and all(uid in ended for uid in deciding):
        return MAX_WATERMARK
    reaching = [known[uid] for uid in unit.watermark_sources if uid in known and uid not in ended]
    return combined(before, reaching)


def combined(before: int | None, sources: Iterable[SourceWatermark]) -> int | None:
    """An operator's watermark: the smallest of the sources that are not idle, and never less than before."""
    active = [each.watermark for each in sources if not each.idle]
    known = [watermark for watermark in active if watermark is not None]
    if not known or len(known) < len(active):
        return before
    return min(known) if before is None else max(before, min(known))
