"""Runs a job without Spark: the executor runs the same tasks in this process, and a loop reads the sources."""

from __future__ import annotations

import copy
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from functools import partial
from itertools import count, groupby, repeat
from operator import attrgetter

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from stateflow.api.functions.rich import RowStep
from stateflow.api.graph import (
    CONSTANT_KEY,
    ColumnsNode,
    Keying,
    Node,
    RecordsNode,
    ReducedNode,
    RowsNode,
    SourceNode,
    TransformNode,
    UnionNode,
    WatermarkNode,
    leaves_of,
    sources_of,
)
from stateflow.api.schema import Column, RejectedRecord, without_hidden_columns
from stateflow.api.source import LocalSource, Slice, limits_of
from stateflow.api.watermarks import event_time_reader
from stateflow.checkpoint.log.documents import NOT_BEGUN, SourcePosition
from stateflow.config.settings import SourceSettings
from stateflow.errors import BatchFailed, SchemaMismatch, StateflowError
from stateflow.runtime.driver.job_run import JobRun
from stateflow.runtime.driver.request_server import STOPPED
from stateflow.runtime.driver.termination import IDLE_INTERVAL, IdleWork, RunBounds, run_ticks
from stateflow.runtime.executor import (
    BARRIER_ORDER,
    CONTROL,
    INPUT,
    ORDER,
    ORIGIN,
    OUTPUT_NUMBER,
    PHASE,
    POSITION,
    POSITION_SHIFT,
    REPORT,
    SOURCE_PHASE,
    TARGET,
    BatchInfo,
    BatchWork,
    ChainSpec,
    Executed,
    Executor,
    InputSpec,
    LevelSpec,
    Numbers,
    decode_reports,
    level_specs,
    output_prefix,
)
from stateflow.runtime.job import BatchResult, Positions
from stateflow.runtime.planning.physical_plan import JobPlan, Level, check_no_transforms
from stateflow.runtime.planning.routing import KEY_HASH, ROW_PHASE, ROW_POSITION, LevelRouting, Route, evaluate
from stateflow.runtime.task import store_cache
from stateflow.runtime.task.outputs import BarrierMessage
from stateflow.runtime.task.row_conversion import latest_time, to_batch, to_rows
from stateflow.runtime.task.stateless_functions import ColumnStep, RowFunctions
from stateflow.runtime.task.task import run_level
from stateflow.runtime.user_code import find_user_line
from stateflow.runtime.watermarks import NO_TIME
from stateflow.types.columns.conversion import to_column, to_stored_scalar
from stateflow.types.key_groups import key_hash


@dataclass(frozen=True)
class _LocatedRow:
    """A row and its location in its input.

    Attributes:
        position: grows with the order of arrival.
        origin: number of the source that the row comes from; -1 when it is unknown.
    """

    position: int
    phase: int
    row: object
    origin: int = -1


@dataclass(frozen=True)
class _RoutedRow:
    """A row for one task, with everything that the task's input is sorted by.

    Attributes:
        ties: key and declared order, which order rows of equal `order`.
        input: number of the chain's input.
    """

    order: int
    ties: tuple[object, ...]
    input: int
    position: int
    row: object
    origin: int


_SORT_KEY = attrgetter("order", "ties", "input", "position")
"""The order of a task's input, the same as in `runtime.spark.sorting`."""
_Rows = Mapping[Node, list[_LocatedRow]]
_Controls = list[list[bytes]]
"""Encoded barriers by target."""


