"""The folders below a root: created durably, listed and removed without following symbolic links."""

from __future__ import annotations

import contextlib
import logging
import os
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from stateflow.storage.no_follow import open_folder, open_root

log = logging.getLogger(__name__)

_REMEMBERED_FOLDERS = 1000
"""How many synced folders are remembered."""
_MOST_LEVELS = 32
"""How many levels of folders a listing descends: each takes a descriptor, and the keys of stateflow have at most 8."""

Names = Sequence[str]


@dataclass(frozen=True)
class FoundFile:
    """A regular file below the root: its path there, and its size in bytes."""

    path: str
    size: int


class FolderTree:
    """Opens folders by their names below a folder. A symbolic link in place of one of them raises LinkedFolder.

    Args:
        root: the folder, whose path may lead through symbolic links.
        inner: names of the folders from `root` to the one below which all others are; no links either.
    """

    def __init__(self, root: Path, inner: Names = ()) -> None:
        self._root = root
        self._inner = tuple(inner)
        self._synced: OrderedDict[tuple[str, ...], None] = OrderedDict()

    @contextlib.contextmanager
    def opened(self, names: Names) -> Iterator[int]:
        """Yields a descriptor of an existing folder."""
        folder = open_root(self._root)
        try:
            for name in (*self._inner, *names):
                folder = _replaced(folder, open_folder(folder, name))
            yield folder
        finally:
            os.close(folder)

    @contextlib.contextmanager
    def made(self, names: Names) -> Iterator[int]:
        """Yields a descriptor of a folder, which is created if necessary, after making its name durable.

        Names are synced once per process: when another process removes the empty folder and creates it again, that
        process syncs it. Only probes and requests are in such folders, so no checkpoint is lost with them.
        """
        folder, path = self._made_root(), (*self._inner, *names)
        try:
            for level in range(1, len(path) + 1):
                folder = _replaced(folder, self._enter(folder, path[:level]))
            yield folder
        finally:
            os.close(folder)

    def remove_empty(self, names: Names) -> None:
        """Removes a folder, and the ones above it except the root, as far as they are empty."""
        for level in range(len(names), 0, -1):
            try:
                with self.opened(names[: level - 1]) as parent:
                    os.rmdir(names[level - 1], dir_fd=parent)
            except OSError:
                return
            self._synced.pop((*self._inner, *names[:level]), None)

    def files(self, names: Names) -> Iterator[FoundFile]:
        """Yields the regular files below a folder, in any order; none when the folder does not exist."""
        try:
            with self.opened(names) as folder:
                yield from _files_below(folder, "/".join(names))
        except (FileNotFoundError, NotADirectoryError):
            return

    def names(self, names: Names) -> list[str]:
        """Returns the names of the folders directly in a folder, without links; none when that does not exist."""
        try:
            with self.opened(names) as folder, os.scandir(folder) as entries:
                return [entry.name for entry in entries if entry.is_dir(follow_symlinks=False)]
        except (FileNotFoundError, NotADirectoryError):
            return []

    def _made_root(self) -> int:
        """Opens the root; creates it, and the folders above it, if they do not exist."""
        with contextlib.suppress(FileNotFoundError):
            return open_root(self._root)
        missing = [self._root]
        while not missing[-1].parent.is_dir():
            missing.append(missing[-1].parent)
        for path in reversed(missing):
            with contextlib.suppress(FileExistsError):
                path.mkdir(mode=0o700)
            parent = open_root(path.parent)
            try:
                sync_folder(parent)
            finally:
                os.close(parent)
        return open_root(self._root)

    def _enter(self, parent: int, names: tuple[str, ...]) -> int:
        """Opens the folder with the last of the names in its open parent, and creates it if necessary."""
        name = names[-1]
        try:
            folder = open_folder(parent, name)
        except FileNotFoundError:
            self._synced.pop(names, None)
            with contextlib.suppress(FileExistsError):
                os.mkdir(name, 0o700, dir_fd=parent)
            folder = open_folder(parent, name)
        try:
            # Another process may have created an existing folder and not synced it yet.
            if names not in self._synced:
                sync_folder(parent)
                self._remember(names)
        except BaseException:
            os.close(folder)
            raise
        return folder

    def _remember(self, names: tuple[str, ...]) -> None:
        self._synced[names] = None
        while len(self._synced) > _REMEMBERED_FOLDERS:
            self._synced.popitem(last=False)


def sync_folder(folder: int) -> None:
    """Makes the names in an open folder durable."""
    os.fsync(folder)


def _replaced(folder: int, inner: int) -> int:
    os.close(folder)
    return inner


@dataclass
class _Level:
    """An open folder of a listing: its descriptor, its path below the root, and what is still to be visited in it."""

    folder: int
    path: str
    entries: list[os.DirEntry[str]]

    @classmethod
    def of(cls, folder: int, path: str) -> _Level:
        with os.scandir(folder) as entries:
            return cls(folder, path, list(entries))


def _files_below(folder: int, path: str) -> Iterator[FoundFile]:
    levels, skipped = [_Level.of(folder, path)], 0
    try:
        while levels:
            level = levels[-1]
            if not level.entries:
                levels.pop()
                _close_inner(level, folder)
                continue
            entry = level.entries.pop()
            inner_path = f"{level.path}/{entry.name}" if level.path else entry.name
            with contextlib.suppress(FileNotFoundError, NotADirectoryError):
                if entry.is_file(follow_symlinks=False):
                    yield FoundFile(inner_path, entry.stat(follow_symlinks=False).st_size)
                elif entry.is_dir(follow_symlinks=False):
                    if len(levels) < _MOST_LEVELS:
                        levels.append(_opened_level(level.folder, entry.name, inner_path))
                    else:
                        skipped += 1
    finally:
        for level in levels:
            _close_inner(level, folder)
    if skipped:
        # One user's folders must not make every command fail. Nothing of stateflow is as deep.
        log.warning("skipped %d folders that are more than %d levels below %r", skipped, _MOST_LEVELS, path)


def _opened_level(parent: int, name: str, path: str) -> _Level:
    folder = open_folder(parent, name)
    try:
        return _Level.of(folder, path)
    except BaseException:
        os.close(folder)
        raise


def _close_inner(level: _Level, root: int) -> None:
    if level.folder != root:
        os.close(level.folder)
