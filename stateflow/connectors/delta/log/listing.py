"""The names of the files in the log of a Delta table."""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from stateflow.connectors.delta.data_files import disk_error
from stateflow.errors import CorruptFile

LOG_FOLDER = "_delta_log"

_LOG_FILE = re.compile(
    r"(?P<version>\d{20})\.(?P<kind>json|\d{20}\.compacted\.json"
    r"|(?P<checkpoint>checkpoint)\.(?:parquet|\d{10}\.(?P<parts>\d{10})\.parquet|[0-9a-fA-F-]{36}\.(?:json|parquet)))"
)


@dataclass(frozen=True)
class LogListing:
    """The files of a table's log.

    Attributes:
        names: the version of each file by name; the first version for a file that covers several.
        entries: versions that have a log entry.
        checkpoints: versions that have a complete checkpoint.
    """

    names: Mapping[str, int]
    entries: frozenset[int]
    checkpoints: frozenset[int]

    @property
    def other_texts(self) -> list[str]:
        """JSON files other than entries: compacted entries, and V2 checkpoints."""
        return [name for name in self.names if name.endswith(".json") and name.count(".") > 1]

    def newest_checkpoint(self, version: int) -> int:
        """Returns the newest version up to `version` that has a checkpoint; 0 when there is none."""
        return max((v for v in self.checkpoints if v <= version), default=0)


def list_log(table: Path) -> LogListing:
    """Lists the files of a table's log. Raises StorageError."""
    found = [match for name in log_names(table) if (match := _LOG_FILE.fullmatch(name))]
    parts_found = Counter((int(m["version"]), int(m["parts"] or 1)) for m in found if m["checkpoint"])
    return LogListing(
        names={match.string: int(match["version"]) for match in found},
        entries=frozenset(int(m["version"]) for m in found if m["kind"] == "json"),
        checkpoints=frozenset(version for (version, parts), number in parts_found.items() if number >= parts),
    )


def log_names(table: Path, *, is_view: bool = False) -> list[str]:
    """Returns the names in the folder of a table's log.

    Args:
        is_view: whether the log consists of links that this process has made.

    Raises:
        CorruptFile: the log, or one of its folders, such as `_sidecars`, has a FIFO or a device, for whose content
            deltalake would wait, or a link, by which it would read another table's log.
    """
    found = _checked_files(table / LOG_FOLDER, is_view)
    for entry in found:
        if entry.is_dir():
            _checked_files(Path(entry.path), is_view)
    return [entry.name for entry in found]


def _checked_files(folder: Path, is_view: bool) -> list[os.DirEntry[str]]:
    if not is_view and folder.is_symlink():
        raise _not_a_file(str(folder))
    try:
        with os.scandir(folder) as entries:
            found = list(entries)
    except OSError as e:
        raise disk_error(e, folder) from e
    for entry in found:
        # Views of a log consist of links, whose files a clean-up may have removed.
        is_link = entry.is_symlink()
        is_known = is_link and is_view and not os.path.exists(entry.path)
        if (is_link and not is_view) or not (entry.is_file() or entry.is_dir() or is_known):
            raise _not_a_file(entry.path)
    return found


def _not_a_file(path: str) -> CorruptFile:
    return CorruptFile(
        "the Delta table's log contains something other than files",
        hint="remove it, or restore the file from a copy",
        file=path,
    )
