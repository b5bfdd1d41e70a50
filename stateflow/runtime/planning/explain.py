"""Explains the physical plan of a job, for `stateflow explain`."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime

import msgspec

from stateflow.api.datasets import without_credentials
from stateflow.api.functions.process import TaskInfo
from stateflow.api.graph import (
    ColumnsNode,
    Edge,
    Graph,
    Node,
    ProcessNode,
    RecordsNode,
    ReducedNode,
    RowsNode,
    SideOutputNode,
    SourceNode,
    TransformNode,
    UnionNode,
    WatermarkNode,
    leaves_of,
    parents_of,
    producer_of,
)
from stateflow.api.schema import RowSchema
from stateflow.api.sink import Delivery, Sink
from stateflow.api.windows.window import HasWindows, duration_text
from stateflow.config.settings import AT_LEAST_ONCE, Settings
from stateflow.errors import DataError
from stateflow.outputs import OptionalText, from_object
from stateflow.runtime.planning.physical_plan import Level, OperatorChain, plan_job
from stateflow.runtime.planning.state_discovery import discover_states
from stateflow.types.decoders import decode_json
from stateflow.types.ttl_config import StateTtlConfig


@dataclass(frozen=True)
class SourceExplanation:
    """A source.

    Attributes:
        reads: description of what it reads.
        columns: its row class with names and types of the columns.
        bounded: whether its input ends.
    """

    uid: str
    reads: str
    columns: str
    bounded: bool


@dataclass(frozen=True)
class InputExplanation:
    """One input of an operator chain.

    Attributes:
        rows: lineage of the rows since they were read or emitted.
        from_uids: uids of the sources and operators that the rows come from.
        key: key columns with their types; empty for an unkeyed input.
    """

    rows: str
    from_uids: tuple[str, ...]
    key: tuple[str, ...]
    order_by: tuple[str, ...]
    broadcast: bool


@dataclass(frozen=True)
class StateExplanation:
    """A state that a function declares.

    Attributes:
        time_to_live: duration and reference of its TTL, such as ``3 d after each write, in processing time``; empty
            without TTL.
    """

    name: str
    kind: str
    key_type: OptionalText
    value_type: str
    time_to_live: OptionalText = ""


@dataclass(frozen=True)
class SinkExplanation:
    """A sink, which writes rows in the task that emits them.

    Attributes:
        sink: name of its class.
        from_uids: uids of the sources and operators that the rows come from.
        delivery: a value of `Delivery`, by the sink and by the mode of checkpoints.
        location: path or address that it writes to, without credentials; null for a sink without one.
    """

    uid: str
    sink: str
    rows: str
    from_uids: tuple[str, ...]
    delivery: str = Delivery.EXACTLY_ONCE
    location: OptionalText = ""


@dataclass(frozen=True)
class ChainExplanation:
    """One operator chain.

    Attributes:
        function: name of the operator's function; empty for a chain without an operator.
        states: None if they are not known: the function was not opened, or cannot be opened outside of a run.
        unknown_because: the error of opening the function.
        relay: whether the chain only forwards rows.
        windows: the windows of the operator and their trigger; empty without windows.
    """

    uid: str
    function: OptionalText
    inputs: tuple[InputExplanation, ...]
    output: OptionalText
    side_outputs: tuple[str, ...]
    states: tuple[StateExplanation, ...] | None
    unknown_because: OptionalText
    sinks: tuple[SinkExplanation, ...]
    relay: bool
    windows: OptionalText = ""


@dataclass(frozen=True)
class LevelExplanation:
    """The operator chains after the same number of shuffles."""

    number: int
    tasks: int
    chains: tuple[ChainExplanation, ...]


@dataclass(frozen=True)
class JobExplanation:
    """The physical plan of a job, as plain values."""

    job: str
    parallelism: int
    max_parallelism: int
    on_spark: bool
    sources: tuple[SourceExplanation, ...]
    levels: tuple[LevelExplanation, ...]


def explain_job(graph: Graph, settings: Settings, on_spark: bool, *, with_states: bool = True) -> JobExplanation:
    """Explains a job's plan.

    Args:
        graph: the nodes that the job file declares.
        settings: the settings of the job.
        on_spark: whether it runs on Spark.
        with_states: whether to open copies of its functions, to discover the states that they declare.

    Raises:
        JobDefinitionError: the job cannot run.
    """
    plan = plan_job(graph, settings.parallelism)
    return JobExplanation(
        settings.name,
        settings.parallelism,
        settings.key_groups,
        on_spark,
        tuple(
            SourceExplanation(n.uid, n.source.description, _columns(n.source.schema), n.source.bounded)
            for n in plan.sources
        ),
        tuple(_level(level, graph, settings, with_states) for level in plan.levels),
    )


def read_explanation(data: bytes) -> JobExplanation | None:
    """Returns the plan in the JSON that a run has stored; None if this version cannot read it."""
    try:
        return from_object(JobExplanation, decode_json(dict[str, object], data))
    except (msgspec.MsgspecError, ValueError, RecursionError, DataError):
        return None


def to_lines(explanation: JobExplanation) -> Iterator[str]:
    """Yields the lines of the text that `stateflow explain` prints."""
    where = "on Spark" if explanation.on_spark else "without Spark"
    parallelism = f"parallelism {explanation.parallelism}, {explanation.max_parallelism} key groups"
    yield f"job {explanation.job}: {where}, {parallelism}"
    for source in explanation.sources:
        yield f"source {source.uid}: {source.reads}{', bounded' if source.bounded else ''}"
        yield f"  rows: {source.columns}"
    for level in explanation.levels:
        yield f"shuffle {level.number}, to {level.tasks} tasks"
        for chain in level.chains:
            yield from ("  " + line for line in _chain_lines(chain))


def _chain_lines(chain: ChainExplanation) -> Iterator[str]:
    if chain.relay:
        yield f"relay of {chain.inputs[0].rows}"
        return
    if chain.function:
        yield f"operator {chain.uid}: {chain.function}"
        if chain.windows:
            yield f"  windows: {chain.windows}"
        yield from ("  " + _input_line(given) for given in chain.inputs)
        yield from ("  " + line for line in _state_lines(chain))
        yield f"  emits {chain.output}"
        yield from (f"  side output {name}" for name in chain.side_outputs)
    indent = "  " if chain.function else ""
    for sink in chain.sinks:
        delivery = "" if sink.delivery == Delivery.EXACTLY_ONCE else f", {sink.delivery}"
        yield f"{indent}sink {sink.uid}: {sink.sink} of {sink.rows}{delivery}"


def _input_line(given: InputExplanation) -> str:
    if given.broadcast:
        return f"takes {given.rows}, broadcast"
    order = f", ordered by {', '.join(given.order_by)}" if given.order_by else ""
    return f"takes {given.rows}, keyed by {', '.join(given.key)}{order}"


def _state_lines(chain: ChainExplanation) -> Iterator[str]:
    if chain.states is None:
        yield f"states unknown: open failed outside a run: {chain.unknown_because}"
    for state in chain.states or ():
        arrow = f"{state.key_type} -> " if state.key_type else ""
        lives = f", lives {state.time_to_live}" if state.time_to_live else ""
        yield f"{state.kind} state {state.name}: {arrow}{state.value_type}{lives}"


def _level(level: Level, graph: Graph, settings: Settings, with_states: bool) -> LevelExplanation:
    chains = []
    for chain in level.chains:
        info = TaskInfo(chain.uid, 0, level.parallelism, settings.key_groups, datetime.fromtimestamp(0, UTC))
        declared = _states(chain.operator, info) if chain.operator and with_states else (None, "")
        chains.append(_chain(chain, graph, settings, declared if chain.operator else ((), "")))
    return LevelExplanation(level.number, level.targets, tuple(chains))


def _chain(
    chain: OperatorChain, graph: Graph, settings: Settings, declared: tuple[tuple[StateExplanation, ...] | None, str]
) -> ChainExplanation:
    operator, (states, why) = chain.operator, declared
    sides = [f"{n.tag.name}: {_columns(n.schema)}" for n in graph.side_outputs if n.parent is operator]
    return ChainExplanation(
        uid=chain.uid,
        function=operator.name if operator else "",
        inputs=tuple(_input(edge, operator) for edge in chain.inputs),
        output=_columns(operator.schema) if operator else "",
        side_outputs=tuple(sides),
        states=states,
        unknown_because=why,
        relay=chain.is_relay,
        windows=_windows(operator),
        sinks=tuple(
            SinkExplanation(
                uid=s.uid,
                sink=type(s.sink).__name__,
                rows=_lineage(o.node),
                from_uids=_producers(o.node),
                delivery=delivery_of(s.sink, settings),
                location=without_credentials(s.sink.location),
            )
            for o in chain.outputs
            for s in o.sinks
        ),
    )


def delivery_of(sink: Sink, settings: Settings) -> Delivery:
    """Returns how often a sink passes on rows, in the mode of the job's checkpoints."""
    if sink.delivery is Delivery.EXACTLY_ONCE and settings.checkpoints.mode == AT_LEAST_ONCE:
        return Delivery.AT_LEAST_ONCE
    return sink.delivery


