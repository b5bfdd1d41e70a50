"""A sink that calls a function with the rows of each checkpoint, at least once."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal

import pyarrow as pa

from stateflow.api.changelog import Changelog
from stateflow.api.sink import Delivery, SinkContext, SinkRewind, SinkTable, Successor, TableChanges
from stateflow.clock import SystemClock
from stateflow.connectors.staged_output import StagedSink, StagedTable
from stateflow.errors import JobDefinitionError, SinkRefused, StateflowError, StorageError
from stateflow.helpers import check_choice
from stateflow.state.handles import Committable

OnRewind = Literal["refuse", "keep"]
_REFUSE: OnRewind = "refuse"
_KEEP: OnRewind = "keep"
_clock = SystemClock()


@dataclass(frozen=True)
class OutputBatch:
    """Identifies the rows of one call of the function of a `ForeachBatchSink`.

    Attributes:
        job_uuid: UUID of the job.
        uid: uid of the sink.
        checkpoint_id: the checkpoint that contains the rows. Calls with the same job, sink and checkpoint have the same
            rows in the same order, also in another process. Checkpoints grow; a checkpoint without rows has no call.
        attempt: a different text for each call, for names that must not be used twice.
    """

    job_uuid: str
    uid: str
    checkpoint_id: int
    attempt: str


BatchFunction = Callable[[pa.Table, OutputBatch], object]
"""Receives the rows of a checkpoint."""


class ForeachBatchSink(StagedSink):
    """Calls a function on the driver with all rows of each checkpoint, after the checkpoint is committed.

    *At least once*: if a run dies in the function or just after it, the next run calls it again with the same rows and
    the same checkpoint id. State and other sinks stay exactly-once. The function has to be idempotent, for example by
    storing the checkpoint id in the same transaction as the rows and skipping ids that are not larger. Two drivers can
    be in the function at the same time for a short while, if one of them was paused and replaced.

    Without ``idempotent=True``, `stateflow explain` and each run warn about that.

    Tasks stage the rows in the job root. The driver reads all rows of a checkpoint into memory.

    Args:
        function: called with the rows and an `OutputBatch`. The rows are a table with one column per field of the row
            class, whose types are Arrow's. If it raises, the run fails with `StorageError`, or is restarted according
            to its restart strategy, and calls it again.
        on_rewind: what a restore of an older checkpoint does with output that the function has received: ``"refuse"``
            refuses the restore in its plan, because the sink cannot retract the rows; ``"keep"`` keeps them, and the
            function receives the rows again under other checkpoint ids as the job repeats its batches.

    Raises:
        JobDefinitionError: `function` is not callable.
        ConfigError: `on_rewind` is not one of its values.
    """

    def __init__(self, function: BatchFunction, *, on_rewind: OnRewind = "refuse", idempotent: bool = False) -> None:
        if not callable(function):
            raise JobDefinitionError(
                "ForeachBatchSink needs a function",
                hint="pass a function of the rows and their batch",
                found=type(function).__name__,
            )
        check_choice("on_rewind", on_rewind, (_REFUSE, _KEEP))
        self._function = function
        self._on_rewind = on_rewind
        self._idempotent = idempotent

    def __repr__(self) -> str:
        return f"ForeachBatchSink({_name(self._function)})"

    @property
    def delivery(self) -> Delivery:
        return Delivery.IDEMPOTENT if self._idempotent else Delivery.AT_LEAST_ONCE

    def for_changelog(self, changelog: Changelog) -> ForeachBatchSink:
        return self

    def check(self, context: SinkContext) -> str | None:
        return _table_id(context)

    def prepare(self, context: SinkContext) -> str:
        return _table_id(context)

    def open_table(self, context: SinkContext) -> SinkTable:
        return _Calls(context, self._function, self._on_rewind)

    def shadow(self) -> ForeachBatchSink:
        return ForeachBatchSink(_discard, on_rewind=self._on_rewind, idempotent=True)


class _Calls(StagedTable):
    """The receiver of the rows as a table with one version and without a token."""

    def __init__(self, context: SinkContext, function: BatchFunction, on_rewind: OnRewind) -> None:
        super().__init__(context)
        self.table_id = _table_id(context)
        self.version = 0
        self.token = None
        self._function = function
        self._on_rewind = on_rewind

    def commit(self, token: int, committables: list[Committable]) -> int | None:
        if committables:
            batches = list(self.staged_rows(committables))
            # Rows that an older version of the job staged have the columns of that version.
            self._call(pa.Table.from_batches(batches), token)
        return self.version

    def plan_rewind(self, checkpoint_id: int) -> SinkRewind:
        if self._on_rewind == _REFUSE:
            raise SinkRefused(
                "rows that a function has received cannot be retracted",
                hint='restore with --keep-table UID; or declare the sink with on_rewind="keep"',
                sink=self.context.uid,
                function=_name(self._function),
            )
        return SinkRewind(self.version, None, 0, 0, ())

    def changes_since(self, version: int) -> TableChanges:
        return TableChanges(_name(self._function), published=False, others=())

    def rewind(self, to_version: int | None, token: int) -> int | None:
        return self.version

    def take_over(self, token: int, former: Mapping[str, int], by: Successor) -> int | None:
        # Its receiver fences no job.
        return self.version

    def _call(self, rows: pa.Table, token: int) -> None:
        batch = OutputBatch(self.context.job_uuid, self.context.uid, token, _clock.new_id())
        try:
            self._function(rows, batch)
        except StateflowError:
            raise
        except Exception as e:
            raise StorageError(
                "a function that receives a sink's rows raised an exception",
                hint="the rows stay pending: the next run or restart calls it again",
                sink=self.context.uid,
                function=_name(self._function),
                checkpoint_id=token,
                reason=f"{type(e).__name__}: {e}",
            ) from e


def _table_id(context: SinkContext) -> str:
    return f"function of {context.uid}"


def _name(function: BatchFunction) -> str:
    return getattr(function, "__qualname__", type(function).__name__)


def _discard(rows: pa.Table, batch: OutputBatch) -> None:
    """Receives the rows of a shadow job, whose output has no effect."""
