"""A source that follows a script of rows, pauses and crashes, and records every position that it returns."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Sequence
from pathlib import Path

from stateflow.api.schema import RowSchema
from stateflow.api.source import LocalSource, Slice
from stateflow.config.settings import SourceSettings


class Crash:
    """An item of a script: kills the process with SIGKILL, once.

    Args:
        marker: a file that is created at the crash, so that the next run continues.
    """

    def __init__(self, marker: Path) -> None:
        self.marker = marker

    def happen(self) -> None:
        """Kills the process, unless `marker` exists."""
        try:
            os.close(os.open(self.marker, os.O_CREAT | os.O_EXCL, 0o600))
        except FileExistsError:
            return
        os.kill(os.getpid(), signal.SIGKILL)


class Pause:
    """An item of a script: the source has no further rows until the gate file exists.

    Args:
        gate: the file.
    """

    def __init__(self, gate: Path) -> None:
        self.gate = gate


class ScriptedSource(LocalSource):
    """A source that returns the rows of a list in slices.

    Args:
        row_class: class of the rows.
        script: rows, `Crash` and `Pause` objects; a position is a number of rows.
        ledger: a file to which each read appends a JSON line ``[start, end]``.
        slice_rows: maximum rows of a batch; settings may lower it.
    """

    def __init__(self, row_class: type[object], script: Sequence[object], ledger: Path, slice_rows: int = 10) -> None:
        self.schema = RowSchema.of(row_class)
        self._script = list(script)
        self._ledger = ledger
        self._slice_rows = slice_rows

    @property
    def description(self) -> str:
        return f"ScriptedSource[{self.schema.row_class.__name__}]"

    def read(self, position: str | None, limits: SourceSettings) -> Slice | None:
        start = int(json.loads(position)["row"]) if position else 0
        rows = self._rows_from(start, min(self._slice_rows, limits.max_rows_per_batch or self._slice_rows))
        if not rows:
            return None
        end = start + len(rows)
        with self._ledger.open("a") as file:
            file.write(json.dumps([start, end]) + "\n")
        return Slice(rows, json.dumps({"row": end}))

    def between(self, position: str | None, end: str) -> Sequence[object] | None:
        """Returns the rows between two positions, without the ledger; None if the script no longer has them."""
        start, stop = (int(json.loads(at)["row"]) if at else 0 for at in (position, end))
        rows = [item for item in self._script if not isinstance(item, Crash | Pause)]
        return rows[start:stop] if start <= stop <= len(rows) else None

    def holds(self, position: str) -> bool | None:
        """Returns whether the script still has all rows that were ever read; it may have been shortened since."""
        rows = sum(1 for item in self._script if not isinstance(item, Crash | Pause))
        return max((end for _, end in self.requested()), default=0) <= rows

    def requested(self) -> list[tuple[int, int]]:
        """Returns every slice that was read, in order, over all runs."""
        if not self._ledger.exists():
            return []
        return [(a, b) for a, b in map(json.loads, self._ledger.read_text().splitlines())]

    def _rows_from(self, start: int, limit: int) -> list[object]:
        rows: list[object] = []
        at = 0
        for item in self._script:
            if len(rows) == limit:
                break
            if isinstance(item, Crash | Pause):
                if at >= start and self._stops(item, rows):
                    break
            else:
                if at >= start:
                    rows.append(item)
                at += 1
        return rows

    @staticmethod
    def _stops(item: Crash | Pause, rows: list[object]) -> bool:
        if rows:
            return True
        if isinstance(item, Crash):
            item.happen()
            return False
        return not item.gate.exists()
