"""Settings: layers, values, and the errors of wrong ones."""

from __future__ import annotations

import dataclasses
import errno
import os
import re
from datetime import datetime, time, timedelta
from functools import reduce
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stateflow.config.settings import CheckpointSettings, RunEnd, RunSettings, Settings, StateSettings, parse_duration
from stateflow.config.sources import parse_assignments, read_toml, resolve
from stateflow.errors import ConfigError
from tests.support.errors import raises

DOCS = Path(__file__).resolve().parents[2] / "docs" / "settings.md"


def _setting(name: str, value: Any) -> Any:
    settings: Any = resolve({name: value})
    return reduce(getattr, name.split("."), settings)


def test_code_is_weaker_than_a_file_and_a_file_than_the_command_line(tmp_path: Path) -> None:
    assert resolve() == resolve({}, {}) == Settings()
    code = {"parallelism": 1, "checkpoints.retained": 1, "name": "code"}
    file = tmp_path / "settings.toml"
    file.write_text('parallelism = 3\nname = "file"\n[run]\nmax_batches = 3\n')
    found = resolve(code, read_toml(file), parse_assignments(("name=line", "checkpoints.collect_every=2")))
    assert (found.parallelism, found.name) == (3, "line")
    assert found.checkpoints == CheckpointSettings(retained=1, collect_every=2)
    assert found.run == RunSettings(max_batches=3)


def test_parameters_and_spark_s_settings_are_passed_on_as_text() -> None:
    found = resolve({"job.tables": "/t", "job.strict": True, "spark.conf.spark.executor.memory": "2g"})
    assert found.job == {"tables": "/t", "strict": "True"}
    assert found.spark.conf == {"spark.executor.memory": "2g"}


@pytest.mark.parametrize(
    ("given", "found"),
    [
        (("a=b",), {"a": "b"}),
        (("a.b=c=d", "x="), {"a.b": "c=d", "x": ""}),
        ((" a = b",), {"a": " b"}),
        ((), {}),
        (("a=1", "a=2"), {"a": "2"}),
    ],
)
def test_an_assignment_is_a_name_and_a_value(given: tuple[str, ...], found: dict[str, str]) -> None:
    assert parse_assignments(given) == found


@pytest.mark.parametrize("text", ["a", "", "=b"])
def test_an_assignment_without_name_or_value_is_refused(text: str) -> None:
    with raises(ConfigError, given=text):
        parse_assignments((text,))


SECONDS = {"500ms": 0.5, "250 millis": 0.25, "90s": 90, " 3 s ": 3, ".5sec": 0.5, "10m": 600, "10 min": 600}
LONG_ONES = {"2h": 7200, "2 hours": 7200, "1.5h": 5400, "1d": 86400, "1 Day": 86400}


@pytest.mark.parametrize(("text", "seconds"), [*SECONDS.items(), *LONG_ONES.items()])
def test_a_duration_has_a_unit(text: str, seconds: float) -> None:
    duration = timedelta(seconds=seconds)
    assert parse_duration(text) == duration
    assert _setting("run.max_duration", text) == _setting("run.max_duration", duration) == duration


NO_DURATIONS = ["90", 90, "s", "-1s", "0s", "infs", "nans", "1 min 5 s", "5 minits", "٣s", timedelta()]
WRONG: dict[str, list[Any]] = {
    "parallelism": ["two", "2.0", 2.0, True, None, "0"],
    "run.max_batches": [-1],
    "run.max_duration": NO_DURATIONS,
    "checkpoints.retained": [0, -3, "-3"],
    "checkpoints.collect_every": ["0"],
    "checkpoints.min_pause": ["-1s", "0"],
    "checkpoints.interval": ["0"],
    "checkpoints.interval_batches": ["0"],
    "checkpoints.timeout": ["0"],
    "checkpoints.max_in_flight": ["0"],
    "checkpoints.tolerable_failures": ["-1"],
    "rocksdb.compact_at_files": [""],
    "storage.shared": ["maybe", 2],
    "run": [5],
    "job": ["x"],
    "spark.conf": ["x"],
    "state.backend": ["hashmap"],
}


@pytest.mark.parametrize(("name", "value"), [(name, value) for name, values in WRONG.items() for value in values])
def test_a_wrong_value_is_refused_by_the_setting_s_name(name: str, value: Any) -> None:
    with raises(ConfigError) as refused:
        resolve({name: value})
    assert refused.value.facts == {"name": name, "value": value}
    assert refused.value.hint


