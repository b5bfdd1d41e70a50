"""The files of a Delta table's newest version, kept from commit to commit."""

from __future__ import annotations

from pathlib import Path

import msgspec

from stateflow.connectors.delta.log.lines import log_lines, opened_log_file
from stateflow.connectors.delta.log.table_log import Action, DeltaHead, entry_path
from stateflow.connectors.delta.versions import DataFile, Key, read_content
from stateflow.errors import CorruptFile, SinkDiverged
from stateflow.types.decoders import json_decoder

_action = json_decoder(dict[str, Action])


class ActiveFiles:
    """The files of a table at one version. The next version is read from its log entry alone.

    Args:
        table: the table.
        application: the application that commits.
    """

    def __init__(self, table: Path, application: str) -> None:
        self._table = table
        self._application = application
        self._id = ""
        self._version = -1
        self._files: dict[Key, DataFile] = {}

    def at(self, head: DeltaHead) -> list[DataFile]:
        """Returns the files of the version of `head`.

        Raises:
            SinkDiverged: the log no longer has that version.
            CorruptFile: a log entry is damaged.
        """
        if head.metadata.id != self._id or not self._follow(head.version):
            self._load(head)
        return list(self._files.values())

    def _load(self, head: DeltaHead) -> None:
        content = read_content(self._table, head.version, self._application)
        if content is None:
            raise SinkDiverged(
                "the files of a version of the Delta table cannot be listed",
                hint="restore its log",
                table=str(self._table),
                version=head.version,
            )
        self._id, self._version, self._files = head.metadata.id, head.version, dict(content.files)

    def _follow(self, version: int) -> bool:
        """Applies the entries up to a version; returns False if one of them no longer exists."""
        if version < self._version:
            return False
        for number in range(self._version + 1, version + 1):
            try:
                self._apply(entry_path(self._table, number))
            except FileNotFoundError:
                return False
            self._version = number
        return True

    def _apply(self, path: Path) -> None:
        try:
            with opened_log_file(path) as file:
                actions = [_action.decode(line) for line in log_lines(file, path)]
            removed = [DataFile.of(action["remove"]).key for action in actions if "remove" in action]
            added = [DataFile.of(action["add"]) for action in actions if "add" in action]
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError, LookupError, TypeError) as e:
            message = "a log entry of the Delta table cannot be decoded"
            raise CorruptFile(message, file=str(path), reason=str(e)) from e
        for key in removed:
            self._files.pop(key, None)
        self._files |= {file.key: file for file in added}
