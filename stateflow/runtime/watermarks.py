"""Watermarks of sources and operators, from batch to batch. Pure.

The watermark of a batch is computed from the batches before it, so that a retried batch has the same one.
"""

from __future__ import annotations

from collections.abc import Collection, Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import TypedDict, TypeVar

from stateflow.api.watermarks import WatermarkStrategy
from stateflow.checkpoint.barriers import combine_spans
from stateflow.checkpoint.log.documents import HoldingSource, SourceWatermark, SplitWatermark, TimeSpan, WaitingRows
from stateflow.outputs import EventTime
from stateflow.runtime.planning.physical_plan import OperatorChain
from stateflow.state.kinds.timers import MAX_WATERMARK

Part = TypeVar("Part", SourceWatermark, SplitWatermark)
NO_TIME = -(1 << 63)
"""The latest event time of rows that have none, such as rejected records: they are rows of their source."""


@dataclass(frozen=True)
class SeenTimes:
    """The latest event times in a batch, in milliseconds since 1970.

    Attributes:
        of_sources: by uid of each source whose rows have event times.
        of_splits: by uid of each source with a watermark per split, those of its splits; as `Positions.split_times`.
        active: uids of the sources that had input, whether or not rows with event times were made of it.
    """

    of_sources: Mapping[str, int] = field(default_factory=dict)
    of_splits: Mapping[str, Mapping[str, int | None]] = field(default_factory=dict)
    active: Collection[str] = ()


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
            latest = seen.of_sources.get(uid, NO_TIME if uid in seen.active else None)
            advanced.append(SourceWatermark(uid=uid, **_advance(source, strategy, latest, now)))
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
    """Returns the watermark of a source or split after a batch.

    Args:
        latest: the latest event time; `NO_TIME` if no row has one, None if the batch had no row.
    """
    watermark = before.watermark if before else None
    if latest is None:
        active_at = before.active_at if before else now
        # As in Flink and Spark, a source without new rows holds the watermark back unless it is declared idle.
        idle = strategy.idleness is not None and now - active_at >= strategy.idleness
        return _Advanced(watermark=watermark, active_at=active_at, idle=idle)
    if latest == NO_TIME:
        return _Advanced(watermark=watermark, active_at=now, idle=False)
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
    waiting = [uid for uid in chain.watermark_sources if uid not in ended]
    # A source that a later version of the job has added holds back the watermark from its first batch on.
    return combine_watermarks(before, [known[uid] for uid in waiting]) if known.keys() >= set(waiting) else before


def output_watermark(chains: Iterable[OperatorChain], watermarks: Mapping[str, int | None]) -> int | None:
    """Returns the lowest watermark of the operators whose sources have watermarks; None if one has none yet."""
    found = [watermarks[chain.uid] for chain in chains if chain.watermark_sources]
    known = [watermark for watermark in found if watermark is not None]
    return min(known) if known and len(known) == len(found) else None


_MAX_STORED_SPANS = 256
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(frozen=True)
class Waiting:
    """Rows whose event time is above the watermark of their operator, which other sources hold back.

    Attributes:
        operator: uid of the operator.
        input: uid of the source that the rows come from; of rows of several sources, or of operators, all uids.
        rows: their number.
        waits_for: the sources that hold the watermark back, by uid; with the split, such as a partition of Kafka, if
            splits have watermarks.
        watermark_at: the operator's watermark, in milliseconds since 1970; None if a source had no row yet.
        exact: whether `rows` is exact. Else it is at most 1 % of the rows that have waited too high.
    """

    operator: str
    input: str
    rows: int
    waits_for: tuple[str, ...]
    watermark_at: EventTime | None
    exact: bool = True

    def __str__(self) -> str:
        names = ", ".join(self.waits_for[:_SHOWN_SOURCES]) + (", …" if len(self.waits_for) > _SHOWN_SOURCES else "")
        rows = f"{self.rows:,} {'row' if self.rows == 1 else 'rows'} of {self.input}"
        at = "without a row yet" if self.watermark_at is None else f"at {_time_text(self.watermark_at + 1)}"
        return f"{'' if self.exact else 'about '}{rows} {'waits' if self.rows == 1 else 'wait'} for {names}, {at}"


_SHOWN_SOURCES = 3
_AND = ", "
"""As in `OperatorChain.waiting_inputs`; no uid contains it."""


def waiting_texts(waiting: Iterable[Waiting]) -> list[str]:
    """Returns sentences about waiting rows: one for the same rows in several operators, which it then names."""
    operators: dict[str, list[str]] = {}
    for each in waiting:
        operators.setdefault(str(each), []).append(each.operator)
    if len({name for names in operators.values() for name in names}) <= 1:
        return list(operators)
    return [f"{text} (in {', '.join(names)})" for text, names in operators.items()]


