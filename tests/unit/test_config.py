"""Settings: layers, values, and the errors of wrong ones."""

from __future__ import annotations

import dataclasses
import errno
import os
import re
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stateflow.config.settings import CheckpointSettings, RunSettings, Settings
from stateflow.config.sources import parse_assignments, parse_duration, read_toml, resolve
from stateflow.config.state_settings import StateSettings
from stateflow.errors import ConfigError
from tests.support.errors import raises

DOCS = Path(__file__).resolve().parents[2] / "docs" / "settings.md"


# -- layers -------------------------------------------------------------------------------------------------------


def test_nothing_set_is_the_defaults() -> None:
    assert resolve() == resolve({}, {}) == Settings()


def test_code_is_weaker_than_a_file_and_a_file_than_the_command_line(tmp_path: Path) -> None:
    code = {"parallelism": 1, "checkpoints.retained": 1, "name": "code"}
    file = tmp_path / "settings.toml"
    file.write_text('parallelism = 3\nname = "file"\n[run]\nmax_batches = 3\n')
    found = resolve(code, read_toml(file), parse_assignments(("name=line", "run.max_duration=90s")))
    assert (found.checkpoints.retained, found.parallelism, found.name) == (1, 3, "line")
    assert found.run == RunSettings(max_batches=3, max_duration=timedelta(seconds=90))


def test_a_group_keeps_what_a_later_layer_does_not_name() -> None:
    found = resolve({"checkpoints.retained": 5}, {"checkpoints.collect_every": 2})
    assert found.checkpoints == CheckpointSettings(retained=5, collect_every=2)


def test_parameters_and_settings_of_spark_are_passed_on_as_texts() -> None:
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


# -- values -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "duration"),
    [
        ("500ms", timedelta(milliseconds=500)),
        ("90s", timedelta(seconds=90)),
        ("10m", timedelta(minutes=10)),
        ("2h", timedelta(hours=2)),
        ("1d", timedelta(days=1)),
        ("1.5h", timedelta(minutes=90)),
        (" 3 s ", timedelta(seconds=3)),
        ("10 min", timedelta(minutes=10)),
        ("1 Day", timedelta(days=1)),
        ("250 millis", timedelta(milliseconds=250)),
        ("2 hours", timedelta(hours=2)),
        (".5sec", timedelta(seconds=0.5)),
    ],
)
def test_a_duration_has_a_unit(text: str, duration: timedelta) -> None:
    assert parse_duration(text) == duration
    assert resolve({"run.max_duration": text}).run.max_duration == duration
    assert resolve({"run.max_duration": duration}).run.max_duration == duration


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("parallelism", "two"),
        ("parallelism", "2.0"),
        ("parallelism", 2.0),
        ("parallelism", True),
        ("parallelism", None),
        ("parallelism", "0"),
        ("run.max_batches", -1),
        ("checkpoints.retained", 0),
        ("checkpoints.collect_every", "0"),
        ("rocksdb.compact_at_files", ""),
        ("run.max_duration", "90"),
        ("run.max_duration", 90),
        ("run.max_duration", "s"),
        ("run.max_duration", "-1s"),
        ("run.max_duration", "0s"),
        ("run.max_duration", "infs"),
        ("run.max_duration", "nans"),
        ("run.max_duration", "1 min 5 s"),
        ("run.max_duration", "5 minits"),
        ("run.max_duration", "٣s"),
        ("checkpoints.min_pause", "-1s"),
        ("checkpoints.min_pause", "0"),
        ("run.max_duration", timedelta()),
        ("storage.shared", "maybe"),
        ("storage.shared", 2),
        ("run", 5),
        ("job", "x"),
        ("spark.conf", "x"),
    ],
)
def test_a_value_that_does_not_fit_is_refused_by_the_setting_s_name(name: str, value: Any) -> None:
    with raises(ConfigError) as refused:
        resolve({name: value})
    assert refused.value.facts == {"name": name, "value": value}
    assert refused.value.hint


@pytest.mark.parametrize(
    "name",
    [
        "paralelism",
        "run.batches",
        "run",
        "run.",
        "",
        ".",
        "run.max_batches.x",
        "parallelism.x",
        "checkpoints..retained",
        "Parallelism",
        "spark.x",
    ],
)
def test_an_unknown_setting_is_refused_by_name(name: str) -> None:
    with raises(ConfigError, name=name):
        resolve({name: "1"})


def test_an_unknown_setting_lists_what_there_is() -> None:
    with raises(ConfigError) as refused:
        resolve({"run.batches": 1})
    assert {f.name for f in dataclasses.fields(RunSettings)} <= set(re.findall(r"\w+", refused.value.hint))


@pytest.mark.parametrize("name", ["checkpoints.min_pause", "restart.fixed_delay.delay", "restart.failure_rate.delay"])
def test_a_pause_may_be_zero(name: str) -> None:
    group, _, field = name.rpartition(".")
    found: Any = resolve({name: "0s"})
    for part in group.split("."):
        found = getattr(found, part)
    assert getattr(found, field) == timedelta()


