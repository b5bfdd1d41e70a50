"""Sources that are added, removed, renamed and set to a position, as Spark reads them."""

from __future__ import annotations

import json
import os
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from stateflow.checkpoint.log.job_root import JobRoot
from stateflow.clock import SystemClock
from stateflow.query import state_entries
from stateflow.state.operator_content import read_parts
from stateflow.storage import open_storage
from stateflow.types.serializers import decode_untyped
from tests.spark.jobs import regraphed, sources
from tests.spark.processes import ModuleJob
from tests.support import restores

pytestmark = [pytest.mark.spark, pytest.mark.slow(reason="starts Spark for its jobs")]
BEGAN = 1_700_000_000


@pytest.fixture(params=[sources])
def job(tmp_path: Path, request: pytest.FixtureRequest) -> Any:
    job = ModuleJob(tmp_path, request.param)
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
    """Runs the job; returns the rows that it added."""
    before = job.rows("out") if (job.folder / "out").exists() else Counter()
    _declare(job, given)
    job.finish()
    return job.rows("out") - before


def _restore(job: ModuleJob, given: str, *options: str) -> dict[str, tuple[str, str]]:
    _declare(job, given)
    plan = restores.go_back(job, "latest", *options)
    return {source["uid"]: (source["action"], source["then"]) for source in plan["sources"]}


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
    assert found["list"] == ("removed", "") and found["a"] == ("reset", "-") and found["z"][0] == "kept"
    assert found["c"][0] == "new" and found["c"][1].startswith("2 files")
    _write(job, "three", 4_000_000_000 - BEGAN)
    assert _run(job, given) == Counter([("one", 4), ("two", 1), ("three", 4_000_000_000 - BEGAN)])

    found = _restore(job, given, "--source", "z=timestamp:2023-11-14T22:13:23Z")
    assert found["z"][0] == "reset" and found["z"][1].startswith("2 files")
    assert _run(job, given) == Counter([("one", 3), ("one", 4)])
    _write(job, "one", 5)
    assert _run(job, given) == Counter([("one", 5)])


def test_a_plan_is_outdated_when_other_files_must_be_skipped(job: ModuleJob) -> None:
    _write(job, "one", 1)
    _run(job, "m:one")
    restores.plan(job, "latest", "--source", "m=timestamp:2024-01-01")
    _write(job, "one", 2)
    restores.execute(job).check_error(4, "plan-outdated")


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


def test_a_python_source_on_spark_continues_at_its_own_position(job: ModuleJob) -> None:
    given = "a:listed,b:listed"
    assert _run(job, given) == Counter({("listed", 1): 2, ("listed", 2): 2})
    found = _restore(job, given, "--source", 'a={"row": 1}')
    assert found["a"][0] == "reset" and found["b"][0] == "kept"
    assert _run(job, given) == Counter([("listed", 2)])


OLD = "m:one,again:two,since:three,list:listed,gone:four,other:five"
NEW = "z:one,again:two,since:three,list:listed,begins:six,skips:seven,other:eight"
OPTIONS = (
    *("--map", "m=z", "--map", "both=totals", "--map", "both=distinct", "--map", "both.total=totals.sum"),
    *("--source", "again=earliest", "--source", "since=timestamp:2023-11-14T22:13:23Z", "--source", 'list={"row": 1}'),
    *("--source", "skips=latest", "--source", "other=earliest"),
)
LATE = 4_000_000_000 - BEGAN


@pytest.mark.parametrize("job", [regraphed], indirect=True)
def test_every_change_of_the_graph_at_once_keeps_state_and_chosen_positions(job: ModuleJob) -> None:
    """An operator is split, a state renamed; sources are renamed, added, removed, replaced, and set in every way."""
    before: dict[str, tuple[int, ...]] = {"one": (1, 2), "two": (1, 2), "three": (1, 2, 3), "four": (1,), "five": (1,)}
    for folder, numbers in before.items():
        _write(job, folder, *numbers)
    job.settings = {**job.settings, "parallelism": 2}
    first = _run(job, OLD)
    assert first == Counter((f, n) for f, numbers in {**before, "listed": (1, 2)}.items() for n in numbers)
    job.create_savepoint("whole", "--from-head", "--format", "canonical")
    for folder, numbers in {"one": (3,), "two": (3,), "six": (1, 2), "seven": (1,), "eight": (1, 2)}.items():
        _write(job, folder, *numbers)
    job.settings = {**job.settings, "parallelism": 3, "state__backend": "filesystem", "job__version": 2}
    _declare(job, NEW)
    plan = restores.go_back(job, "whole", *OPTIONS)
    actions = {source["uid"]: source["action"] for source in plan["sources"]}
    assert actions == {
        "z": "kept",
        "again": "reset",
        "since": "reset",
        "list": "reset",
        "begins": "new",
        "skips": "new",
        "other": "reset",
        "gone": "removed",
    }
    _write(job, "seven", LATE)
    second = _run(job, NEW)
    after = {
        "one": (3,),
        "two": (1, 2, 3),
        "three": (3,),
        "listed": (2,),
        "six": (1, 2),
        "seven": (LATE,),
        "eight": (1, 2),
    }
    assert second == Counter((folder, number) for folder, numbers in after.items() for number in numbers)
    _check_state(job, first + second)


def _check_state(job: ModuleJob, processed: Counter[tuple[Any, ...]]) -> None:
    """The states of both operators are those of all rows that were ever processed."""
    sums: Counter[tuple[str]] = Counter()
    for (name, number), times in processed.items():
        sums[name,] += number * times
    assert {(e.state, e.key): e.value for e in state_entries(job.job_root, "totals")} == {
        ("sum", key): total for key, total in sums.items()
    }
    found = {(*e.key, e.map_key): e.value for e in state_entries(job.job_root, "distinct")}
    assert found == processed
    assert {state.state for state in state_entries(job.job_root, "distinct")} == {"seen"}
    root = JobRoot.open(open_storage(job.job_root), SystemClock())
    manifest = root.checkpoints.manifest_at(root.head())
    assert manifest is not None
    parts = {operator.uid: list(read_parts(root.storage, operator.parts)) for operator in manifest.operators}
    elements = [decode_untyped(each) for _, content in parts["distinct"] for each in content.lists["all"]]
    assert Counter(elements) == Counter(number for _, number in processed.elements())
    assert not parts["totals"]