def _time_text(milliseconds: int) -> str:
    try:
        return (_EPOCH + timedelta(milliseconds=milliseconds)).replace(tzinfo=None).isoformat(timespec="seconds")
    except OverflowError:
        return f"{milliseconds} ms"


def waiting_for_others(waiting: Iterable[WaitingRows]) -> tuple[Waiting, ...]:
    """Returns the rows that wait for other sources, of those that a manifest has."""
    return tuple(
        Waiting(
            each.operator,
            _AND.join(each.inputs),
            each.rows,
            tuple(f"{held.uid} ({held.split})" if held.split else held.uid for held in each.waits_for),
            each.watermark,
            each.exact,
        )
        for each in waiting
        if each.waits_for
    )


def waiting_rows(
    chains: Iterable[OperatorChain],
    before: Iterable[WaitingRows],
    taken: Mapping[tuple[str, str], Iterable[TimeSpan]],
    sources: Iterable[SourceWatermark],
    *,
    watermarks: Mapping[str, int | None],
    ended: Container[str],
) -> list[WaitingRows]:
    """Returns the rows above the watermark of each operator, and which sources hold that back.

    Args:
        chains: the operator chains of the job's plan.
        before: the rows after the previous batch.
        taken: the event times of rows that tasks have taken in the batch, by uid of the operator and input.
        sources: the watermarks of the sources after the batch.
        watermarks: the watermark of each operator in the next batch.
        ended: uids of sources that end once they are read, for which no row waits.
    """
    known = {(rows.operator, _AND.join(rows.inputs)): rows.spans for rows in before}
    of_sources = {source.uid: source for source in sources}
    found = []
    for chain in chains:
        deciding = [of_sources[uid] for uid in sorted(chain.watermark_sources) if uid in of_sources]
        reached = _operator_watermark(chain, watermarks[chain.uid], of_sources, ended)
        names = {name for uid, name in (*known, *taken) if uid == chain.uid and chain.waiting_inputs}
        for name in sorted(names):
            of_both = [*known.get((chain.uid, name), ()), *taken.get((chain.uid, name), ())]
            above = [span for span in of_both if reached is None or span.last > reached]
            if not above:
                continue
            given = of_sources.get(name)
            is_ahead = any(_is_ahead(each, reached) for each in ([given] if given else deciding))
            found.append(
                WaitingRows(
                    operator=chain.uid,
                    inputs=name.split(_AND),
                    rows=sum(span.rows for span in above),
                    exact=reached is None or all(span.first > reached for span in above),
                    waits_for=_holding(deciding, ended) if is_ahead else [],
                    watermark=reached,
                    spans=combine_spans(above, _MAX_STORED_SPANS),
                )
            )
    return found


def _is_ahead(source: SourceWatermark, reached: int | None) -> bool:
    """Returns whether a source, or a split of it, has passed a watermark."""
    own = [source.watermark, *(split.watermark for split in source.splits)]
    return any(at is not None and (reached is None or at > reached) for at in own)


def _holding(deciding: Iterable[SourceWatermark], ended: Container[str]) -> list[HoldingSource]:
    """Returns the sources with the lowest watermark, or with none yet; with splits, the splits of them.

    Idle ones count only if all are: then the watermark stays, so rows wait although no source holds it back.
    """
    waiting: list[tuple[HoldingSource, int | None]] = []
    for source in _not_idle([source for source in deciding if source.uid not in ended]):
        splits = _not_idle(source.splits)
        waiting += [(HoldingSource(uid=source.uid, split=split.name), split.watermark) for split in splits]
        waiting += [(HoldingSource(uid=source.uid), source.watermark)] if not source.splits else []
    known = [at for _, at in waiting if at is not None]
    lowest = None if len(known) < len(waiting) else min(known, default=None)
    return [held for held, at in waiting if at == lowest]


def _not_idle(parts: Sequence[Part]) -> Sequence[Part]:
    return [part for part in parts if not part.idle] or parts


def combine_watermarks(before: int | None, sources: Iterable[SourceWatermark | SplitWatermark]) -> int | None:
    """Returns the minimum over sources or splits that are not idle, but never less than `before`."""
    active = [each.watermark for each in sources if not each.idle]
    known = [watermark for watermark in active if watermark is not None]
    if not known or len(known) < len(active):
        return before
    return min(known) if before is None else max(before, min(known))
