"""Events for OpenLineage's client. Imported only where events are sent: the package is optional.

``facets.schema.json`` in this folder is the schema of the facets that stateflow adds.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from importlib.metadata import version

import attr
from openlineage.client.event_v2 import InputDataset, Job, OutputDataset, Run, RunEvent
from openlineage.client.event_v2 import RunState as State
from openlineage.client.facet_v2 import (
    DatasetFacet,
    JobFacet,
    RunFacet,
    column_lineage_dataset,
    dataset_type_dataset,
    dataset_version_dataset,
    error_message_run,
    input_statistics_input_dataset,
    job_type_job,
    output_statistics_output_dataset,
    parent_run,
    processing_engine_run,
    schema_dataset,
    storage_dataset,
    symlinks_dataset,
)

from stateflow.lineage.events import (
    NAMESPACE_VARIABLE,
    PARENT_VARIABLE,
    ROOT_VARIABLE,
    CheckpointFacts,
    ColumnOrigin,
    DatasetFacts,
    LineageEvent,
    RestoreFacts,
    RunFacts,
    SavepointFacts,
)

VERSION = version("stateflow")
PRODUCER = f"urn:stateflow:{VERSION}"
SCHEMA = "urn:stateflow:openlineage-facets:1-0-0"
"""The ``$id`` of the schema of the facets; its version changes with it."""
_RUN_FACETS = ("stateflow_run", "stateflow_checkpoint", "stateflow_restore", "stateflow_savepoints")


@attr.define
class StateflowRunFacet(RunFacet):
    """A run of a job: its place in the job's history, and how it ended."""

    jobUuid: str
    jobRoot: str
    generation: int
    runNumber: int
    requestedBy: str
    code: str
    startedFromCheckpoint: int
    startedFrom: str
    idle: bool
    restores: list[dict[str, int]]
    endedBy: str | None = None

    @staticmethod
    def _get_schema() -> str:
        return f"{SCHEMA}#/$defs/StateflowRunFacet"


@attr.define
class StateflowCheckpointFacet(RunFacet):
    """The newest checkpoint of the run."""

    checkpointId: int
    committedAt: str
    rowsIn: int
    rowsOut: dict[str, int]
    offsets: dict[str, object]
    omittedOffsets: list[str]
    watermarks: dict[str, str]
    stateBytes: int

    @staticmethod
    def _get_schema() -> str:
        return f"{SCHEMA}#/$defs/StateflowCheckpointFacet"


@attr.define
class StateflowRestoreFacet(RunFacet):
    """A restore that the run has carried out, or that came directly before it."""

    seq: int
    restoredCheckpoint: int
    restored: str
    leftCheckpoint: int | None
    undoneCheckpoints: list[int]
    request: str
    by: str
    reason: str
    at: str | None
    tableVersions: dict[str, int]

    @staticmethod
    def _get_schema() -> str:
        return f"{SCHEMA}#/$defs/StateflowRestoreFacet"


@attr.define
class StateflowSavepointsFacet(RunFacet):
    """The savepoints that the run has made since its last event."""

    savepoints: list[dict[str, str | int]]

    @staticmethod
    def _get_schema() -> str:
        return f"{SCHEMA}#/$defs/StateflowSavepointsFacet"


def to_run_event(event: LineageEvent, environment: Mapping[str, str] = os.environ) -> RunEvent:
    """Returns the event of OpenLineage's client.

    Args:
        event: what has happened.
        environment: OpenLineage's variables for the namespace and the parent run.
    """
    job_facets: dict[str, JobFacet] = {
        "jobType": job_type_job.JobTypeJobFacet(
            processingType="STREAMING" if event.is_continuous else "BATCH",
            integration="STATEFLOW",
            jobType="JOB",
            producer=PRODUCER,
        )
    }
    is_last = event.state in ("COMPLETE", "FAIL", "ABORT")
    return RunEvent(
        eventTime=event.occurred_at,
        eventType=State[event.state],
        producer=PRODUCER,
        run=Run(event.run_id, run_facets(event, environment)),
        job=Job(environment.get(NAMESPACE_VARIABLE) or "default", event.job, job_facets),
        inputs=[input_dataset(each, is_last) for each in event.inputs],
        outputs=[output_dataset(each, is_last) for each in event.outputs],
    )


def run_facets(event: LineageEvent, environment: Mapping[str, str]) -> dict[str, RunFacet]:
    """Returns the facets of a run."""
    found: dict[str, RunFacet | None] = {
        "processing_engine": processing_engine_run.ProcessingEngineRunFacet(
            version=VERSION, name="stateflow", producer=PRODUCER
        ),
        "parent": _parent(environment),
        "errorMessage": error_message_run.ErrorMessageRunFacet(event.error, "PYTHON", producer=PRODUCER)
        if event.error
        else None,
        **stateflow_facets(event),
    }
    return {name: facet for name, facet in found.items() if facet is not None}


def stateflow_facets(event: LineageEvent) -> dict[str, RunFacet | None]:
    """Returns stateflow's own facets of a run by name; None for those that the event has not."""
    parts = (
        _run(event.run),
        _checkpoint(event.checkpoint) if event.checkpoint else None,
        _restore(event.restore) if event.restore else None,
        _savepoints(event.savepoints) if event.savepoints else None,
    )
    return dict(zip(_RUN_FACETS, parts, strict=True))


def _run(run: RunFacts) -> RunFacet:
    return StateflowRunFacet(
        jobUuid=run.job_uuid,
        jobRoot=run.job_root,
        generation=run.generation,
        runNumber=run.number,
        requestedBy=run.requester,
        code=run.code_hash,
        startedFromCheckpoint=run.start_checkpoint_id,
        startedFrom=run.start_label,
        idle=run.idle,
        restores=[{"seq": each.seq, "restoredCheckpoint": each.restored_checkpoint_id} for each in run.restores],
        endedBy=run.ended_by or None,
        producer=PRODUCER,
    )


