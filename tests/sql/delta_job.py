"""A job with SQL statements on Spark: its file, its input files and its tables."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import deltalake
import pyarrow as pa
from pyarrow import parquet

_FIRST_MTIME = 1_700_000_000


class DeltaJob:
    """A job that reads Parquet files below a folder, and writes Delta tables there.

    Args:
        text: the job file.
        inputs: the schemas of the input files, by the name of their folder, which is also the name of its parameter.
    """

    def __init__(self, folder: Path, text: str, inputs: Mapping[str, pa.Schema]) -> None:
        self.folder = folder
        self._inputs = inputs
        for name in inputs:
            (folder / name).mkdir()
        (folder / "job.py").write_text(text, encoding="utf-8")

    def deliver(self, name: str, rows: Sequence[tuple[Any, ...]]) -> None:
        """Adds a file of rows, which is newer than all others of its folder."""
        schema, folder = self._inputs[name], self.folder / name
        number = len(os.listdir(folder))
        path = folder / f"{number}.parquet"
        values = [dict(zip(schema.names, row, strict=True)) for row in rows]
        parquet.write_table(pa.Table.from_pylist(values, schema), path)
        os.utime(path, (_FIRST_MTIME + number, _FIRST_MTIME + number))

    def run(self, **settings: object) -> dict[str, Any]:
        """Runs the job until it has read all files; returns the result of the run.

        Args:
            settings: names with two underscores for each dot.
        """
        folder = self.folder
        given = {
            "job.tables": folder / "tables",
            **{f"job.{name}": folder / name for name in self._inputs},
            "spark.master": "local[2,4]",
            # Its start takes longer than its few rows.
            "spark.conf.spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
            **{name.replace("__", "."): value for name, value in settings.items()},
        }
        command = [sys.executable, "-m", "stateflow", "run", str(folder / "job.py"), "--job-root", str(folder / "root")]
        command += ["--result-file", str(folder / "result.json")]
        command += [each for name, value in given.items() for each in ("--set", f"{name}={value}")]
        run = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
        assert run.returncode == 0, run.stderr[-3_000:]
        result: dict[str, Any] = json.loads((folder / "result.json").read_text())
        return result

    def rows(self, name: str) -> Counter[tuple[Any, ...]]:
        """The rows of a table."""
        found = pa.table(deltalake.DeltaTable(str(self.folder / "tables" / name)).to_pyarrow_table())
        return Counter(zip(*(column.to_pylist() for column in found.columns), strict=True))
