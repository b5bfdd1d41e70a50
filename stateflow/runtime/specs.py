"""What a task is sent: all that decides its result, and nothing else."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

import pyarrow as pa

from stateflow.api.functions import KeyedProcessFunction
from stateflow.api.graph import Keying
from stateflow.api.schema import RowSchema
from stateflow.api.sink import Sink, SinkContext
from stateflow.config import RocksDBSettings, StateSettings
from stateflow.state.handles import StateSchema
from stateflow.storage import Storage, open_storage
from stateflow.storage.paths import data_folder

ORDER = "_sf_order"
CONTROL = "_sf_control"
TARGET = "_sf_target"
POSITION = "_sf_position"
UNIT = "_sf_unit"
REPORT = "_sf_report"

GROUP_SHIFT = 47
"""`ORDER` is key group times 2^47, plus 47 bits of the key's hash: a key's rows lie together, key groups in order."""
BARRIER_ORDER = (1 << 63) - 1
"""Sorts behind every row: a barrier ends a batch's input."""


@dataclass(frozen=True)
class BatchInfo:
    """The batch and the job, as tasks need to know them."""

    job_uuid: str
    root_uri: str
    generation: int
    ordinal: int
    processing_time: datetime
    max_parallelism: int
    local_folder: Path
    rocksdb: RocksDBSettings
    state: StateSettings

    @property
    def storage(self) -> Storage:
        """The job root."""
        return open_storage(self.root_uri)

    def data_folder(self, attempt: str) -> str:
        """Where an attempt's files go."""
        return data_folder(self.generation, self.ordinal, attempt)


@dataclass(frozen=True)
class UnitSpec:
    """One unit of a level.

    Attributes:
        prefix: of the columns that carry its input rows.
        bases: msgpack of the parts of each subtask's base, a list of `SubtaskState`; empty for one without.
        known_states: what the base was written with.
    """

    uid: str
    prefix: str
    input: RowSchema
    keying: Keying | None
    function: KeyedProcessFunction[object, object] | None
    output: RowSchema | None
    sinks: tuple[tuple[Sink, SinkContext], ...]
    feeds: bool
    bases: tuple[bytes, ...]
    known_states: tuple[StateSchema, ...] = ()


@dataclass(frozen=True)
class LevelSpec:
    """What every task of a level gets; the partition number tells which unit and subtask it is.

    Attributes:
        next_targets: number of tasks of the level behind; 0 in the last.
        output: the Arrow schema of what the tasks emit.
    """

    batch: BatchInfo
    parallelism: int
    units: tuple[UnitSpec, ...]
    upstream: tuple[tuple[str, int], ...]
    next_targets: int
    output: pa.Schema


def input_prefix(index: int) -> str:
    """Prefix of the columns of a level's `index`-th input."""
    return f"i{index}_"


def output_prefix(index: int) -> str:
    """Prefix of the columns of what a level's `index`-th unit emits."""
    return f"u{index}_"
