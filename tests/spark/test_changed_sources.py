"""Sources that are added, removed, renamed and set to a position, as Spark reads them."""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.spark.jobs import sources
from tests.spark.processes import ModuleJob
from tests.support import restores

pytestmark = [pytest.mark.spark, pytest.mark.slow(reason="each run is a driver with Spark")]
BEGAN = 1_700_000_000


@pytest.fixture
def job(tmp_path: Path) -> Iterator[ModuleJob]:
    job = ModuleJob(tmp_path, sources)
    job.settings = {name: value for name, value in job.settings.items() if name != "job__spark"}
    yield job
    job.close()


def _write(job: ModuleJob, folder: str, *numbers: int) -> None:
    """Adds a file for each number, modified so many seconds after `BEGAN`; names have what URIs encode."""
    path = job.folder / folder
    path.mkdir(exist_ok=True)
    for number in numbers:
        file = path / f"f {number}%ä.json"
        file.write_text(json.dumps({"name": folder, "number": number}))
        os.utime(file, (BEGAN + number, BEGAN + number))


def _declare(job: ModuleJob, given: str) -> None:
    job.settings = {**job.settings, "job__sources": given}


def _run(job: ModuleJob, given: str) -> Counter[tuple[Any, ...]]:
    before = job.rows("out") if (job.folder / "out").exists() else Counter()
    _declare(job, given)
    job.finish()
    return job.rows("out") - before


def _restore(job: ModuleJob, given: str, *options: str) -> dict[str, tuple[str, Any]]:
    _declare(job, given)
    plan = restores.go_back(job, "latest", *options)
    return {source["uid"]: (source["action"], source["target_offset"]) for source in plan["sources"]}


def test_sources_change_and_no_other_source_loses_or_repeats_a_row(job: ModuleJob) -> None:
    _write(job, "one", 1, 2)
    assert _run(job, "m:one,list:listed") == Counter([("one", 1), ("one", 2), ("listed", 1), ("listed", 2)])

    # A source that is added before others changes Spark's numbers of these.
    _write(job, "one", 3)
    _write(job, "two", 1)
    assert _run(job, "m:one,a:two,list:listed") == Counter([("one", 3), ("two", 1)])

    _write(job, "one", 4)
    _write(job, "three", 1, 2)
    given = "z:one,a:two,c:three"
    found = _restore(job, given, "--map", "m=z", "--source", "a=earliest", "--source", "c=latest")
    assert found["list"] == ("removed", None) and found["a"] == ("reset", None) and found["z"][0] == "kept"
    assert found["c"][0] == "new" and found["c"][1].startswith("2 files")
    _write(job, "three", 4_000_000_000 - BEGAN)
    assert _run(job, given) == Counter([("one", 4), ("two", 1), ("three", 4_000_000_000 - BEGAN)])

    found = _restore(job, given, "--source", "z=timestamp:2023-11-14T22:13:23Z")
    assert found["z"][0] == "reset" and found["z"][1].startswith("2 files")
    assert _run(job, given) == Counter([("one", 3), ("one", 4)])
    _write(job, "one", 5)
    assert _run(job, given) == Counter([("one", 5)])


def test_a_file_source_does_not_keep_a_position_of_other_files(job: ModuleJob) -> None:
    _write(job, "one", 1)
    _write(job, "two", 1, 2)
    _run(job, "m:one")
    _declare(job, "m:two")
    job.run().check_error(2, "config", uid="m")
    restores.ask(job, "latest", "--source", "m=keep").check_error(2, "config", uid="m")
    restores.ask(job, "latest", "--source", 'm={"logOffset":0}').check_error(2, "config", uid="m")
    _restore(job, "m:two", "--source", "m=earliest")
    assert _run(job, "m:two") == Counter([("two", 1), ("two", 2)])
