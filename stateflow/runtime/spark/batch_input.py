"""The input of one Spark batch, without corrupt files that the job skips."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cached_property, partial
from itertools import chain

from pyspark.sql import DataFrame

from stateflow.api.file_log import ListedFile
from stateflow.api.graph import SourceNode
from stateflow.api.input_files import (
    QUARANTINE,
    CannotRead,
    CorruptContent,
    FileFormat,
    FileShare,
    LostFile,
    UnreadableFile,
    local_path,
    plain_path,
    unreadable_in,
)
from stateflow.api.schema import ARRIVAL, arrival_place
from stateflow.api.source import Source
from stateflow.checkpoint.barriers import error_in_text
from stateflow.checkpoint.log.documents import NOT_BEGUN
from stateflow.errors import BatchFailed, SchemaMismatch, StateflowError, StorageError
from stateflow.runtime.job import SkippedFile
from stateflow.runtime.spark.checkpoint_location import SparkLocation
from stateflow.runtime.spark.frames import empty_frame, sort_by_arrival
from stateflow.runtime.spark.inputs import BatchFiles, FileSearch, SourceRows, partition_ranks
from stateflow.runtime.task.row_conversion import check_declared
from stateflow.storage import Credentials

log = logging.getLogger(__name__)

_MOST_SEARCHED = 1 << 28
"""How many bytes of files are searched for a row that an error is about."""
_GROUPS = 8
"""Into how many groups files are divided to find the corrupt ones."""


class BatchInput:
    """The input of one Spark batch, without corrupt files that the job skips.

    Files are first read by the tasks of the batch. When a task fails on a file, the file is read once more alone: a
    failure that does not recur is not caused by its content. The first failure also looks for all other corrupt files
    of the sources that skip them, because each attempt at the batch costs as much as the batch. Each attempt at a batch
    decides again, from the bytes of the file, and only a checkpoint makes the decision permanent.

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
        self._searched = set[str]()
        """Uids of the sources whose files tasks have read to find the corrupt ones."""
        self.skipped: list[SkippedFile] = []

    def rows(self, frame: DataFrame | None = None) -> SourceRows:
        """Returns the rows of the batch without those of skipped files.

        Args:
            frame: the batch's DataFrame, persisted; None if it is not.
        """
        ends = []
        for at, node in enumerate(self._nodes):
            _, end = self._location.batch_offsets(self._batch_id, at)
            if end != NOT_BEGUN:
                ends.append((self._sources[node.uid], end))
        return SourceRows(frame or self._frame, self._batch_files, partition_ranks(self._frame, ends))

    def _batch_files(self) -> dict[str, BatchFiles]:
        """Returns the files of the batch that are not skipped, by uid of their source."""
        skipped = {(s.source, s.file.file) for s in self.skipped}
        found = {}
        for at, node in enumerate(self._nodes):
            source = self._sources[node.uid]
            start, end = self._location.batch_offsets(self._batch_id, at)
            listed = source.files_between(start, end) if end != NOT_BEGUN else None
            if listed is not None:
                found[node.uid] = BatchFiles.of(listed)
            if source.has_files:
                uris = [file for file in self._files[node.uid] if (node.uid, file) not in skipped]
                by_spark = partial(self._read_by_spark, node, uris)
                found[node.uid] = BatchFiles(uris, source.file_format(uris), by_spark, self._objects)
        return found

    def _read_by_spark(self, node: SourceNode, uris: Sequence[str]) -> DataFrame:
        spark = self._frame.sparkSession
        if not uris:
            return empty_frame(spark, node.schema)
        order = list(map(arrival_place, uris))
        return self._sources[node.uid].read_files(
            spark, uris, lambda rows: sort_by_arrival(order, rows.selectExpr("*", ARRIVAL))
        )

    @cached_property
    def _files(self) -> dict[str, list[str]]:
        """Returns the files of the batch, by uid of the source; none for sources without files."""
        return {uid: [file.path for file in files] for uid, files in self._listed.items()}

    @cached_property
    def _listed(self) -> dict[str, list[ListedFile]]:
        return {node.uid: self._location.batch_files(self._batch_id, at) for at, node in enumerate(self._nodes)}

    @cached_property
    def _objects(self) -> dict[str, tuple[int, str]]:
        """Returns size and version of each object of the batch, by its URI."""
        listed = chain.from_iterable(self._listed.values())
        return {file.path: (file.size, file.version) for file in listed if file.size >= 0}

    def skip_corrupt(self, error: Exception) -> bool:
        """Finds the file that a batch failed on, and skips it if the job permits that.

        Returns:
            Whether the batch can be retried without the file.

        Raises:
            CorruptInput: the file is corrupt, and must not be skipped.
            InputLost: a table that a source reads no longer has the file.
            BatchFailed: a retry may be able to read the file.
        """
        found = unreadable_in(str(error))
        if found is None:
            self._name_file(error)
            return False
        uid, file = self._owner(found)
        is_skipped = any(s.source == uid and s.file.file == file for s in self.skipped)
        if not uid or not found.is_corrupt or is_skipped:
            explained = (source.explain_failure(str(error)) for source in self._sources.values())
            raise next(filter(None, explained), None) or found.error() from error
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
        for uid, files in self._files.items():
            for file in files:
                path = local_path(file)
                on_disk = os.path.getsize(path) if path and os.path.exists(path) else left
                size = self._objects[file][0] if file in self._objects else on_disk
                left -= size
                if left > 0 and self._has_row(self._sources[uid], file, size, mismatch):
                    mismatch.add_facts(file=plain_path(file))
                    if mismatch is not error:
                        raise mismatch from error
                    return

    def _has_row(self, source: Source, file: str, size: int, mismatch: SchemaMismatch) -> bool:
        format, wanted = source.file_format([file]), {name: mismatch.facts.get(name) for name in ("column", "row")}
        if format is None:
            return False
        share = FileShare(self._path(file), 0, max(1, size), size)
        try:
            for batch in format.read(share, source.schema):
                check_declared(batch.columns, source.schema)
        except SchemaMismatch as e:
            return wanted.items() <= e.facts.items()
        except (CannotRead, CorruptContent, LostFile, StorageError, OSError):
            return False
        return False

    def _path(self, file: str) -> str:
        """Returns how shares name a file."""
        return file if file in self._objects else local_path(file) or ""

    def _owner(self, found: UnreadableFile) -> tuple[str, str]:
        """Returns uid of the source and URI of its file; empty strings for a file that a transform reads."""
        for uid, files in self._files.items():
            for file in files:
                if plain_path(file) == found.path:
                    return uid, file
        return "", ""

    def _check_again(self, uid: str, found: UnreadableFile) -> None:
        error = self._error_alone(uid, found)
        again = unreadable_in(str(error))
        if error is None:
            raise BatchFailed(
                "an input file could be read only at the second attempt",
                hint="check the storage; a new run continues from the last checkpoint",
                file=found.path,
                reason=found.reason,
            )
        if again is None or not again.is_corrupt:
            raise (again or replace(found, is_corrupt=False)).error() from error

    def _error_alone(self, uid: str, found: UnreadableFile) -> Exception | None:
        """Reads a file as when it failed, and returns the error."""
        format = self._sources[uid].file_format([found.file]) if found.by_task else None
        if format is None:
            return self._error_of(uid, [found.file])
        errors = self._search({uid: format}, [(uid, found.file)])
        return CannotRead(errors[0][1]) if errors else None

    def _skip(self, uid: str, found: UnreadableFile) -> None:
        """Skips a corrupt file, and all other corrupt files of the sources that skip them."""
        self._record(uid, found)
        skipping = [u for u, s in self._sources.items() if s.has_files and s.on_corrupt_file == QUARANTINE]
        for each in skipping:
            for file, reason in self._sources[each].find_truncated(self._left(each)).items():
                self._record(each, UnreadableFile(file, reason, is_corrupt=True))
        by_tasks = {u: self._sources[u].file_format(self._left(u)) for u in skipping if u not in self._searched}
        # A failure after this search is not one that tasks can find.
        self._searched.update(skipping)
        for_spark = self._search_by_tasks({u: format for u, format in by_tasks.items() if format is not None})
        for each in skipping:
            left = [file for file in for_spark.get(each, self._left(each)) if file not in self._objects]
            for corrupt in self._search_by_spark(each, left):
                self._record(each, corrupt)

    def _record(self, uid: str, found: UnreadableFile) -> None:
        log.warning("skipping a corrupt input file: source=%s file=%s error=%s", uid, found.path, found.reason)
        self.skipped.append(SkippedFile(uid, found))

    def _left(self, uid: str) -> list[str]:
        """Returns the files of a source in the batch that are not skipped."""
        known = {s.file.file for s in self.skipped if s.source == uid}
        return [file for file in self._files[uid] if file not in known]

    def _search_by_tasks(self, formats: Mapping[str, FileFormat]) -> dict[str, list[str]]:
        """Skips all files that tasks find to be corrupt, in one pass over the files of all sources.

        Returns:
            The files of each source that tasks cannot read, and Spark may.

        Raises:
            BatchFailed: an object cannot be read now.
        """
        files = [(uid, file) for uid in formats for file in self._left(uid)]
        for_spark: dict[str, list[str]] = {uid: [] for uid in formats}
        for number, error in self._search(formats, files):
            uid, file = files[number]
            found = unreadable_in(error)
            if found is None:
                for_spark[uid].append(file)
            elif not found.is_corrupt:
                raise found.error()
            else:
                self._record(uid, replace(found, file=file))
        return for_spark

    def _search(self, formats: Mapping[str, FileFormat], files: Sequence[tuple[str, str]]) -> list[tuple[int, str]]:
        paths = [(uid, self._path(file)) for uid, file in files]
        schemas = {uid: self._sources[uid].schema.without_classes() for uid in formats}
        search = FileSearch(formats, schemas, paths, self._objects, Credentials.of_process())
        return search.run(self._frame.sparkSession)

    def _search_by_spark(self, uid: str, files: Sequence[str]) -> Iterator[UnreadableFile]:
        """Yields the corrupt ones of some files that only Spark can read: it names one file that it cannot read.

        So it reads them all, and in groups if that fails: N files with one corrupt one are read log(N) times.

        Raises:
            BatchFailed: a retry may be able to read the files.
        """
        error = self._error_of(uid, files) if files else None
        found = unreadable_in(str(error))
        if error is None or found is None:
            # An error without a file is left to the batch.
            return
        if not found.is_corrupt:
            raise found.error() from error
        if len(files) == 1:
            found = replace(found, file=files[0])
            self._check_again(uid, found)
            yield found
            return
        size = -(-len(files) // _GROUPS)
        for at in range(0, len(files), size):
            yield from self._search_by_spark(uid, files[at : at + size])

    def _error_of(self, uid: str, files: Sequence[str]) -> Exception | None:
        try:
            rows = self._sources[uid].read_files(self._frame.sparkSession, files)
            # All columns of all rows are read, and nothing is written. A hash of them would not accept maps.
            rows.write.format("noop").mode("overwrite").save()
        except Exception as e:
            return e
        return None
