"""The guide about late data: its tests pass, and its streams can be declared."""

from __future__ import annotations

from pathlib import Path
from types import ModuleType

import pytest

from stateflow import StreamExecutionEnvironment
from tests.docs.pages import blocks, load_module, read


@pytest.fixture(scope="module")
def guide(tmp_path_factory: pytest.TempPathFactory) -> ModuleType:
    text = "\n\n".join(blocks(read("late-data"), "python"))
    return load_module(tmp_path_factory.mktemp("guide") / "guide_late_data.py", text)


def test_the_tests_of_the_guide_pass(guide: ModuleType) -> None:
    tests = [value for name, value in vars(guide).items() if name.startswith("test_")]
    assert len(tests) == 5
    for test in tests:
        test()


def test_late_rows_are_written_to_a_table_of_their_own(guide: ModuleType, tmp_path: Path) -> None:
    env = StreamExecutionEnvironment()
    readings = env.from_collection([], guide.Reading, uid="readings")
    guide.write(guide.with_event_time(readings), str(tmp_path))
    assert [sink.uid for sink in env.graph.sinks] == ["hours-table", "late-table"]


def test_a_patient_source_has_an_idle_timeout(guide: ModuleType) -> None:
    env = StreamExecutionEnvironment()
    stream = guide.patient(env.from_collection([], guide.Reading, uid="readings"))
    assert stream._node.strategy.idleness == 3_600_000