@pytest.mark.parametrize(
    ("name", "given", "found"),
    [
        ("checkpoints.mode", "EXACTLY_ONCE", "exactly-once"),
        ("checkpoints.mode", "At_Least-Once", "at-least-once"),
        ("restart.strategy", "FAILURE_RATE", "failure-rate"),
        ("state.backend", "RocksDB", "rocksdb"),
        ("rocksdb.compaction", "LEVELED", "leveled"),
    ],
)
def test_a_word_may_be_written_as_flink_s_constants_are(name: str, given: str, found: str) -> None:
    group, _, field = name.partition(".")
    assert getattr(getattr(resolve({name: given}), group), field) == found


@pytest.mark.parametrize("settings", [{"parallelism": 200, "max_parallelism": 100}, {"max_parallelism": 1}])
def test_parallelism_is_at_most_max_parallelism(settings: dict[str, int]) -> None:
    wanted = settings.get("parallelism", Settings().parallelism)
    with raises(ConfigError, value=wanted, max_parallelism=settings["max_parallelism"]):
        resolve(settings)


@pytest.mark.parametrize("value", ["true", "yes", "1", "TRUE", True, 1])
def test_yes(value: Any) -> None:
    assert resolve({"storage.shared": value}).storage.shared is True


@pytest.mark.parametrize("value", ["false", "no", "0", False, 0])
def test_no(value: Any) -> None:
    assert resolve({"storage.shared": value}).storage.shared is False


@given(
    st.dictionaries(st.text(max_size=20), st.text(max_size=5) | st.integers() | st.floats() | st.booleans(), max_size=3)
)
def test_whatever_is_set_is_taken_or_refused_as_a_setting(layer: dict[str, Any]) -> None:
    try:
        resolve(layer)
    except ConfigError as e:
        assert e.facts


# -- state backends -----------------------------------------------------------------------------------------------


def test_a_backend_is_chosen_by_the_names_that_flink_has() -> None:
    assert resolve().state == StateSettings(backend="rocksdb", incremental=True)
    found = resolve({"state.backend": "rocksdb", "state.backend.incremental": "false"}).state
    assert found == StateSettings(incremental=False)
    assert resolve({"state.incremental": False}).state == found


def test_a_later_layer_wins_whichever_name_it_uses() -> None:
    names = ("state.incremental", "state.backend.incremental")
    for first, second in (names, names[::-1]):
        assert resolve({first: False}, {second: True}).state.incremental is True


def test_a_toml_file_may_have_backend_as_a_value_and_its_part(tmp_path: Path) -> None:
    file = tmp_path / "settings.toml"
    file.write_text('[state]\nbackend = "rocksdb"\n"backend.incremental" = false\n')
    assert resolve(read_toml(file)).state == StateSettings(incremental=False)
    file.write_text('[state]\nbackend = "memory"\nmemory_limit_bytes = 7\n')
    assert resolve(read_toml(file)).state == StateSettings(backend="memory", memory_limit_bytes=7)


def test_a_backend_that_there_is_not_is_refused_with_those_there_are() -> None:
    with raises(ConfigError, name="state.backend", value="hashmap") as refused:
        resolve({"state.backend": "hashmap"})
    assert {"rocksdb", "filesystem", "memory"} <= set(re.findall(r"\w+", refused.value.hint))


@pytest.mark.parametrize(
    ("name", "limit"),
    [
        ("state.inline_below_bytes", 1 << 20),
        ("state.memory_limit_bytes", 24 << 20),
        ("shuffle.sort_memory_bytes", 1 << 31),
    ],
)
def test_what_is_one_piece_has_a_limit_that_no_setting_lifts(name: str, limit: int) -> None:
    resolve({name: limit})
    with raises(ConfigError, name=name, value=limit + 1, limit=limit):
        resolve({name: limit + 1})


@given(st.integers(1, 1 << 20), st.integers(1, 100_000))
def test_all_subtasks_together_put_no_more_into_a_manifest_than_it_holds(below: int, subtasks: int) -> None:
    shared = StateSettings(inline_below_bytes=below).shared_by(subtasks)
    assert shared.inline_below_bytes <= below and shared.inline_below_bytes * subtasks <= 16 << 20
    assert StateSettings(inline_below_bytes=below).shared_by(1).inline_below_bytes == below


# -- files --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("content", [b"a = ", b"\xff"])
def test_a_file_that_is_no_toml_is_named(tmp_path: Path, content: bytes) -> None:
    file = tmp_path / "settings.toml"
    file.write_bytes(content)
    with raises(ConfigError, path=str(file)) as refused:
        read_toml(file)
    assert refused.value.facts["reason"]


def test_a_file_that_is_not_there_or_is_a_folder_is_named(tmp_path: Path) -> None:
    with raises(ConfigError, path=str(tmp_path / "none.toml")):
        read_toml(tmp_path / "none.toml")
    with raises(ConfigError, path=str(tmp_path), reason=os.strerror(errno.EISDIR)):
        read_toml(tmp_path)


# -- what people read ---------------------------------------------------------------------------------------------


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


def test_settings_cannot_be_changed() -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        Settings().parallelism = 3  # type: ignore[misc]


def test_scratch_space_is_this_user_s_own() -> None:
    assert Settings(local_dir="/scratch").local_folder == Path("/scratch")
    assert Settings().local_folder.name.startswith("stateflow-")
