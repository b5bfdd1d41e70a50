"""Screens of the command line, compared with golden files in which varying parts have names.

``make golden`` writes the files again; read their diff before you commit it.
"""

from __future__ import annotations

import os
import re

from syrupy.extensions.single_file import SingleFileSnapshotExtension, WriteMode

_HOST = re.escape(os.uname().nodename)
_NAMED = {
    "<uuid>": r"\b[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}\b",
    "<hash>": r"\b[0-9a-f]{32,64}\b|(?<=[a-zA-Z0-9]-)[0-9a-f]{8,31}\b|(?<=\()[0-9a-f]{12}(?=\))",
    "<user>": rf"\b[\w.-]+@{_HOST}(?![\w.-])",
    "<process>": rf"(?<![\w.-]){_HOST}:\d+\b",
}
_MEASURED = {
    # The zone stays: who reads a time needs it.
    "<time>": r"\b\d{4}-\d\d-\d\d[T ]\d\d:\d\d(:\d\d(\.\d+)?)?|\b\d{8}T\d{6}(?=Z)",
    "<duration>": r"\b\d+(\.\d+)? ?(ms|s|min|h)\b",
    "<number> requests": r"\b[0-9,]+ requests\b",
    "<size>": r"\b\d+(\.\d+)? (B|kB|MB|GB|TB|KiB|MiB|GiB)\b",
    "<number>": r"(?<=_ms=)[\d.]+|(?<=_bytes=)\d+",
}
# The graph of a history keeps its spaces.
_GAP = r"(?<=[!-~]) {2,}"
_MILLISECONDS = r"(?<=<time>)  \d+(?=  )"
"""The column after the time of a checkpoint."""


class ScreenFile(SingleFileSnapshotExtension):
    """Keeps each screen in a text file of its own."""

    _write_mode = WriteMode.TEXT
    file_extension = "txt"


def normalized(shown: str, *, exact: bool = False, **names: object) -> str:
    """Returns a screen in which what differs from run to run has a name, and columns are two spaces apart.

    Args:
        shown: what a command printed.
        exact: leave times, durations, sizes and columns as they are: for a screen whose figures are always the same.
        names: further texts to replace: ``folder=tmp_path`` makes ``<folder>`` of the path.
    """
    for name, value in sorted(names.items(), key=lambda item: -len(str(item[1]))):
        shown = shown.replace(str(value), f"<{name}>")
    for name, pattern in (_NAMED if exact else _NAMED | _MEASURED).items():
        shown = re.sub(pattern, name, shown)
    lines = [(line if exact else _columns(line)).rstrip() for line in shown.splitlines()]
    return "\n".join(lines) + "\n"


def _columns(line: str) -> str:
    return re.sub(_MILLISECONDS, "  <ms>", re.sub(_GAP, "  ", line))
