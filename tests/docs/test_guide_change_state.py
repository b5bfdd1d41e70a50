"""The guide about changing state: its code runs, its command is typed, and what it shows is what is printed."""

from __future__ import annotations

import builtins
import datetime
import decimal
import enum
import re
import typing
import uuid
from collections.abc import Iterator
from pathlib import Path

import msgspec
import numpy as np
import pyarrow as pa
import pytest

from stateflow import Compatibility, Serializer, ValueStateDescriptor
from stateflow.runtime.task import store_cache
from stateflow.testing.sinks import FolderSink
from stateflow.types.arrow_types import SUPPORTED
from stateflow.types.serializers import value_serializer
from tests.support import root_files
from tests.support.cli_fixture import CliFixture
from tests.support.commands import invoke

GUIDE = Path(__file__).parents[2] / "docs" / "guides" / "change-state.md"
HEAD = """
from pathlib import Path

import msgspec

from stateflow import KeyedProcessFunction, ValueStateDescriptor
from stateflow.testing.sinks import FolderSink
from stateflow.testing.sources import ScriptedSource

HERE = Path(__file__).parent


class Row(msgspec.Struct):
    key: str
    number: int


class Out(msgspec.Struct):
    key: str
    count: int


"""
BUILD = """

def build(env):
    rows = [Row("abc"[n % 3], n) for n in range(int(env.parameter("rows")))]
    source = ScriptedSource(Row, rows, HERE.parent / "ledger.json", slice_rows=4)
    counts = env.from_source(source, uid="rows").key_by("key").process(Count(), output=Out, uid="count")
    counts.sink_to(FolderSink(HERE.parent / "table"), uid="counts")
"""


def _blocks(language: str) -> list[str]:
    text = GUIDE.read_text(encoding="utf-8")
    return re.findall(rf"^```{language}\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[CliFixture]:
    bench = CliFixture(tmp_path)
    bench.settings["job.rows"] = "12"
    yield bench
    store_cache.close_all()


def _check(bench: CliFixture) -> tuple[int, str]:
    """Types the guide's command."""
    settings = bench.folder / "job.toml"
    settings.write_text(f'local_dir = "{bench.folder}/scratch"\nmax_parallelism = 128\n[job]\nrows = "12"\n')
    (command,) = [line for block in _blocks("") for line in block.splitlines() if "stateflow check" in line]
    for name, value in (("JOB", bench.job), ("ROOT", bench.root), ("SETTINGS", settings)):
        command = command.replace(f'"${name}"', str(value))
    shown = invoke(*command.split()[1:])
    checkpoint = root_files.head(Path(bench.root)).checkpoint
    return shown.exit_code, re.sub(rf"\b{checkpoint}\b", "4", shown.output, count=1)


def test_the_example_migrates_as_the_guide_shows(bench: CliFixture) -> None:
    first, second, _ = _blocks("python")
    shown, _ = _blocks("text")
    bench.write(BUILD, HEAD + first)
    bench.run()
    bench.write(BUILD, HEAD + second)
    assert _check(bench) == (0, shown)
    bench.settings["job.rows"] = "24"
    bench.run()
    counts = sorted(row["count"] for row in FolderSink(bench.folder / "table").rows() if row["key"] == "a")
    assert counts == list(range(1, 9))


def test_what_is_refused_is_printed_as_the_guide_shows(bench: CliFixture) -> None:
    first, second, _ = _blocks("python")
    _, refused = _blocks("text")
    bench.write(BUILD, HEAD + first)
    bench.run()
    third = second.replace('rows: int = msgspec.field(name="count")', 'rows: str = msgspec.field(name="count")')
    assert third != second
    bench.write(BUILD, HEAD + third)
    assert _check(bench) == (20, refused)


def test_the_serializer_reads_both_of_its_versions() -> None:
    names = {"Serializer": Serializer, "Compatibility": Compatibility, "ValueStateDescriptor": ValueStateDescriptor}
    exec(_blocks("python")[2], names)
    codec = value_serializer(list, names["WORDS"].serializer)  # type: ignore[attr-defined]
    assert codec.decode(codec.encode(["a b", "c"])) == ["a b", "c"]
    assert codec.decode(b"\x01" + msgspec.msgpack.encode((1, b"a b"))) == ["a", "b"]


def test_the_guide_has_the_types_that_the_error_has() -> None:
    text = " ".join(GUIDE.read_text(encoding="utf-8").replace("`", "").split())
    # Of the words, those that name a type.
    homes = (builtins, datetime, decimal, enum, msgspec, np, pa, typing, uuid)
    types = [word for word in re.findall(r"\w+", SUPPORTED) if any(hasattr(home, word) for home in homes)]
    assert len(types) > 30
    assert [name for name in types if name.lower() not in text.lower()] == []