def _input(edge: Edge, operator: ProcessNode | None) -> InputExplanation:
    keying = edge.keying
    rows, uids = _lineage(edge.node), _producers(edge.node)
    if keying is None:
        return InputExplanation(rows, uids, (), (), broadcast=operator is not None)
    key = tuple(f"{name} {kind}" for name, kind in zip(keying.columns, keying.types, strict=True))
    return InputExplanation(rows, uids, key, keying.order_by, broadcast=False)


def _producers(node: Node) -> tuple[str, ...]:
    """Returns the uids of the sources and operators that the rows of a node come from."""
    leaves = (leaf if isinstance(leaf, SourceNode) else producer_of(leaf).operator for leaf in leaves_of(node))
    return tuple(dict.fromkeys(leaf.uid for leaf in leaves))


def _states(operator: ProcessNode, info: TaskInfo) -> tuple[tuple[StateExplanation, ...] | None, str]:
    try:
        declared = discover_states(operator.function, info)
    except Exception as e:  # user code, which may need something that exists only in a task
        return None, f"{type(e).__name__}: {e}"
    registry = declared.keyed.registry
    lives = {name: _time_to_live(config) for name, config in registry.ttl_configs.items()}
    keyed = [
        StateExplanation(s.name, s.kind, s.key_type, s.value_type, lives.get(s.name, "")) for s in registry.schemas
    ]
    operator_states = (StateExplanation(s.name, s.kind, s.key_type, s.value_type) for s in declared.operator.schemas)
    return (*keyed, *operator_states), ""