BACKENDS = {"rocksdb", "filesystem", "memory"}
MISSPELT = "paralelism Parallelism run.batches run. run.max_batches.x parallelism.x checkpoints..retained spark.x ."


@pytest.mark.parametrize("name", [*MISSPELT.split(), "run", ""])
def test_an_unknown_setting_is_refused_by_name(name: str) -> None:
    with raises(ConfigError, name=name):
        resolve({name: "1"})


@pytest.mark.parametrize(
    ("name", "known"), [("run.batches", {f.name for f in dataclasses.fields(RunSettings)}), ("state.backend", BACKENDS)]
)
def test_the_hint_lists_the_settings_or_values_that_exist(name: str, known: set[str]) -> None:
    with raises(ConfigError) as refused:
        resolve({name: "hashmap"})
    assert known <= set(re.findall(r"\w+", refused.value.hint))


@pytest.mark.parametrize(
    ("name", "given", "found"),
    [
        ("checkpoints.tolerable_failures", "0", 0),
        ("checkpoints.min_pause", "0s", timedelta()),
        ("restart.fixed_delay.delay", "0s", timedelta()),
        ("restart.failure_rate.delay", "0s", timedelta()),
        # Words may be written as Flink's constants are.
        ("checkpoints.mode", "EXACTLY_ONCE", "exactly-once"),
        ("checkpoints.mode", "At_Least-Once", "at-least-once"),
        ("restart.strategy", "FAILURE_RATE", "failure-rate"),
        ("state.backend", "RocksDB", "rocksdb"),
        ("rocksdb.compaction", "LEVELED", "leveled"),
        *(("storage.shared", value, True) for value in ("true", "yes", "1", "TRUE", True, 1)),
        *(("storage.shared", value, False) for value in ("false", "no", "0", False, 0)),
    ],
)
def test_a_value_has_several_forms(name: str, given: Any, found: Any) -> None:
    value = _setting(name, given)
    assert value == found and isinstance(value, type(found))


@pytest.mark.parametrize("settings", [{"parallelism": 200, "max_parallelism": 100}, {"max_parallelism": 1}])
def test_parallelism_is_at_most_max_parallelism(settings: dict[str, int]) -> None:
    wanted = settings.get("parallelism", Settings().parallelism)
    with raises(ConfigError, value=wanted, max_parallelism=settings["max_parallelism"]):
        resolve(settings)


@pytest.mark.long(reason="draws many values of each setting")
@given(
    st.dictionaries(st.text(max_size=20), st.text(max_size=5) | st.integers() | st.floats() | st.booleans(), max_size=3)
)
def test_any_setting_is_accepted_or_refused_with_facts(layer: dict[str, Any]) -> None:
    try:
        resolve(layer)
    except ConfigError as e:
        assert e.facts


def test_a_backend_is_chosen_by_flink_s_names_and_a_later_layer_wins_under_either_name(tmp_path: Path) -> None:
    assert resolve().state == StateSettings(backend="rocksdb", incremental=True)
    full = StateSettings(incremental=False)
    assert resolve({"state.backend": "rocksdb", "state.backend.incremental": "false"}).state == full
    assert resolve({"state.incremental": False}).state == full
    names = ("state.incremental", "state.backend.incremental")
    for first, second in (names, names[::-1]):
        assert resolve({first: False}, {second: True}).state.incremental is True
    file = tmp_path / "settings.toml"
    file.write_text('[state]\nbackend = "rocksdb"\n"backend.incremental" = false\n')
    assert resolve(read_toml(file)).state == full
    file.write_text('[state]\nbackend = "memory"\nmemory_limit_bytes = 7\n')
    assert resolve(read_toml(file)).state == StateSettings(backend="memory", memory_limit_bytes=7)


@pytest.mark.parametrize(
    ("name", "limit"),
    [
        ("state.inline_below_bytes", 1 << 20),
        ("state.memory_limit_bytes", 24 << 20),
        ("shuffle.sort_memory_bytes", 1 << 31),
    ],
)
def test_what_is_stored_or_sorted_at_once_has_a_fixed_limit(name: str, limit: int) -> None:
    resolve({name: limit})
    with raises(ConfigError, name=name, value=limit + 1, limit=limit):
        resolve({name: limit + 1})


