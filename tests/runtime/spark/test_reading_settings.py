"""Spark's settings that would change what the rows of a source are: replaced, or refused by name."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from stateflow.errors import ConfigError
from stateflow.runtime.spark.session.requirements import READING, check_reading
from tests.support.errors import raises
from tests.support.processes import ROOT

_PROGRAM = """
import sys
from datetime import datetime
from pathlib import Path
from typing import Annotated
import msgspec
from stateflow import FileSource
from stateflow.api.input_files import unreadable_in
from stateflow.config.sources import resolve
from stateflow.runtime.spark.session.session import JobTraits, open_session
from stateflow.runtime.spark.session.requirements import READING
from stateflow.types.spark_sql import literal

class Row(msgspec.Struct):
    note: str
    time: Annotated[datetime, msgspec.Meta(tz=True)]
    local: datetime

class Text(msgspec.Struct):
    text: str

folder = Path(sys.argv[1])
settings = resolve({"local_dir": str(folder / "local"), "spark.master": "local[1,4]"})
session = open_session(settings, JobTraits(has_expressions=False, has_fixed_rows=False))
for format in ("json", "parquet"):
    source = FileSource(folder / format, schema=Row, format=format)
    source.check(session)
    rows = source.read_files(session, [file.as_uri() for file in sorted((folder / format).iterdir())])
    print("read", format, rows.dtypes, [tuple(map(str, row)) for row in rows.collect()])
damaged = FileSource(folder / "damaged", schema=Text, format="parquet")
try:
    print("read damaged", damaged.read_files(session, [(folder / "damaged/a").as_uri()]).collect())
except Exception as e:
    found = unreadable_in(str(e))
    print("read damaged", found and (found.is_corrupt, Path(found.path).name))
print("read sql", session.sql(f"SELECT {literal(chr(39) + chr(92))} AS a, TRY_CAST('1' AS INT) + 1 AS b").collect())
print("kept", {key for key, value in READING.items() if session.conf.get(key).lower() != value.lower()})
session.stop()
"""


@pytest.mark.spark
@pytest.mark.slow(reason="starts Spark for its jobs")
def test_settings_of_a_company_do_not_change_what_rows_are(tmp_path: Path) -> None:
    import datetime

    import pyarrow as pa
    import pyarrow.parquet as pq

    opposite = {"true": "false", "false": "true"}
    given = {
        **{key: opposite.get(value, "LEGACY") for key, value in READING.items()},
        "spark.sql.timestampType": "TIMESTAMP_NTZ",
        "spark.sql.columnNameOfCorruptRecord": "note",
        "spark.sql.session.timeZone": "Asia/Tokyo",
        "spark.sql.mapKeyDedupPolicy": "LAST_WIN",
    }
    (tmp_path / "spark-defaults.conf").write_text("".join(f"{key} {value}\n" for key, value in given.items()))
    (tmp_path / "json").mkdir()
    (tmp_path / "json/a").write_text('{"note": "n", "time": "2026-01-31T10:00:00Z", "local": "2026-01-31T10:00:00"}\n')
    at = datetime.datetime(2026, 1, 31, 10)  # noqa: DTZ001 - a column without time zone
    (tmp_path / "parquet").mkdir()
    times = {"time": pa.array([at], pa.timestamp("us", "UTC")), "local": pa.array([at], pa.timestamp("us"))}
    pq.write_table(pa.table({"note": ["n"], **times}), tmp_path / "parquet/ä")
    (tmp_path / "damaged").mkdir()
    options: dict[str, Any] = {"compression": "none", "use_dictionary": False, "write_page_checksum": True}
    pq.write_table(pa.table({"text": ["right"]}), tmp_path / "damaged/a", **options)
    data = (tmp_path / "damaged/a").read_bytes()
    assert b"right" in data
    (tmp_path / "damaged/a").write_bytes(data.replace(b"right", b"wrong"))
    environment = {**os.environ, "SPARK_CONF_DIR": str(tmp_path), "PYTHONPATH": str(ROOT), "LC_ALL": "C"}
    program = tmp_path / "program.py"
    program.write_text(_PROGRAM)
    done = subprocess.run(
        [sys.executable, str(program), str(tmp_path)], env=environment, capture_output=True, text=True, check=False
    )
    kinds = [("note", "string"), ("time", "timestamp"), ("local", "timestamp_ntz")]
    row = ("n", "2026-01-31 10:00:00", "2026-01-31 10:00:00")
    read = [line for line in done.stdout.splitlines() if line.startswith(("read", "kept"))]
    rows = [f"read {format} {kinds} [{row}]" for format in ("json", "parquet")]
    rows.append("read damaged (True, 'a')")
    assert read == [*rows, 'read sql [Row(a="\'\\\\", b=2)]', "kept set()"], done.stderr[-3000:]


@pytest.mark.parametrize("key", READING)
def test_a_setting_of_the_job_that_changes_what_rows_are_is_refused_by_name(key: str) -> None:
    with raises(ConfigError, setting=key, found="other"):
        check_reading({key: "other"})
    check_reading({key: READING[key].lower()})