def _windows(operator: ProcessNode | None) -> str:
    function = None if operator is None else operator.function
    return function.windows_text if isinstance(function, HasWindows) else ""


def _time_to_live(config: StateTtlConfig) -> str:
    reads = config.update_type is StateTtlConfig.UpdateType.OnReadAndWrite
    since = "each read and write" if reads else "each write"
    return f"{duration_text(config.milliseconds)} after {since}, in {config.ttl_time_characteristic.value} time"


def _lineage(node: Node) -> str:
    """Returns how the rows of `node` are computed from those of sources and operators."""
    if isinstance(node, SourceNode | ProcessNode):
        return node.uid
    if isinstance(node, SideOutputNode):
        return f"{node.parent.uid}'s {node.tag.name}"
    if isinstance(node, RecordsNode):
        return node.parent.uid
    ways = [_lineage(parent) for parent in parents_of(node)]
    if isinstance(node, UnionNode):
        return f"({' + '.join(ways)})"
    if isinstance(node, RowsNode):
        if isinstance(node.parent, RecordsNode) and node.parent.rejected:
            return f"{ways[0]} > dead letters"
        letters = "dead letters of " if node.step.emits_dead_letters else ""
        return f"{ways[0]} > {letters}{node.step.kind.value} {node.step.name}"
    if isinstance(node, ReducedNode):
        return f"{ways[0]} > {node.reduction.name}"
    if isinstance(node, WatermarkNode):
        per_split = " per split" if isinstance(node.parent, RecordsNode) else ""
        return f"{ways[0]} > watermarks{per_split} by {node.strategy.column}"
    name = getattr(node.function, "__qualname__", type(node.function).__qualname__)
    if isinstance(node, ColumnsNode):
        return f"{ways[0]} > transform_columns {name}"
    assert isinstance(node, TransformNode)
    return f"{ways[0]} > transform {name}"


def _columns(schema: RowSchema) -> str:
    return f"{schema.row_class.__name__}({', '.join(f'{c.name} {c.dtype}' for c in schema.columns)})"
