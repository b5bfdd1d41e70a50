"""The input of one Spark batch, without corrupt files that the job skips."""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial

from pyspark.sql import DataFrame, SparkSession

from stateflow.api.graph.nodes import SourceNode
from stateflow.api.hidden_columns import arrival, arrival_place
from stateflow.api.input_files import (
    QUARANTINE,
    CannotRead,
    CorruptContent,
    FileShare,
    UnreadableFile,
    local_path,
    plain_path,
    unreadable_in,
)
from stateflow.api.source import Source
from stateflow.checkpoint.barrier.task_report import error_in_text
from stateflow.errors import BatchFailed, SchemaMismatch, StateflowError
from stateflow.runtime.quarantine import SkippedFile
from stateflow.runtime.spark.file_reader import BatchFiles, FileReader, SourceRows
from stateflow.runtime.spark.frames import empty_frame, in_order
from stateflow.runtime.spark.location.checkpoint_location import SparkLocation
from stateflow.runtime.task.row_conversion import check_declared

log = logging.getLogger(__name__)

_MOST_SEARCHED = 1 << 28
"""How many bytes of files are searched for a row that an error is about."""


class BatchInput:
    """The input of one Spark batch, without corrupt files that the job skips.

    Files are first read by the tasks of the batch. When a task fails on a file, the file is read once more alone: a
    failure that does not recur is not caused by its content. Each attempt at a batch decides again, from the bytes of
    the file, and only a checkpoint makes the decision permanent.

    Args:
        nodes: the sources in the order of `source_frame`.
        sources: the sources by uid.
        location: has the files and positions of the batch.
        batch_id: Spark's number of the batch.
        frame: the batch's DataFrame, as Spark created it.
    """

    def __init__(
        self,
        nodes: Sequence[SourceNode],
        sources: Mapping[str, Source],
        location: SparkLocation,
        *,
        batch_id: int,
        frame: DataFrame,
    ) -> None:
        self._nodes = nodes
        self._sources = sources
        self._location = location
        self._batch_id = batch_id
        self._frame = frame
        self.skipped: list[SkippedFile] = []

    def rows(self, frame: DataFrame | None = None) -> SourceRows:
        """Returns the rows of the batch without those of skipped files.

        Args:
            frame: the batch's DataFrame, persisted; None if it is not.
        """
        sorts = {}
        for at, node in enumerate(self._nodes):
            start, end = self._location.batch_offsets(self._batch_id, at)
            order = self._sources[node.uid].file_order(self._frame.sparkSession, start, end)
            if order is not None:
                sorts[node.uid] = partial(in_order, order)
        return SourceRows(frame or self._frame, self._batch_files, sorts)

    def _batch_files(self) -> dict[str, BatchFiles]:
        """Returns the files of the batch that are not skipped, by uid of their source."""
        skipped = {(s.source, s.file.file) for s in self.skipped}
        found = {}
        for node in self._nodes:
            source = self._sources[node.uid]
            if source.has_files:
                uris = [file for file in self._files()[node.uid] if (node.uid, file) not in skipped]
                by_spark = partial(self._read_by_spark, node, uris)
                found[node.uid] = BatchFiles(uris, source.file_format(uris), by_spark)
        return found

    def _read_by_spark(self, node: SourceNode, uris: Sequence[str]) -> DataFrame:
        spark = self._frame.sparkSession
        if not uris:
            return empty_frame(spark, node.schema)
        order = list(map(arrival_place, uris))
        return self._sources[node.uid].read_files(
            spark, uris, lambda rows: in_order(order, rows.selectExpr("*", arrival()))
        )

    def _files(self) -> dict[str, list[str]]:
        """Returns the files of the batch, by uid of the source; none for sources without files."""
        return {node.uid: self._location.batch_files(self._batch_id, at) for at, node in enumerate(self._nodes)}

    def skip_corrupt(self, error: Exception) -> bool:
        """Finds the file that a batch failed on, and skips it if the job permits that.

        Returns:
            Whether the batch can be retried without the file.

        Raises:
            CorruptInput: the file is corrupt, and must not be skipped.
            BatchFailed: a retry may be able to read the file.
        """
        found = unreadable_in(str(error))
        if found is None:
            self._name_file(error)
            return False
        uid, file = self._owner(found)
        is_skipped = any(s.source == uid and s.file.file == file for s in self.skipped)
        if not uid or not found.is_corrupt or is_skipped:
            raise found.error() from error
        found = replace(found, file=file)
        self._check_again(uid, found)
        if self._sources[uid].on_corrupt_file != QUARANTINE:
            raise found.error() from error
        self._skip(uid, found)
        return True

    def _name_file(self, error: Exception) -> None:
        """Adds the file of a row that is not of its declared class to the error.

        Raises:
            SchemaMismatch: the error that Spark's message has, with the file.
        """
        mismatch = error if isinstance(error, StateflowError) else error_in_text(str(error))
        if not isinstance(mismatch, SchemaMismatch) or "row" not in mismatch.facts:
            return
        left = _MOST_SEARCHED
        for uid, files in self._files().items():
            for file in files:
                path = local_path(file)
                size = os.path.getsize(path) if path and os.path.exists(path) else left
                left -= size
                if left > 0 and self._has_row(self._sources[uid], file, size, mismatch):
                    mismatch.add_facts(file=path)
                    if mismatch is not error:
                        raise mismatch from error
                    return

    def _has_row(self, source: Source, file: str, size: int, mismatch: SchemaMismatch) -> bool:
        format, wanted = source.file_format([file]), {name: mismatch.facts.get(name) for name in ("column", "row")}
        if format is None:
            return False
        share = FileShare(local_path(file) or "", 0, max(1, size), size)
        try:
            for batch in format.read(share, source.schema):
                check_declared(batch.columns, source.schema)
        except SchemaMismatch as e:
            return wanted.items() <= e.facts.items()
        except (CannotRead, CorruptContent, OSError):
            return False
        return False

    def _owner(self, found: UnreadableFile) -> tuple[str, str]:
        """Returns uid of the source and URI of its file; empty strings for a file that a transform reads."""
        for uid, files in self._files().items():
            for file in files:
                if plain_path(file) == found.path:
                    return uid, file
        return "", ""

    def _check_again(self, uid: str, found: UnreadableFile) -> None:
        spark = self._frame.sparkSession
        try:
            # All columns of all rows are read, and nothing is written. A hash of them would not accept maps.
            self._read_alone(spark, uid, found).write.format("noop").mode("overwrite").save()
        except Exception as e:
            again = unreadable_in(str(e))
            if again is not None and again.is_corrupt:
                return
            raise (again or replace(found, is_corrupt=False)).error() from e
        raise BatchFailed(
            "an input file could be read only at the second attempt",
            hint="check the storage; a new run continues from the last checkpoint",
            file=found.path,
            reason=found.reason,
        )

    def _read_alone(self, spark: SparkSession, uid: str, found: UnreadableFile) -> DataFrame:
        """Returns the rows of a file, read as when it failed."""
        source = self._sources[uid]
        format = source.file_format([found.file]) if found.by_task else None
        if format is None:
            return source.read_files(spark, [found.file])
        file = BatchFiles([found.file], format, lambda: source.read_files(spark, [found.file]))
        reader = FileReader.of(file, source.schema, 1)
        return reader.frame(spark).mapInArrow(reader.read, source.schema.ddl)

    def _skip(self, uid: str, found: UnreadableFile) -> None:
        known = {s.file.file for s in self.skipped if s.source == uid}
        left = [file for file in self._files()[uid] if file not in known | {found.file}]
        truncated = self._sources[uid].truncated(left)
        more = [UnreadableFile(file, reason, is_corrupt=True) for file, reason in truncated.items()]
        for each in [found, *more]:
            log.warning("skipping a corrupt input file: source=%s file=%s error=%s", uid, each.path, each.reason)
            self.skipped.append(SkippedFile(uid, each))