class LocalExecutor(Executor):
    """Runs tasks one after another. Rejects Spark expressions of users, which it cannot evaluate.

    Args:
        arrow_rows: rows per Arrow batch of a task's input; None for one batch with all rows.
        adapt: called with each task's own copy of its chain; returns the one to run.
    """

    def __init__(
        self, arrow_rows: int | None = None, adapt: Callable[[ChainSpec], ChainSpec] = lambda chain: chain
    ) -> None:
        self._attempts = count()
        self._arrow_rows = arrow_rows
        self._adapt = adapt

    def empty_rows(self, plan: JobPlan) -> Mapping[str, Sequence[object]]:
        return {}

    def keep_workers_alive(self, plan: JobPlan, info: BatchInfo) -> None:
        """Does nothing: a thread of this process stores files, and stays alive."""

    def execute(self, rows: Mapping[str, Sequence[object]], work: BatchWork) -> Executed:
        """Runs the batch.

        Args:
            rows: row objects of the sources' row classes, by uid of the source.
        """
        check_no_transforms(work.plan)
        for source in work.plan.sources:
            _check_rows(source, rows.get(source.uid, ()))
        specs = level_specs(work)
        barrier = msgspec.msgpack.encode(BarrierMessage(work.info.id.generation, work.info.id.ordinal))
        controls: _Controls = [[barrier] for _ in range(work.plan.levels[0].targets)]
        inputs: _Rows = {
            node: [_LocatedRow(n, SOURCE_PHASE, row, origin) for n, row in enumerate(rows.get(node.uid, ()))]
            for origin, node in enumerate(work.plan.sources)
        }
        emitted: list[pa.RecordBatch] = []
        seen: dict[str, int] = {}
        for at, level in enumerate(work.plan.levels):
            rows_of = {node: list(_rows_of(node, inputs, work.info, seen)) for node in level.inputs}
            routed = _routed(level, rows_of, work.info)
            emitted = self._run_level(specs[at], level, routed, controls)
            if at + 1 < len(work.plan.levels):
                inputs, controls = _split(emitted, level, work.plan.levels[at + 1].targets)
        reports = decode_reports(value for batch in emitted for value in batch.column(REPORT).to_pylist())
        return Executed(reports, seen, sum(len(rows.get(node.uid, ())) for node in work.plan.sources))

    def _run_level(
        self, spec: LevelSpec, level: Level, routed: Mapping[int, list[_RoutedRow]], controls: _Controls
    ) -> list[pa.RecordBatch]:
        result: list[pa.RecordBatch] = []
        for target in range(level.targets):
            number = target // level.parallelism
            chain = spec.chains[number]
            complete = _input_batches(chain.inputs, routed[target], controls[target])
            batches = [part for batch in complete for part in _parts(batch, self._arrow_rows)]
            # A function lives for one batch: a task on a cluster has a copy of its own, too.
            own = spec.with_chain(number, self._adapt(copy.deepcopy(chain)))
            result += run_level(own, target, f"l{next(self._attempts)}", batches)
        return result


# -- rows of a level's inputs -----------------------------------------------------------------------------------------


def _check_rows(source: SourceNode, rows: Sequence[object]) -> None:
    """Raises SchemaMismatch for a row of a source that is not of its declared class."""
    try:
        to_batch([row for row in rows if not isinstance(row, RejectedRecord)], without_hidden_columns(source.schema))
    except SchemaMismatch as e:
        e.add_facts(source=source.uid)
        raise


def _rows_of(node: Node, inputs: _Rows, info: BatchInfo, seen: dict[str, int]) -> Iterator[_LocatedRow]:
    """Yields the rows of a node, computed from the rows of sources and emitted nodes.

    Args:
        seen: receives the latest event time of each source where its watermarks are assigned, by uid.
    """
    if leaves_of(node) == [node]:
        yield from inputs.get(node, ())
    elif isinstance(node, WatermarkNode):
        yield from _observed(node, _rows_of(node.parent, inputs, info, seen), seen)
    elif isinstance(node, RecordsNode):
        found = _rows_of(node.parent, inputs, info, seen)
        yield from (located for located in found if isinstance(located.row, RejectedRecord) == node.rejected)
    elif isinstance(node, UnionNode):
        together = [located for parent in node.parents for located in _rows_of(parent, inputs, info, seen)]
        yield from (replace(located, position=n) for n, located in enumerate(together))
    elif isinstance(node, ReducedNode):
        yield from _by_columns(node, node.reduction.apply, list(_rows_of(node.parent, inputs, info, seen)))
    elif isinstance(node, ColumnsNode):
        step = ColumnStep(node.function, node.parent.schema, node.schema)
        yield from _by_columns(node, step.apply, list(_rows_of(node.parent, inputs, info, seen)))
    else:
        assert isinstance(node, RowsNode | TransformNode) and node.step is not None
        yield from _with_function_applied(node.step, list(_rows_of(node.parent, inputs, info, seen)), info)


