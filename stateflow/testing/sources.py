"""Sources that follow a script: rows, pauses, crashes; and a record of every position that was asked for."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from stateflow.api.schema import RowSchema
from stateflow.api.source import LocalSource, Slice
from stateflow.settings import SourceSettings


class Crash:
    """Stands between rows in a script: the process that comes here first dies by SIGKILL.

    Args:
        marker: a file that remembers that it happened, so that the next run passes.
    """

    def __init__(self, marker: Path) -> None:
        self.marker = marker

    def happen(self) -> None:
        """Dies, unless it did before."""
        try:
            os.close(os.open(self.marker, os.O_CREAT | os.O_EXCL, 0o600))
        except FileExistsError:
            return
        os.kill(os.getpid(), signal.SIGKILL)


class Pause:
    """Stands between rows in a script: a run that comes here is caught up, until the gate file exists.

    Args:
        gate: the file that opens the way.
    """

    def __init__(self, gate: Path) -> None:
        self.gate = gate


class ScriptedSource(LocalSource):
    """Rows from a list, in slices.

    Args:
        row_class: class of the rows.
        script: rows, `Crash` and `Pause` objects; positions count the rows.
        ledger: a file that gets one JSON line ``[start, end]`` for each slice that was asked for.
        slice_rows: rows of a batch, unless settings say less.
    """

    def __init__(
        self, row_class: type[Any], script: Sequence[Any], ledger: Path, slice_rows: int = 10
    ) -> None:
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

    def holds(self, position: str) -> bool | None:
        """Whether the script still has as many rows as were ever asked for: it may have been cut off since."""
        rows = sum(1 for item in self._script if not isinstance(item, Crash | Pause))
        return max((end for _, end in self.requested()), default=0) <= rows

    def requested(self) -> list[tuple[int, int]]:
        """Every slice that was asked for, in order, over all runs."""
        if not self._ledger.exists():
            return []
        return [(a, b) for a, b in map(json.loads, self._ledger.read_text().splitlines())]

    def _rows_from(self, start: int, limit: int) -> list[Any]:
        rows: list[Any] = []
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
    def _stops(item: Crash | Pause, rows: list[Any]) -> bool:
        if rows:
            return True
        if isinstance(item, Crash):
            item.happen()
            return False
        return not item.gate.exists()
