"""The data of lineage events, independent of OpenLineage's package.

`trace_columns` follows the columns of a stream back to columns of sources, as far as the graph shows them. Pure.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum

from stateflow.api.column_origins import Derivation, Influence, Origin, Origins, origins_of
from stateflow.api.datasets import Dataset, without_credentials
from stateflow.api.functions.rich import StepKind
from stateflow.api.graph import (
    Graph,
    Node,
    ProcessNode,
    RecordsNode,
    ReducedNode,
    RowsNode,
    SinkNode,
    SourceNode,
    TransformNode,
    UnionNode,
    WatermarkNode,
    parents_of,
)
from stateflow.api.schema import RowSchema
from stateflow.checkpoint.log.documents import NOT_BEGUN, PublishedOutput, SourcePosition
from stateflow.outputs import OptionalId, OptionalText, Person, Timestamp, offset_value

NAMESPACE_VARIABLE, PARENT_VARIABLE, ROOT_VARIABLE = (
    "OPENLINEAGE_NAMESPACE",
    "OPENLINEAGE_PARENT_ID",
    "OPENLINEAGE_ROOT_PARENT_ID",
)
"""Environment variables of OpenLineage: namespace of jobs; the parent run, and the root of all, as
``namespace/job/run``."""
MOST_COLUMNS = 2000
"""Columns of a dataset that an event names at most; a wider dataset has none."""
MOST_CHARACTERS = 10_000
"""Characters of a position, or of an error, that an event has. A longer position is left out."""
_NAMESPACE = uuid.UUID("b3e6a7c2-5d0f-4f0e-9a55-0c1c55f1a9d4")
"""Never changed: the ids of runs follow from it."""


class RunState(StrEnum):
    """The states of a run; the names are OpenLineage's."""

    START = "START"
    RUNNING = "RUNNING"
    COMPLETE = "COMPLETE"
    FAIL = "FAIL"
    ABORT = "ABORT"


def run_id_of(job_uuid: str, claim: str) -> str:
    """Returns the id of a run in lineage events: the same for the run itself, and for a later one that reports its end.

    Args:
        job_uuid: of the job.
        claim: what identifies the run in the job's log: the nonce of its CLAIM.
    """
    return str(uuid.uuid5(_NAMESPACE, f"{job_uuid}/{claim}"))


@dataclass(frozen=True)
class PastRestore:
    """A restore in the ancestry of a run's state.

    Attributes:
        seq: number of the log entry by which it was decided.
        restored_checkpoint_id: the restored checkpoint; 0 for the savepoint of another job.
    """

    seq: int
    restored_checkpoint_id: OptionalId


@dataclass(frozen=True, kw_only=True)
class RunFacts:
    """A run, and how it ended.

    Attributes:
        generation: its generation; 0 for a run that did not claim the job.
        number: how many runs have claimed the job, including this one.
        requester: who or what requested it, such as the text of ``--run-id``.
        code_hash: hash of the job's code.
        start_checkpoint_id: id of the checkpoint that it continued from; 0 without one.
        start_label: the same as text.
        restores: the newest restores in the ancestry of its state.
        ended_by: why it ended, such as ``input-ends``, ``stopped`` or ``fenced``; empty while it works.
        idle: whether there was nothing to do.
    """

    job_uuid: OptionalText = ""
    job_root: OptionalText = ""
    generation: OptionalId = 0
    number: int = 0
    requester: OptionalText = ""
    code_hash: OptionalText = ""
    start_checkpoint_id: OptionalId = 0
    start_label: OptionalText = ""
    restores: tuple[PastRestore, ...] = ()
    ended_by: OptionalText = ""
    idle: bool = False


@dataclass(frozen=True, kw_only=True)
class CheckpointFacts:
    """The newest checkpoint of a run.

    Attributes:
        rows_in, rows_out: rows of all checkpoints of the run; out by uid of the sink.
        offsets: positions of the sources by uid; None for one without a position, or with one that is too long.
        watermarks: of the sources by uid, in ISO 8601; None before the first.
    """

    checkpoint_id: int
    committed_at: Timestamp
    rows_in: int = 0
    rows_out: Mapping[str, int] = field(default_factory=dict)
    offsets: Mapping[str, object] = field(default_factory=dict)
    watermarks: Mapping[str, Timestamp | None] = field(default_factory=dict)
    state_bytes: int = 0


@dataclass(frozen=True, kw_only=True)
class RestoreFacts:
    """A restore that the run has carried out, or that came directly before it.

    Attributes:
        seq: number of the log entry by which it was decided.
        restored_checkpoint_id: the restored checkpoint; 0 for the savepoint of another job.
        previous_checkpoint_id: the checkpoint before the restore.
        undone_checkpoint_ids: checkpoints that it has undone.
        table_versions: by uid of the sink, the version of its table after the restore; None if it is not known.
    """

    seq: int
    restored_checkpoint_id: OptionalId
    target_label: OptionalText = ""
    previous_checkpoint_id: int | None = None
    undone_checkpoint_ids: tuple[int, ...] = ()
    request_id: OptionalText = ""
    by: Person = ""
    reason: OptionalText = ""
    ended_at: Timestamp = ""
    table_versions: Mapping[str, int | None] = field(default_factory=dict)