def _observed(node: WatermarkNode, rows: Iterator[_LocatedRow], seen: dict[str, int]) -> Iterator[_LocatedRow]:
    (uid,) = {source.uid for source in sources_of(node)}
    time_of = event_time_reader(node.strategy.column)
    assert time_of is not None
    for located in rows:
        time = time_of(located.row)
        if time is not None:
            seen[uid] = max(time, seen.get(uid, time))
        yield located


def _with_function_applied(step: RowStep, rows: Sequence[_LocatedRow], info: BatchInfo) -> Iterator[_LocatedRow]:
    chain = RowFunctions([copy.deepcopy(step)], info.task_info(parallelism=1))
    numbers = count()
    for located in rows:
        with chain.close_on_error():
            results = chain.apply([located.row])
        yield from (_LocatedRow(next(numbers), located.phase, row, located.origin) for row in results)
    chain.close()


def _by_columns(
    node: ReducedNode | ColumnsNode,
    function: Callable[[Sequence[pa.RecordBatch]], Iterator[pa.RecordBatch]],
    rows: Sequence[_LocatedRow],
) -> Iterator[_LocatedRow]:
    """Yields the rows that a function over columns returns for adjacent rows of one phase and source."""
    numbers = count()
    for (phase, origin), located in groupby(rows, key=attrgetter("phase", "origin")):
        for made in function([to_batch([each.row for each in located], node.parent.schema)]):
            for row in to_rows(list(made.columns), node.schema):
                yield _LocatedRow(next(numbers), phase, row, origin)


# -- routing ----------------------------------------------------------------------------------------------------------


def _routed(level: Level, rows: _Rows, info: BatchInfo) -> Mapping[int, list[_RoutedRow]]:
    """Returns the sorted rows of each task."""
    routed: dict[int, list[_RoutedRow]] = defaultdict(list)
    routing = LevelRouting(level, info.settings.max_parallelism)
    for node, node_rows in rows.items():
        for route in routing.routes(node, POSITION_SHIFT):
            for target, row in _on_route(route, node_rows):
                routed[target].append(row)
    for items in routed.values():
        items.sort(key=_SORT_KEY)
    return routed


def _on_route(route: Route, rows: Sequence[_LocatedRow]) -> Iterator[tuple[int, _RoutedRow]]:
    """Yields each row with the task that the route leads it to."""
    fields = {
        ROW_POSITION: np.array([located.position for located in rows], np.int64),
        ROW_PHASE: np.array([located.phase for located in rows], np.int64),
    }
    ties: Iterator[tuple[object, ...]] = repeat(())
    if (keying := route.keying) is not None:
        fields[KEY_HASH] = _key_hashes(keying, rows)
        ties = iter([_ties(keying, located.row) for located in rows])
    targets = evaluate(route.target, fields, len(rows)).tolist()
    orders = evaluate(route.order, fields, len(rows)).tolist()
    for located, target, order, tie in zip(rows, targets, orders, ties, strict=False):
        yield target, _RoutedRow(order, tie, route.input, located.position, located.row, located.origin)


def _key_hashes(keying: Keying, rows: Sequence[_LocatedRow]) -> Numbers:
    """Returns the hash of each row's key."""
    return np.array([_key_hash(keying, located.row) for located in rows], np.int64)


def _key_hash(keying: Keying, row: object) -> int:
    key = [to_stored_scalar(getattr(row, column)) for column in keying.row_columns] or [CONSTANT_KEY]
    return key_hash(key, keying.types)


def _ties(keying: Keying, row: object) -> tuple[object, ...]:
    """Returns what rows of equal order are sorted by: null is the lowest value and NaN the highest."""
    values = (to_stored_scalar(getattr(row, column)) for column in (*keying.row_columns, *keying.order_by))
    # Only NaN is not equal to itself; Python has no order of it.
    return tuple((v is not None, v != v, v if v == v else 0.0) for v in values)