@given(st.integers(1, 1 << 20), st.integers(1, 100_000))
def test_all_subtasks_together_fit_into_a_manifest(below: int, subtasks: int) -> None:
    shared = StateSettings(inline_below_bytes=below).with_inline_limit(subtasks)
    assert shared.inline_below_bytes <= below and shared.inline_below_bytes * subtasks <= 16 << 20
    assert StateSettings(inline_below_bytes=below).with_inline_limit(1).inline_below_bytes == below


def test_a_file_that_cannot_be_read_is_named_with_the_reason(tmp_path: Path) -> None:
    file = tmp_path / "settings.toml"
    for content in (b"a = ", b"\xff"):
        file.write_bytes(content)
        with raises(ConfigError, path=str(file)) as refused:
            read_toml(file)
        assert refused.value.facts["reason"]
    with raises(ConfigError, path=str(tmp_path / "none.toml")):
        read_toml(tmp_path / "none.toml")
    with raises(ConfigError, path=str(tmp_path), reason=os.strerror(errno.EISDIR)):
        read_toml(tmp_path)


def _names(cls: Any, prefix: str = "") -> set[str]:
    found: set[str] = set()
    for field in dataclasses.fields(cls):
        if dataclasses.is_dataclass(field.default):
            found |= _names(type(field.default), f"{prefix}{field.name}.")
        else:
            found.add(f"{prefix}{field.name}" + (".NAME" if "Mapping" in str(field.type) else ""))
    return found


def test_the_documentation_lists_every_setting() -> None:
    assert set(re.findall(r"^\| `([\w.]+)` \|", DOCS.read_text(), re.M)) == _names(Settings)


def test_scratch_space_is_the_user_s_own() -> None:
    assert Settings(local_dir="/scratch").local_folder == Path("/scratch")
    assert Settings().local_folder.name.startswith("stateflow-")


@pytest.mark.parametrize(
    ("given", "end"),
    [
        ("input-ends", RunEnd()),
        ("INPUT_ENDS", RunEnd()),
        ("stopped", RunEnd(continuous=True)),
        ("90 min", RunEnd(continuous=True, after=timedelta(minutes=90))),
        (timedelta(hours=2), RunEnd(continuous=True, after=timedelta(hours=2))),
        ("18:00", RunEnd(continuous=True, at=time(18))),
        (time(18, 30), RunEnd(continuous=True, at=time(18, 30))),
        ("06:00 Europe/Berlin", RunEnd(continuous=True, at=time(6), zone=ZoneInfo("Europe/Berlin"))),
    ],
)
def test_a_run_ends_with_its_input_when_stopped_after_a_time_or_at_a_time_of_day(given: Any, end: RunEnd) -> None:
    assert resolve({"run.until": given}).run.end == end
    assert resolve({"run.until": given, "run.drain": True}).run.end == RunEnd()


@pytest.mark.parametrize(
    "given", ["", "forever", "0s", "-1h", "6:00", "24:00", "18:00 Nowhere/City", "18:00 ../x", "2h 3m"]
)
def test_another_end_of_a_run_is_refused_by_name_and_value(given: str) -> None:
    with raises(ConfigError, name="run.until", value=given):
        resolve({"run.until": given})


@pytest.mark.parametrize(
    ("given", "now", "found"),
    [
        ("18:00", "2026-03-01T17:59:59+00:00", "2026-03-01T18:00:00+00:00"),
        ("18:00", "2026-03-01T18:00:00+00:00", "2026-03-02T18:00:00+00:00"),
        ("01:00 Europe/Berlin", "2026-03-01T23:30:00+00:00", "2026-03-02T00:00:00+00:00"),
        # On the night of 29 March, clocks go from 2:00 to 3:00, so that this day has 23 hours.
        ("12:00 Europe/Berlin", "2026-03-28T11:00:00+00:00", "2026-03-29T10:00:00+00:00"),
        ("02:30 Europe/Berlin", "2026-03-29T00:30:00+00:00", "2026-03-29T01:30:00+00:00"),
    ],
)
def test_a_time_of_day_is_the_next_one_in_its_zone(given: str, now: str, found: str) -> None:
    end = resolve({"run.until": given}).run.end
    assert end.next_time(datetime.fromisoformat(now)) == datetime.fromisoformat(found)
