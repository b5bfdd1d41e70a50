"""Watermarks of sources and operators, from batch to batch. Pure.

The watermark of a batch is computed from the batches before it, so that a retried batch has the same one.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping
from dataclasses import dataclass, field
from typing import TypedDict

from stateflow.api.watermarks import WatermarkStrategy
from stateflow.checkpoint.log.documents import SourceWatermark, SplitWatermark
from stateflow.runtime.planning.physical_plan import OperatorChain
from stateflow.state.kinds.timers import MAX_WATERMARK


@dataclass(frozen=True)
class SeenTimes:
    """The latest event times in a batch, in milliseconds since 1970.

    Attributes:
        of_sources: by uid of each source that had rows.
        of_splits: by uid of each source with a watermark per split, those of its splits; as `Positions.split_times`.
    """

    of_sources: Mapping[str, int] = field(default_factory=dict)
    of_splits: Mapping[str, Mapping[str, int | None]] = field(default_factory=dict)


def advance_source_watermarks(
    known: Iterable[SourceWatermark], strategies: Mapping[str, WatermarkStrategy], seen: SeenTimes, now: int
) -> list[SourceWatermark]:
    """Returns the watermark of each source after a batch, ordered by uid.

    Args:
        known: the watermarks before the batch.
        strategies: the watermark strategies, by uid of the source.
        seen: the event times in the batch.
        now: processing time of the batch, in milliseconds since 1970.
    """
    before = {each.uid: each for each in known}
    advanced = []
    for uid in sorted(strategies):
        source, strategy = before.get(uid), strategies[uid]
        splits = seen.of_splits.get(uid)
        if splits is None and source and source.splits:
            splits = dict.fromkeys(split.name for split in source.splits)
        if splits is None:
            advanced.append(SourceWatermark(uid=uid, **_advance(source, strategy, seen.of_sources.get(uid), now)))
        else:
            advanced.append(_advance_splits(uid, source, strategy, splits, now))
    return advanced


def _advance_splits(
    uid: str, before: SourceWatermark | None, strategy: WatermarkStrategy, latest: Mapping[str, int | None], now: int
) -> SourceWatermark:
    """Returns the watermark of a source with splits, as in Flink: the lowest of its splits that are not idle.

    Args:
        latest: the latest event time of each split in the batch; None for a split without rows.
    """
    known = {split.name: split for split in before.splits} if before else {}
    splits = [SplitWatermark(name=s, **_advance(known.get(s), strategy, latest[s], now)) for s in sorted(latest)]
    return SourceWatermark(
        uid=uid,
        watermark=combine_watermarks(before.watermark if before else None, splits),
        active_at=max((split.active_at for split in splits), default=now),
        idle=all(split.idle for split in splits),
        splits=splits,
    )


class _Advanced(TypedDict):
    """The fields that watermarks of sources and of splits have in common."""

    watermark: int | None
    active_at: int
    idle: bool


def _advance(
    before: SourceWatermark | SplitWatermark | None, strategy: WatermarkStrategy, latest: int | None, now: int
) -> _Advanced:
    """Returns the watermark of a source or split after a batch; `latest` is None if the batch had no row of it."""
    watermark = before.watermark if before else None
    if latest is None:
        active_at = before.active_at if before else now
        idle = now - active_at >= strategy.idleness
        return _Advanced(watermark=watermark, active_at=active_at, idle=idle)
    # As in Flink's BoundedOutOfOrdernessWatermarks: another row with the same time may follow.
    reached = latest - strategy.out_of_orderness - 1
    watermark = reached if watermark is None else max(watermark, reached)
    return _Advanced(watermark=watermark, active_at=now, idle=False)


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


def combine_watermarks(before: int | None, sources: Iterable[SourceWatermark | SplitWatermark]) -> int | None:
    """Returns the minimum over sources or splits that are not idle, but never less than `before`."""
    active = [each.watermark for each in sources if not each.idle]
    known = [watermark for watermark in active if watermark is not None]
    if not known or len(known) < len(active):
        return before
    return min(known) if before is None else max(before, min(known))
