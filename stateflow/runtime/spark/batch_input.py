"""The rows of one Spark batch, without the input files that turn out to be corrupt."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from pyspark.sql import DataFrame, SparkSession

from stateflow.api.graph import SourceNode
from stateflow.api.input_files import QUARANTINE, UnreadableFile, plain_path, unreadable_in
from stateflow.api.source import Source
from stateflow.errors import BatchFailed, CorruptInput
from stateflow.runtime.frames import source_frame
from stateflow.runtime.quarantine import SkippedFile

log = logging.getLogger(__name__)


class BatchInput:
    """The rows of one Spark batch, without the files that turn out to be corrupt.

    A file is read by the batch's tasks and by nothing before; when they fail on one, it is read once more alone: a
    failure that does not come again was none of the file's content. Every attempt at a batch decides anew, by the
    file's bytes, and only the checkpoint makes the decision count.

    Args:
        nodes: the sources in the order of `source_frame`.
        sources: by uid.
        files: gives the percent-encoded URIs of the batch's files, by uid, for sources that read files.
        frame: the batch's frame, as Spark made it.
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

    def rows(self) -> DataFrame:
        """The frame without the skipped files."""
        if not self.skipped:
            return self._frame
        # Of Spark's frame nothing can be used, not even the rows of other sources: all of it is computed together.
        spark, files = self._frame.sparkSession, self._files()
        gone = {(s.source, s.file.file) for s in self.skipped}
        return source_frame(
            [
                (node, self._rows_of(spark, node, [f for f in files[node.uid] if (node.uid, f) not in gone]))
                for node in self._nodes
            ]
        )

    def skip_corrupt(self, error: Exception) -> bool:
        """Looks which file a batch failed on; returns whether the batch can be tried again without it.

        Raises CorruptInput for a corrupt file that must not be skipped, BatchFailed for a file that another try may be
        able to read.
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
        """Raises CorruptInput when the batch cannot be made anew without the file."""
        others = sorted(uid for uid, source in self._sources.items() if not source.has_files)
        if others:
            raise CorruptInput("an input file cannot be read, and cannot be skipped: the rows of sources without files "
                               "are read with it", hint="replace or remove the file and start again",
                               file=found.path, reason=found.reason, sources=others)  # fmt: skip

    def _owner(self, found: UnreadableFile) -> tuple[str, str]:
        """The source whose file it is, and how its log spells the file; nothing for one that a transform reads."""
        for uid, files in self._files().items():
            for file in files:
                if plain_path(file) == found.path:
                    return uid, file
        return "", ""

    def _check_again(self, uid: str, found: UnreadableFile) -> None:
        spark = self._frame.sparkSession
        try:
            self._sources[uid].read_files(spark, [found.file]).selectExpr("max(xxhash64(*))").collect()
        except Exception as e:
            again = unreadable_in(str(e))
            if again is not None and again.is_corrupt:
                return
            raise (again or replace(found, is_corrupt=False)).error() from e
        raise BatchFailed("an input file could be read at the second try only", hint="look at the storage; a new run "
                          "starts from the last checkpoint", file=found.path, reason=found.reason)  # fmt: skip

    def _skip(self, uid: str, found: UnreadableFile) -> None:
        known = {s.file.file for s in self.skipped if s.source == uid}
        left = [file for file in self._files()[uid] if file not in known | {found.file}]
        truncated = self._sources[uid].truncated(left)
        more = [UnreadableFile(file, reason, is_corrupt=True) for file, reason in truncated.items()]
        for each in [found, *more]:
            log.warning(
                "a corrupt input file is skipped: source=%s file=%s error=%s", uid, each.path, each.reason
            )
            self.skipped.append(SkippedFile(uid, each))

    def _rows_of(self, spark: SparkSession, node: SourceNode, files: list[str]) -> DataFrame:
        if not files:
            return spark.createDataFrame([], node.schema.ddl)
        return self._sources[node.uid].read_files(spark, files)