def _input_batches(
    inputs: Sequence[InputSpec], items: Sequence[_RoutedRow], controls: Sequence[bytes]
) -> list[pa.RecordBatch]:
    """Returns a task's input: a batch of its rows, then a batch of its barriers."""
    rows = {
        ORDER: pa.array([i.order for i in items], pa.int64()),
        INPUT: pa.array([i.input for i in items], pa.int32()),
        CONTROL: pa.nulls(len(items), pa.binary()),
        ORIGIN: pa.array([i.origin for i in items], pa.int32()),
    }
    barriers = {
        ORDER: pa.array([BARRIER_ORDER] * len(controls), pa.int64()),
        INPUT: pa.array([0] * len(controls), pa.int32()),
        CONTROL: pa.array(controls, pa.binary()),
        ORIGIN: pa.array([-1] * len(controls), pa.int32()),
    }
    for at, spec in enumerate(inputs):
        own = _column_arrays(spec, [i.row if i.input == at else None for i in items])
        for name, column in zip(spec.columns, own, strict=True):
            # A stream that is connected to itself has its columns only once.
            known = rows.get(name)
            rows[name] = column if known is None else pc.coalesce(known, column)
            barriers[name] = pa.nulls(len(controls), column.type)
    return [pa.RecordBatch.from_pydict(rows), pa.RecordBatch.from_pydict(barriers)]


def _parts(batch: pa.RecordBatch, size: int | None) -> list[pa.RecordBatch]:
    return [batch] if size is None else [batch.slice(at, size) for at in range(0, len(batch), size)]


def _column_arrays(spec: InputSpec, rows: Sequence[object | None]) -> list[pa.Array]:
    """Returns the columns of an input, with nulls for the rows that are None."""
    places = [n for n, row in enumerate(rows) if row is not None]
    data = to_batch([rows[n] for n in places], spec.schema)
    if len(places) == len(rows):
        return list(data.columns)
    at = dict(zip(places, range(len(places)), strict=True))
    indices = pa.array([at.get(n) for n in range(len(rows))], pa.int64())
    return [column.take(indices) for column in data.columns]


# -- from one level to the next ---------------------------------------------------------------------------------------


def _split(emitted: list[pa.RecordBatch], level: Level, targets: int) -> tuple[_Rows, _Controls]:
    """Splits the output of a level into the next level's rows by node, and its barriers by target."""
    rows: dict[Node, list[_LocatedRow]] = defaultdict(list)
    controls: _Controls = [[] for _ in range(targets)]
    for batch in emitted:
        numbers = batch.column(OUTPUT_NUMBER).to_pylist()
        if numbers and numbers[0] is None:
            columns = (batch.column(c).to_pylist() for c in (TARGET, CONTROL))
            for target, control in zip(*columns, strict=True):
                controls[target].append(control)
        elif numbers:
            rows[level.forwarded[numbers[0]].node] += _emitted_rows(batch, numbers[0], level)
    return rows, controls


def _emitted_rows(batch: pa.RecordBatch, number: int, level: Level) -> Iterator[_LocatedRow]:
    node, prefix = level.forwarded[number].node, output_prefix(number)
    found = to_rows([batch.column(prefix + n) for n in node.schema.names], node.schema)
    locations = (batch.column(c).to_pylist() for c in (POSITION, PHASE))
    origin = level.sources.index(node.uid) if isinstance(node, SourceNode) else -1
    return map(_LocatedRow, *locations, found, repeat(origin))


_SHORTEST_PAUSE = timedelta(milliseconds=1)


def run_local(
    run: JobRun,
    sources: Mapping[str, LocalSource],
    on_batch: Callable[[BatchResult], None],
    bounds: RunBounds | None = None,
) -> str:
    """Runs batches until no source has more rows, or until a bound is reached; returns which.

    A continuous run waits for more rows until it is stopped or reaches a bound.

    Args:
        run: a started run.
        sources: the sources by uid.
        on_batch: called after each committed and published batch.
        bounds: when to end; a run that restarts passes the same bounds again.
    """
    bounds = bounds or RunBounds(run.job.settings.run, run.job.root.clock)
    bounds.begin()
    try:
        if bounds.end.continuous:
            with bounds.signal.handle_signals():
                reached = _until_stopped(run, sources, bounds, on_batch)
                run.finish()
        else:
            reached = _until_reached(run, sources, bounds, on_batch)
            run.finish()
    finally:
        run.abandon()
        store_cache.close_all()
    return reached


