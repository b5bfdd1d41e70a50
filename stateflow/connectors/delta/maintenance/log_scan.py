"""What the entries of a Delta table's log say about removed files and published checkpoints."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import msgspec

from stateflow.connectors.delta.log.lines import log_lines, opened_log_file
from stateflow.connectors.delta.log.listing import list_log
from stateflow.connectors.delta.log.table_log import entry_path
from stateflow.errors import CorruptFile
from stateflow.types.decoders import json_decoder


class _Remove(msgspec.Struct, rename="camel"):
    path: str
    deletion_timestamp: int | None = None


class _Transaction(msgspec.Struct, rename="camel"):
    app_id: str
    version: int


class _Line(msgspec.Struct):
    remove: _Remove | None = None
    txn: _Transaction | None = None


_line = json_decoder(_Line)


@dataclass(frozen=True)
class LogScan:
    """The newest entries of a log without a gap.

    Attributes:
        removed: for each path that an entry removes, as in the log, the newest time in milliseconds since 1970; None
            if an entry does not have it.
        tokens: for each application, the versions that set its token, oldest first, with the token.
    """

    removed: Mapping[str, int | None]
    tokens: Mapping[str, list[tuple[int, int]]]

    def version_of(self, application: str, checkpoint_id: int) -> int | None:
        """Returns the version that a rewind to a checkpoint restores; None if there is nothing to undo."""
        first = None
        for version, token in reversed(self.tokens.get(application, [])):
            if token <= checkpoint_id:
                break
            first = version
        return None if not first else first - 1


def scan_log(table: Path, newest: int) -> LogScan:
    """Reads the entries of a table's log up to a version. Raises CorruptFile."""
    removed: dict[str, int | None] = {}
    tokens: dict[str, list[tuple[int, int]]] = defaultdict(list)
    entries = list_log(table).entries
    first = newest
    while first - 1 in entries:
        first -= 1
    for version in range(first, newest + 1):
        for line in _lines(entry_path(table, version)):
            if line.remove is not None:
                removed[line.remove.path] = line.remove.deletion_timestamp
            if line.txn is not None:
                tokens[line.txn.app_id].append((version, line.txn.version))
    return LogScan(removed, tokens)


def _lines(path: Path) -> Iterator[_Line]:
    try:
        with opened_log_file(path) as file:
            for line in log_lines(file, path):
                yield _line.decode(line)
    except FileNotFoundError:
        return  # expired and removed meanwhile
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as e:
        message = "a log entry of the Delta table cannot be decoded"
        raise CorruptFile(message, file=str(path), reason=str(e)) from e