@dataclass(frozen=True)
class SavepointFacts:
    """A savepoint that the run has made."""

    name: str
    id: OptionalText
    checkpoint_id: OptionalId
    origin: str
    made_at: Timestamp
    by: Person


@dataclass(frozen=True)
class ColumnOrigin:
    """A column of an input that a column of an output comes from.

    Attributes:
        transformations: pairs such as ``("DIRECT", "IDENTITY")``.
    """

    dataset: Dataset
    column: str
    transformations: tuple[tuple[str, str], ...]


@dataclass(frozen=True)
class DatasetFacts:
    """A dataset that a job reads or writes.

    Attributes:
        columns: pairs of name and Spark type.
        version: of its table after the newest checkpoint; empty if it has none.
        origins: of an output: the origins of each column that is known.
        row_origins: of an output: the columns that decide which rows there are.
        row_count: rows that the run has written or read; None while it works, or if it is not known.
    """

    dataset: Dataset
    columns: tuple[tuple[str, str], ...] = ()
    version: OptionalText = ""
    origins: Mapping[str, tuple[ColumnOrigin, ...]] = field(default_factory=dict)
    row_origins: tuple[ColumnOrigin, ...] = ()
    row_count: int | None = None


@dataclass(frozen=True, kw_only=True)
class LineageEvent:
    """A state of a run.

    Attributes:
        occurred_at: when the run got into it.
        job: name of the job.
    """

    state: RunState
    occurred_at: Timestamp
    run_id: str
    job: str
    is_continuous: bool
    run: RunFacts
    inputs: tuple[DatasetFacts, ...] = ()
    outputs: tuple[DatasetFacts, ...] = ()
    checkpoint: CheckpointFacts | None = None
    restore: RestoreFacts | None = None
    savepoints: tuple[SavepointFacts, ...] = ()
    error: OptionalText = ""


@dataclass(frozen=True)
class SourceColumn:
    """A column of a source."""

    uid: str
    column: str


@dataclass(frozen=True)
class Traced:
    """The origins of a stream's rows in sources.

    Attributes:
        columns: of each column that is known.
        rows: the columns of sources that decide which rows there are.
    """

    columns: Mapping[str, Mapping[SourceColumn, Derivation]] = field(default_factory=dict)
    rows: frozenset[tuple[SourceColumn, Influence]] = frozenset()


def trace_columns(node: Node, known: dict[Node, Traced] | None = None) -> Traced:
    """Returns the origins of the rows of a node.

    Args:
        node: a node of the graph.
        known: results for other nodes, to which more are added: a node can be reached by many ways.
    """
    known = {} if known is None else known
    if node not in known:
        known[node] = _trace(node, known)
    return known[node]


def _trace(node: Node, known: dict[Node, Traced]) -> Traced:
    if isinstance(node, SourceNode):
        return Traced({name: {SourceColumn(node.uid, name): Derivation.IDENTITY} for name in node.schema.names})
    inputs = [trace_columns(parent, known) for parent in parents_of(node)]
    match node:
        case RecordsNode(rejected=True):
            return Traced(rows=inputs[0].rows)
        case RecordsNode() | WatermarkNode() | ReducedNode():
            # A reduction computes parts of aggregates: its operator names the columns before it.
            return inputs[0]
        case UnionNode():
            return _united(inputs)
        case ProcessNode():
            origins = origins_of(node.function)
            return _derived(replace(origins, rows=(*origins.rows, *_keys(node))), inputs)
        case RowsNode() | TransformNode():
            return _derived(_origins_of_step(node), inputs)
    return _derived(Origins(), inputs)


def _keys(node: ProcessNode) -> Iterator[tuple[Origin, Influence]]:
    influence = Influence.JOIN if len(node.inputs) > 1 else Influence.GROUP_BY
    for number, edge in enumerate(node.inputs):
        for column in edge.keying.row_columns if edge.keying else ():
            yield Origin(column, input=number), influence


def _origins_of_step(node: RowsNode | TransformNode) -> Origins:
    step = node.step
    if step is None:
        return origins_of(node.function) if isinstance(node, TransformNode) else Origins()
    if step.emits_dead_letters:
        return Origins()
    origins = origins_of(step.function)
    # Whatever a filter does, it does not change rows.
    return replace(origins, passes_on=True) if step.kind is StepKind.FILTER else origins


def _united(inputs: list[Traced]) -> Traced:
    first, *others = inputs
    names = [name for name in first.columns if all(name in each.columns for each in others)]
    return Traced(
        {name: _merged(each.columns[name] for each in inputs) for name in names},
        frozenset().union(*(each.rows for each in inputs)),
    )


def _merged(found: Iterable[Mapping[SourceColumn, Derivation]]) -> dict[SourceColumn, Derivation]:
    merged: dict[SourceColumn, Derivation] = {}
    for columns in found:
        for column, derivation in columns.items():
            merged[column] = max(derivation, merged.get(column, derivation))
    return merged


