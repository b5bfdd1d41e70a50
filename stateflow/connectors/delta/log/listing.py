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


def log_names(table: Path) -> list[str]:
    """Returns the names in the folder of a table's log.

    Raises CorruptFile for a FIFO or a device in it, or in one of its folders, such as that of sidecars: deltalake would
    wait for its content.
    """
    found = _checked_files(table / LOG_FOLDER)
    for entry in found:
        if entry.is_dir():
            _checked_files(Path(entry.path))
    return [entry.name for entry in found]


def _checked_files(folder: Path) -> list[os.DirEntry[str]]:
    try:
        with os.scandir(folder) as entries:
            found = list(entries)
    except OSError as e:
        raise disk_error(e, folder) from e
    for entry in found:
        # Views of a log consist of links, whose files a clean-up may have removed.
        if not (entry.is_file() or entry.is_dir() or (entry.is_symlink() and not os.path.exists(entry.path))):
            raise CorruptFile(
                "the Delta table's log contains something other than files",
                hint="remove it, or restore the file from a copy",
                file=entry.path,
            )
    return found