def _checkpoint(of: CheckpointFacts) -> RunFacet:
    return StateflowCheckpointFacet(
        checkpointId=of.checkpoint_id,
        committedAt=of.committed_at,
        rowsIn=of.rows_in,
        rowsOut=dict(of.rows_out),
        offsets={uid: offset for uid, offset in of.offsets.items() if offset is not None},
        omittedOffsets=[uid for uid, offset in of.offsets.items() if offset is None],
        watermarks={uid: at for uid, at in of.watermarks.items() if at is not None},
        stateBytes=of.state_bytes,
        producer=PRODUCER,
    )


def _restore(of: RestoreFacts) -> RunFacet:
    return StateflowRestoreFacet(
        seq=of.seq,
        restoredCheckpoint=of.restored_checkpoint_id,
        restored=of.target_label,
        leftCheckpoint=of.previous_checkpoint_id,
        undoneCheckpoints=list(of.undone_checkpoint_ids),
        request=of.request_id,
        by=of.by,
        reason=of.reason,
        at=of.ended_at or None,
        tableVersions={uid: version for uid, version in of.table_versions.items() if version is not None},
        producer=PRODUCER,
    )


def _savepoints(made: tuple[SavepointFacts, ...]) -> RunFacet:
    return StateflowSavepointsFacet(
        [
            {
                "name": each.name,
                "id": each.id,
                "checkpointId": each.checkpoint_id,
                "origin": each.origin,
                "madeAt": each.made_at,
                "by": each.by,
            }
            for each in made
        ],
        producer=PRODUCER,
    )


def _parent(environment: Mapping[str, str]) -> RunFacet | None:
    parent = _parts(environment.get(PARENT_VARIABLE, ""))
    if parent is None:
        return None
    namespace, job, run = parent
    root = _parts(environment.get(ROOT_VARIABLE, ""))
    return parent_run.ParentRunFacet(
        run=parent_run.Run(run),
        job=parent_run.Job(namespace, job),
        root=parent_run.Root(parent_run.RootRun(root[2]), parent_run.RootJob(root[0], root[1])) if root else None,
        producer=PRODUCER,
    )


def _parts(text: str) -> tuple[str, str, str] | None:
    # A namespace can be a URL.
    namespace, _, rest = text.rpartition("/")[0].rpartition("/")
    run = text.rpartition("/")[2]
    return (namespace, rest, run) if namespace and rest and run else None


def input_dataset(of: DatasetFacts, is_last: bool) -> InputDataset:
    """Returns an input, with the number of rows that the run has read if the event is its last one."""
    counted = is_last and of.row_count is not None
    statistics = input_statistics_input_dataset.InputStatisticsInputDatasetFacet
    return InputDataset(
        of.dataset.namespace,
        of.dataset.name,
        facets=_dataset_facets(of),
        inputFacets={"inputStatistics": statistics(rowCount=of.row_count, producer=PRODUCER)} if counted else {},
    )


def output_dataset(of: DatasetFacts, is_last: bool) -> OutputDataset:
    """Returns an output, with the number of rows that the run has written if the event is its last one."""
    facets, columns = _dataset_facets(of), column_lineage_dataset
    if of.origins:
        facets["columnLineage"] = columns.ColumnLineageDatasetFacet(
            fields={name: columns.Fields([_input_field(each) for each in found]) for name, found in of.origins.items()},
            dataset=[_input_field(each) for each in of.row_origins],
            producer=PRODUCER,
        )
    # Consumers add the counts of the events of a run, so only one of them has any.
    counted = is_last and of.row_count is not None
    statistics = output_statistics_output_dataset.OutputStatisticsOutputDatasetFacet
    return OutputDataset(
        of.dataset.namespace,
        of.dataset.name,
        facets=facets,
        outputFacets={"outputStatistics": statistics(rowCount=of.row_count, producer=PRODUCER)} if counted else {},
    )


def _input_field(of: ColumnOrigin) -> column_lineage_dataset.InputField:
    kinds = [column_lineage_dataset.Transformation(type=kind, subtype=subtype) for kind, subtype in of.transformations]
    return column_lineage_dataset.InputField(of.dataset.namespace, of.dataset.name, of.column, kinds)


def _dataset_facets(of: DatasetFacts) -> dict[str, DatasetFacet]:
    dataset = of.dataset
    facets: dict[str, DatasetFacet] = {}
    if of.columns:
        fields = [schema_dataset.SchemaDatasetFacetFields(name=name, type=kind) for name, kind in of.columns]
        facets["schema"] = schema_dataset.SchemaDatasetFacet(fields=fields, producer=PRODUCER)
    if dataset.kind:
        facets["datasetType"] = dataset_type_dataset.DatasetTypeDatasetFacet(dataset.kind, producer=PRODUCER)
    if dataset.storage:
        facets["storage"] = storage_dataset.StorageDatasetFacet(
            storageLayer=dataset.storage, fileFormat=dataset.file_format, producer=PRODUCER
        )
    if of.version:
        facets["version"] = dataset_version_dataset.DatasetVersionDatasetFacet(of.version, producer=PRODUCER)
    if dataset.tables:
        tables = [symlinks_dataset.Identifier(namespace, name, "TABLE") for namespace, name in dataset.tables]
        facets["symlinks"] = symlinks_dataset.SymlinksDatasetFacet(identifiers=tables, producer=PRODUCER)
    return facets
