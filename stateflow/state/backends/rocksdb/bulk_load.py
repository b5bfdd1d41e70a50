"""Bulk loading: sorted entries become data files of a store, and do not pass through its memory.

The data files are written with the options of the store and moved into its lowest level, where a compaction of all
entries would have left them. They are moved, not copied, so a load takes as much disk space as the entries.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from rocksdict import IngestExternalFileOptions, Rdict, SstFileWriter

from stateflow.config.state_settings import RocksDBSettings
from stateflow.errors import CorruptFile
from stateflow.state.backends.entry_stream import EntryBlock
from stateflow.state.backends.rocksdb.errors import is_overlap
from stateflow.state.backends.rocksdb.options import rocksdb_options, target_file_bytes


def bulk_load(store: Rdict, settings: RocksDBSettings, blocks: Iterable[EntryBlock]) -> bool:
    """Adds entries to an open store, without rewriting those that it has.

    Args:
        store: the store.
        settings: those with which it is open.
        blocks: the entries. Where keys do not ascend, another run of entries begins. Between the first and the last key
            of a run, neither another run nor the store may have a key.

    Returns:
        Whether there were any entries.

    Raises:
        CorruptFile: there is a key between those of a run; nothing was added.
    """
    writer = _TableWriter(Path(store.path()), settings)
    for block in blocks:
        writer.add(block)
        del block  # Before the next one is read, since each may be large.
    writer.finish()
    if writer.paths:
        _ingest(store, writer.paths)
    return bool(writer.paths)


class _TableWriter:
    """Writes data files of about the size that compactions write.

    Args:
        folder: folder of the store. RocksDB ignores the names of the files until it has moved them.
        settings: settings of the store.
    """

    def __init__(self, folder: Path, settings: RocksDBSettings) -> None:
        self.paths: list[str] = []
        self._folder = folder
        self._options = rocksdb_options(settings)
        self._largest_file = target_file_bytes(settings)
        self._file: SstFileWriter | None = None
        self._last = b""

    def add(self, block: EntryBlock) -> None:
        """Appends a block, to the current file if its keys are larger and the file is not full."""
        if self._file is None or block.keys[0] <= self._last or self._file.file_size() >= self._largest_file:
            self._file = self._next_file()
        file = self._file
        for key, value in zip(block.keys, block.values, strict=True):
            file[key] = value
        self._last = block.keys[-1]

    def finish(self) -> None:
        """Completes the current file."""
        if self._file is not None:
            self._file.finish()

    def _next_file(self) -> SstFileWriter:
        self.finish()
        path = str(self._folder / f"load-{len(self.paths)}")
        file = SstFileWriter(self._options)
        file.open(path)
        self.paths.append(path)
        return file


def _ingest(store: Rdict, paths: list[str]) -> None:
    options = IngestExternalFileOptions()
    options.set_move_files(True)
    # Entries then keep the sequence number 0 that is in the files, so that files and store manifest agree on the bounds
    # of a file. RocksDB requires another number where keys overlap, and refuses the files.
    options.set_allow_global_seqno(False)
    try:
        store.ingest_external_file(paths, options)
    except Exception as e:
        if not is_overlap(e):
            raise
        raise CorruptFile(
            "parts of a state have entries of the same key groups",
            hint="restore an older checkpoint, or another savepoint",
            store=store.path(),
            reason=str(e),
        ) from e