def _until_reached(
    run: JobRun, sources: Mapping[str, LocalSource], bounds: RunBounds, on_batch: Callable[[BatchResult], None]
) -> str:
    while bounds.reached is None:
        if run.stopped:
            return run.stopped
        slices, positions = _read(run, sources)
        if not slices:
            return run_ticks(run, bounds, on_batch)
        on_batch(_run_slices(run, slices, positions))
        bounds.count_batch()
    return run.stopped or bounds.reached


def _until_stopped(
    run: JobRun, sources: Mapping[str, LocalSource], bounds: RunBounds, on_batch: Callable[[BatchResult], None]
) -> str:
    """Polls the sources until the run is stopped or reaches a bound; between two polls, does the other work."""
    clock, interval = run.job.root.clock, run.job.settings.run.interval
    idle, caught_up, next_poll = IdleWork(run, bounds, on_batch), False, clock.monotonic()
    while not run.stopped and bounds.reached is None:
        now = clock.monotonic()
        if now >= next_poll:
            slices, positions = _read(run, sources)
            next_poll = now + (interval or (timedelta() if slices else IDLE_INTERVAL)).total_seconds()
            if slices:
                on_batch(_run_slices(run, slices, positions))
                bounds.count_batch()
                continue
            caught_up = True
        pause = idle.step(caught_up)
        clock.sleep(max(_SHORTEST_PAUSE, min(pause, timedelta(seconds=next_poll - clock.monotonic()))))
    return run.stopped or bounds.reached or STOPPED


def _fixed(positions: Positions, _folder: str) -> Positions:
    return positions


def _run_slices(run: JobRun, slices: Mapping[str, Slice], positions: list[SourcePosition]) -> BatchResult:
    rows = {uid: found.rows for uid, found in slices.items()}
    times = split_times(run.job.plan, slices)
    return run.run_batch(rows, partial(_fixed, Positions(positions, split_times=times)))


def split_times(plan: JobPlan, slices: Mapping[str, Slice]) -> dict[str, dict[str, int | None]]:
    """Returns the latest event times of a batch, as `Positions.split_times`.

    Args:
        slices: the rows of the batch, by uid of the source.
    """
    return {
        node.uid: _latest_by_split(node.source.schema.column(column), slices[node.uid])
        for node in plan.sources
        if node.uid in slices and (column := plan.times_of_splits.get(node.uid))
    }


def _latest_by_split(column: Column, found: Slice) -> dict[str, int | None]:
    """Returns the latest event time of each split; see `Positions.split_times`."""
    latest: dict[str, int | None] = {}
    for split, rows in found.splits.items():
        times = [getattr(row, column.name) for row in rows if not isinstance(row, RejectedRecord)]
        time = latest_time(to_column(column.shape, times))
        latest[split] = NO_TIME if time is None and rows else time
    return latest


def _read(run: JobRun, sources: Mapping[str, LocalSource]) -> tuple[dict[str, Slice], list[SourcePosition]]:
    """Reads a slice of each source that has one. Returns them by uid, and the positions of all sources after them."""
    before = {p.uid: p.offset for p in run.positions}
    slices: dict[str, Slice] = {}
    positions = []
    for uid, description in run.job.sources:
        offset = before.get(uid, NOT_BEGUN)
        limits = limits_of(uid, sources[uid], run.job.settings.source)
        found = _slice(uid, sources[uid], None if offset == NOT_BEGUN else offset, limits)
        if found is not None:
            slices[uid] = found
            offset = found.position
        positions.append(SourcePosition(uid=uid, description=description, offset=offset))
    return slices, positions


def _slice(uid: str, source: LocalSource, position: str | None, limits: SourceSettings) -> Slice | None:
    try:
        return source.read(position, limits)
    except StateflowError:
        raise
    except Exception as e:
        # It is not known whether a retry can succeed; restarts and retries are bounded.
        raise BatchFailed(
            "a source could not be read",
            hint="a new run continues from the last checkpoint; if that fails as well, fix the source",
            source=uid,
            reason=f"{type(e).__name__}: {e}"[:500],
            where=find_user_line(e),
        ) from e
