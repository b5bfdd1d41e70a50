"""The input of one Spark batch, without corrupt files that the job skips."""

from __future__ import annotations

import logging
import os
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from pyspark.sql import DataFrame, SparkSession

from stateflow.api.graph.nodes import SourceNode
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
from stateflow.errors import BatchFailed, CorruptInput
from stateflow.runtime.quarantine import SkippedFile
from stateflow.runtime.spark.file_reader import SourceRows, TaskFiles
from stateflow.runtime.spark.frames import empty_frame, source_frame

log = logging.getLogger(__name__)


class BatchInput:
    """The input of one Spark batch, without corrupt files that the job skips.

    Files are first read by the tasks of the batch. When a task fails on a file, the file is read once more alone: a
    failure that does not recur is not caused by its content. Each attempt at a batch decides again, from the bytes of
    the file, and only a checkpoint makes the decision permanent.

    Args:
        nodes: the sources in the order of `source_frame`.
        sources: the sources by uid.
        files: returns the percent-encoded URIs of the batch's files, by uid, for sources that read files.
        frame: the batch's DataFrame, as Spark created it.
    """

    def __init__(
        self,
        nodes: Sequence[SourceNode],
        sources: Mapping[str, Source],
        files: Callable[[], Mapping[str, Sequence[str]]],
        frame: DataFrame,
    ) -> None:
        self._nodes = nodes
        self._sources = sources
        self._files = files
        self._frame = frame
        self.skipped: list[SkippedFile] = []

    def rows(self) -> SourceRows:
        """Returns the rows of the batch without those of skipped files."""
        if not self.skipped:
            return SourceRows(self._frame, self._files_for_tasks)
        # No part of Spark's frame can be used, not even the rows of other sources: Spark computes all of it together.
        spark, files = self._frame.sparkSession, self._files()
        skipped = {(s.source, s.file.file) for s in self.skipped}
        return SourceRows(
            source_frame(
                [
                    (node, self._rows_of(spark, node, [f for f in files[node.uid] if (node.uid, f) not in skipped]))
                    for node in self._nodes
                ]
            )
        )

    def _files_for_tasks(self) -> dict[str, TaskFiles]:
        """Returns the files that tasks read, by uid, of sources all of whose files they can read."""
        found = {}
        for uid, files in self._files().items():
            format, paths = self._sources[uid].file_format(files), list(map(local_path, files))
            if format is not None:
                found[uid] = TaskFiles(format, tuple(path for path in paths if path is not None))
        return found

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
            return False
        uid, file = self._owner(found)
        is_skipped = any(s.source == uid and s.file.file == file for s in self.skipped)
        if not uid or not found.is_corrupt or is_skipped:
            raise found.error() from error
        found = replace(found, file=file)
        self._check_again(uid, found)
        if self._sources[uid].on_corrupt_file != QUARANTINE:
            raise found.error() from error
        self._check_others(found)
        self._skip(uid, found)
        return True

    def _check_others(self, found: UnreadableFile) -> None:
        """Raises CorruptInput when the batch cannot be rebuilt without the file."""
        others = sorted(uid for uid, source in self._sources.items() if not source.has_files)
        if others:
            raise CorruptInput(
                "a corrupt input file cannot be skipped, because the batch also has rows of sources without files",
                hint="replace or remove the file and start again",
                file=found.path,
                reason=found.reason,
                sources=others,
            )

    def _owner(self, found: UnreadableFile) -> tuple[str, str]:
        """Returns uid of the source and URI of its file; empty strings for a file that a transform reads."""
        for uid, files in self._files().items():
            for file in files:
                if plain_path(file) == found.path:
                    return uid, file
        return "", ""

    def _check_again(self, uid: str, found: UnreadableFile) -> None:
        spark = self._frame.sparkSession
        if found.by_task and self._is_corrupt_content(uid, found):
            return
        try:
            # All columns of all rows are read, and nothing is written. A hash of them would not accept maps.
            self._sources[uid].read_files(spark, [found.file]).write.format("noop").mode("overwrite").save()
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

    def _is_corrupt_content(self, uid: str, found: UnreadableFile) -> bool:
        """Returns whether a file that tasks read is not of the declared form: Spark may read it without an error."""
        source, path = self._sources[uid], local_path(found.file)
        format = source.file_format([found.file])
        if format is None or path is None:
            return False
        try:
            size = os.stat(path).st_size
            deque(format.read(FileShare(path, 0, max(1, size), size), source.schema), maxlen=0)
        except CorruptContent:
            return True
        except (CannotRead, OSError):
            return False
        return False

    def _skip(self, uid: str, found: UnreadableFile) -> None:
        known = {s.file.file for s in self.skipped if s.source == uid}
        left = [file for file in self._files()[uid] if file not in known | {found.file}]
        truncated = self._sources[uid].truncated(left)
        more = [UnreadableFile(file, reason, is_corrupt=True) for file, reason in truncated.items()]
        for each in [found, *more]:
            log.warning("skipping a corrupt input file: source=%s file=%s error=%s", uid, each.path, each.reason)
            self.skipped.append(SkippedFile(uid, each))

    def _rows_of(self, spark: SparkSession, node: SourceNode, files: list[str]) -> DataFrame:
        if not files:
            return empty_frame(spark, node.schema)
        return self._sources[node.uid].read_files(spark, files)
