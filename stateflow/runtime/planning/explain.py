"""A job's plan as facts and as text, before anything runs."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from stateflow.api.functions import TaskInfo
from stateflow.api.graph import (
    Edge,
    Graph,
    Node,
    PartialNode,
    ProcessNode,
    RowsNode,
    SideOutputNode,
    SourceNode,
    TransformNode,
    UnionNode,
    WatermarkNode,
    parents_of,
)
from stateflow.api.schema import RowSchema
from stateflow.runtime.declared import declare
from stateflow.runtime.plan import Level, Unit, plan_job
from stateflow.settings import Settings
from stateflow.time_to_live import StateTtlConfig


@dataclass(frozen=True)
class DrawnSource:
    """Where rows come from.

    Attributes:
        bounded: whether it ends.
    """

    uid: str
    reads: str
    columns: str
    bounded: bool


@dataclass(frozen=True)
class DrawnInput:
    """What a unit takes.

    Attributes:
        rows: the way of the rows since they were read or emitted.
        key: columns with their types; empty for one that is not keyed.
    """

    rows: str
    key: tuple[str, ...]
    order_by: tuple[str, ...]
    broadcast: bool


@dataclass(frozen=True)
class DrawnState:
    """A state that the function declares in `open`.

    Attributes:
        time_to_live: how long an entry lives and after what, such as ``3 d after each write, in processing time``;
            empty when it lives for ever.
    """

    name: str
    kind: str
    key_type: str
    value_type: str
    time_to_live: str = ""


@dataclass(frozen=True)
class DrawnSink:
    """Where rows go, in the same task."""

    uid: str
    sink: str
    rows: str


@dataclass(frozen=True)
class DrawnUnit:
    """What one task runs.

    Attributes:
        function: empty for a unit without an operator.
        states: None when `open` failed outside a run.
        unknown_because: why it failed.
    """

    uid: str
    function: str
    inputs: tuple[DrawnInput, ...]
    output: str
    side_outputs: tuple[str, ...]
    states: tuple[DrawnState, ...] | None
    unknown_because: str
    sinks: tuple[DrawnSink, ...]
    relay: bool


@dataclass(frozen=True)
class DrawnLevel:
    """Units behind the same number of shuffles."""

    number: int
    tasks: int
    units: tuple[DrawnUnit, ...]


@dataclass(frozen=True)
class Drawing:
    """A job as it would run."""

    job: str
    parallelism: int
    max_parallelism: int
    on_spark: bool
    sources: tuple[DrawnSource, ...]
    levels: tuple[DrawnLevel, ...]


def draw(graph: Graph, settings: Settings, on_spark: bool) -> Drawing:
    """The job's plan. Calls `open` of its functions, on copies, to see which states they declare.

    Raises JobDefinitionError when the job cannot run.
    """
    plan = plan_job(graph, settings.parallelism)
    return Drawing(
        settings.name, settings.parallelism, settings.key_groups, on_spark,
        tuple(DrawnSource(n.uid, n.source.description, _columns(n.schema), n.source.bounded) for n in plan.sources),
        tuple(_level(level, graph, settings.key_groups) for level in plan.levels),
    )  # fmt: skip


def as_text(drawing: Drawing) -> Iterator[str]:
    """The drawing in lines."""
    where = "on Spark" if drawing.on_spark else "without Spark"
    yield (f"job {drawing.job}: {where}, parallelism {drawing.parallelism}, "
           f"{drawing.max_parallelism} key groups")  # fmt: skip
    for source in drawing.sources:
        yield f"source {source.uid}: {source.reads}{', bounded' if source.bounded else ''}"
        yield f"  rows: {source.columns}"
    for level in drawing.levels:
        yield f"shuffle {level.number}, to {level.tasks} tasks"
        for unit in level.units:
            yield from ("  " + line for line in _unit_lines(unit))


def _unit_lines(unit: DrawnUnit) -> Iterator[str]:
    if unit.relay:
        yield f"relay of {unit.inputs[0].rows}"
        return
    if unit.function:
        yield f"operator {unit.uid}: {unit.function}"
        yield from ("  " + _input_line(given) for given in unit.inputs)
        yield from ("  " + line for line in _state_lines(unit))
        yield f"  emits {unit.output}"
        yield from (f"  side output {name}" for name in unit.side_outputs)
    indent = "  " if unit.function else ""
    yield from (f"{indent}sink {sink.uid}: {sink.sink} of {sink.rows}" for sink in unit.sinks)


def _input_line(given: DrawnInput) -> str:
    if given.broadcast:
        return f"takes {given.rows}, broadcast"
    order = f", ordered by {', '.join(given.order_by)}" if given.order_by else ""
    return f"takes {given.rows}, keyed by {', '.join(given.key)}{order}"


def _state_lines(unit: DrawnUnit) -> Iterator[str]:
    if unit.states is None:
        yield f"states unknown: open failed outside a run: {unit.unknown_because}"
    for state in unit.states or ():
        arrow = f"{state.key_type} -> " if state.key_type else ""
        lives = f", lives {state.time_to_live}" if state.time_to_live else ""
        yield f"{state.kind} state {state.name}: {arrow}{state.value_type}{lives}"


def _level(level: Level, graph: Graph, max_parallelism: int) -> DrawnLevel:
    units = tuple(_unit(unit, level, graph, max_parallelism) for unit in level.units)
    return DrawnLevel(level.number, level.targets, units)


def _unit(unit: Unit, level: Level, graph: Graph, max_parallelism: int) -> DrawnUnit:
    operator = unit.operator
    info = TaskInfo(unit.uid, 0, level.parallelism, max_parallelism, datetime.fromtimestamp(0, UTC))
    states, why = _states(operator, info) if operator else ((), "")
    sides = [f"{n.tag.name}: {_columns(n.schema)}" for n in graph.side_outputs if n.parent is operator]
    return DrawnUnit(
        uid=unit.uid, function=operator.name if operator else "",
        inputs=tuple(_input(edge, operator) for edge in unit.inputs),
        output=_columns(operator.schema) if operator else "", side_outputs=tuple(sides), states=states,
        unknown_because=why, relay=unit.is_relay,
        sinks=tuple(DrawnSink(s.uid, type(s.sink).__name__, _way(o.node)) for o in unit.outlets for s in o.sinks),
    )  # fmt: skip


def _input(edge: Edge, operator: ProcessNode | None) -> DrawnInput:
    keying = edge.keying
    if keying is None:
        return DrawnInput(_way(edge.node), (), (), broadcast=operator is not None)
    key = tuple(f"{name} {kind}" for name, kind in zip(keying.columns, keying.types, strict=True))
    return DrawnInput(_way(edge.node), key, keying.order_by, broadcast=False)


def _states(operator: ProcessNode, info: TaskInfo) -> tuple[tuple[DrawnState, ...] | None, str]:
    try:
        declared = declare(operator.function, info)
    except Exception as e:  # a user's code, which may want what only a task has
        return None, f"{type(e).__name__}: {e}"
    lives = {name: _life(config) for name, config in declared.keyed.times_to_live.items()}
    keyed = [
        DrawnState(s.name, s.kind, s.key_type, s.value_type, lives.get(s.name, ""))
        for s in declared.keyed.schemas
    ]
    operator_states = (
        DrawnState(s.name, s.kind, s.key_type, s.value_type) for s in declared.operator.schemas
    )
    return (*keyed, *operator_states), ""


def _life(config: StateTtlConfig) -> str:
    reads = config.update_type is StateTtlConfig.UpdateType.OnReadAndWrite
    since = "each read and write" if reads else "each write"
    return f"{_duration(config.ttl)} after {since}, in {config.ttl_time_characteristic.value} time"


def _duration(time: timedelta) -> str:
    """``1 d 12 h``: the units that are not zero."""
    rest, found = time // timedelta(milliseconds=1), []
    for unit, size in (("d", 86_400_000), ("h", 3_600_000), ("min", 60_000), ("s", 1000), ("ms", 1)):
        count, rest = divmod(rest, size)
        if count:
            found.append(f"{count} {unit}")
    return " ".join(found)


def _way(node: Node) -> str:
    """How the rows of `node` come about, from sources and operators on."""
    if isinstance(node, SourceNode | ProcessNode):
        return node.uid
    if isinstance(node, SideOutputNode):
        return f"{node.parent.uid}'s {node.tag.name}"
    ways = [_way(parent) for parent in parents_of(node)]
    if isinstance(node, UnionNode):
        return f"({' + '.join(ways)})"
    if isinstance(node, RowsNode):
        letters = "dead letters of " if node.step.catches else ""
        return f"{ways[0]} > {letters}{node.step.kind.value} {node.step.name}"
    if isinstance(node, PartialNode):
        return f"{ways[0]} > partial aggregation"
    if isinstance(node, WatermarkNode):
        return f"{ways[0]} > watermarks by {node.strategy.column}"
    assert isinstance(node, TransformNode)
    return f"{ways[0]} > transform {getattr(node.function, '__qualname__', type(node.function).__qualname__)}"


def _columns(schema: RowSchema) -> str:
    return f"{schema.row_class.__name__}({', '.join(f'{c.name} {c.spark_type}' for c in schema.columns)})"