def _derived(origins: Origins, inputs: list[Traced]) -> Traced:
    def known(origin: Origin) -> Mapping[SourceColumn, Derivation] | None:
        return inputs[origin.input].columns.get(origin.column)

    columns = dict(inputs[0].columns) if origins.passes_on else {}
    for name, of in origins.columns.items():
        parts = [(origin.derivation, sources) for origin in of if (sources := known(origin)) is not None]
        # A column with a part that is not known is left out: some of its origins would look like all of them.
        if len(parts) == len(of):
            columns[name] = _merged({s: max(own, before) for s, before in sources.items()} for own, sources in parts)
        else:
            columns.pop(name, None)
    rows = {(source, influence) for origin, influence in origins.rows for source in known(origin) or ()}
    return Traced(columns, frozenset(rows).union(*(each.rows for each in inputs)))


class JobDatasets:
    """The datasets of a job, and the origins of its columns, which do not change during a launch.

    Args:
        graph: the job's graph, with the sinks that it really writes to.
    """

    def __init__(self, graph: Graph) -> None:
        self._graph = graph
        known: dict[Node, Traced] = {}
        self._traced = {sink.uid: trace_columns(sink.parent, known) for sink in graph.sinks}

    def inputs(self, positions: Iterable[SourcePosition], rows: int | None = None) -> tuple[DatasetFacts, ...]:
        """Returns what the sources read.

        Args:
            positions: the newest positions.
            rows: how many rows the run has read of all sources.
        """
        offsets = {each.uid: each.offset for each in positions}
        found = {
            source.uid: source.source.datasets(_or_empty(offsets.get(source.uid, ""))) for source in self._graph.sources
        }
        # Rows are counted over all sources.
        count = rows if len(found) == 1 and all(len(of) == 1 for of in found.values()) else None
        datasets: dict[tuple[str, str], DatasetFacts] = {}
        for source in self._graph.sources:
            for dataset in found[source.uid]:
                columns = tuple(each for each in _columns(source.source.schema) if each[0] not in dataset.added)
                known = DatasetFacts(dataset, columns, dataset.version, row_count=count)
                datasets.setdefault((dataset.namespace, dataset.name), known)
        return tuple(datasets.values())

    def outputs(
        self,
        positions: Iterable[SourcePosition],
        published: Mapping[str, PublishedOutput],
        rows: Mapping[str, int] | None = None,
    ) -> tuple[DatasetFacts, ...]:
        """Returns what the sinks write.

        Args:
            positions: the newest positions of the sources.
            published: the newest known version of each sink's table, by uid.
            rows: how many rows the run has written, by uid of the sink.
        """
        offsets = {each.uid: each.offset for each in positions}
        sources = {s.uid: s.source.datasets(_or_empty(offsets.get(s.uid, ""))) for s in self._graph.sources}
        datasets: dict[tuple[str, str], DatasetFacts] = {}
        for sink in self._graph.sinks:
            version = published[sink.uid].version if sink.uid in published else -1
            for dataset in sink.sink.datasets():
                datasets.setdefault(
                    (dataset.namespace, dataset.name),
                    DatasetFacts(
                        dataset,
                        _columns(sink.parent.schema),
                        str(version) if version >= 0 else "",
                        *self._origins(sink, sources),
                        None if rows is None else rows.get(sink.uid, 0),
                    ),
                )
        return tuple(datasets.values())

    def _origins(
        self, sink: SinkNode, sources: Mapping[str, Sequence[Dataset]]
    ) -> tuple[dict[str, tuple[ColumnOrigin, ...]], tuple[ColumnOrigin, ...]]:
        traced = self._traced[sink.uid]
        if len(sink.parent.schema.names) > MOST_COLUMNS:
            return {}, ()
        columns = {
            name: tuple(
                ColumnOrigin(dataset, source.column, (("DIRECT", derivation.name),))
                for source, derivation in of.items()
                for dataset in sources[source.uid]
            )
            for name, of in traced.columns.items()
            # Rows of the job file have no dataset: without its part, the rest would look like all origins.
            if name in sink.parent.schema.names and all(sources[source.uid] for source in of)
        }
        influences: dict[SourceColumn, list[tuple[str, str]]] = {}
        for source, influence in sorted(traced.rows, key=lambda row: (row[0].uid, row[0].column, row[1])):
            influences.setdefault(source, []).append(("INDIRECT", influence.name))
        rows = tuple(
            ColumnOrigin(dataset, source.column, tuple(kinds))
            for source, kinds in influences.items()
            for dataset in sources[source.uid]
        )
        return columns, rows


def _or_empty(offset: str) -> str:
    return "" if offset == NOT_BEGUN else offset


def _columns(schema: RowSchema) -> tuple[tuple[str, str], ...]:
    return tuple((c.name, c.spark_type) for c in schema.columns) if len(schema.columns) <= MOST_COLUMNS else ()


def offsets_of(positions: Iterable[SourcePosition]) -> dict[str, object]:
    """Returns positions by uid of the source, without those that are too long, and without credentials."""
    return {
        each.uid: offset_value(without_credentials(each.offset))
        if each.offset != NOT_BEGUN and len(each.offset) <= MOST_CHARACTERS
        else None
        for each in positions
    }
