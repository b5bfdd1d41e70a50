"""Watermarks of sources and operators, from batch to batch. Pure.

The watermark of a batch is computed from the batches before it, so that a retried batch has the same one.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping
from datetime import UTC, datetime, timedelta

from stateflow.api.watermarks import WatermarkStrategy
from stateflow.checkpoint.log.documents import SourceWatermark
from stateflow.runtime.planning.physical_plan import OperatorChain
from stateflow.state.kinds.timers import MAX_WATERMARK

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def epoch_milliseconds(timestamp: datetime) -> int:
    """Returns a timestamp in milliseconds since 1970; one without a time zone is in UTC."""
    zoned = timestamp if timestamp.tzinfo else timestamp.replace(tzinfo=UTC)
    return (zoned - _EPOCH) // timedelta(milliseconds=1)


def advance_source_watermarks(
    known: Iterable[SourceWatermark], strategies: Mapping[str, WatermarkStrategy], seen: Mapping[str, int], now: int
) -> list[SourceWatermark]:
    """Returns the watermark of each source after a batch, ordered by uid.

    Args:
        known: the watermarks before the batch.
        strategies: the watermark strategies, by uid of the source.
        seen: the latest event time in the batch, in milliseconds since 1970, by uid of each source that had rows.
        now: processing time of the batch, in milliseconds since 1970.
    """
    before = {each.uid: each for each in known}
    return [_advance(uid, before.get(uid), strategies[uid], seen.get(uid), now) for uid in sorted(strategies)]


def _advance(
    uid: str, before: SourceWatermark | None, strategy: WatermarkStrategy, latest: int | None, now: int
) -> SourceWatermark:
    watermark = before.watermark if before else None
    if latest is None:
        active_at = before.active_at if before else now
        idle = now - active_at >= strategy.idleness
        return SourceWatermark(uid=uid, watermark=watermark, active_at=active_at, idle=idle)
    # As in Flink's BoundedOutOfOrdernessWatermarks: another row with the same time may follow.
    reached = latest - strategy.out_of_orderness - 1
    watermark = reached if watermark is None else max(watermark, reached)
    return SourceWatermark(uid=uid, watermark=watermark, active_at=now)


def operator_watermarks(
    chains: Iterable[OperatorChain],
    before: Mapping[str, int | None],
    sources: Iterable[SourceWatermark],
    ended: Container[str] = (),
) -> dict[str, int | None]:
    """Returns the watermark of each operator chain in a batch, by uid.

    Args:
        chains: the operator chains of the job's plan.
        before: the watermarks of the chains in the previous batch, by uid.
        sources: the watermarks of the sources after the previous batch.
        ended: uids of sources that have no more rows; their watermark is the highest, as in Flink.
    """
    known = {each.uid: each for each in sources}
    return {chain.uid: _operator_watermark(chain, before.get(chain.uid), known, ended) for chain in chains}


def _operator_watermark(
    chain: OperatorChain, before: int | None, known: Mapping[str, SourceWatermark], ended: Container[str]
) -> int | None:
    # A source without a strategy does not count, unless all are: then their end is the end of the operator's input.
    deciding = chain.watermark_sources or chain.sources
    if deciding and all(uid in ended for uid in deciding):
        return MAX_WATERMARK
    reaching = [known[uid] for uid in chain.watermark_sources if uid in known and uid not in ended]
    return combine_watermarks(before, reaching)


def combine_watermarks(before: int | None, sources: Iterable[SourceWatermark]) -> int | None:
    """Returns an operator's watermark: the minimum over its sources that are not idle, and never less than `before`."""
    active = [each.watermark for each in sources if not each.idle]
    known = [watermark for watermark in active if watermark is not None]
    if not known or len(known) < len(active):
        return before
    return min(known) if before is None else max(before, min(known))
