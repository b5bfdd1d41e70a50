"""The guide about changing state: its code runs, its command is typed, and its output is what is printed."""

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
from stateflow.types.declared_types import SUPPORTED
from stateflow.types.serializers import value_serializer
from tests.docs.pages import blocks, read
from tests.support import root_files
from tests.support.cli_fixture import CliFixture, invoke

GUIDE = read("change-state")
FIRST, SECOND, SERIALIZER = blocks(GUIDE, "python")
ACCEPTED, REFUSED = blocks(GUIDE, "text")
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


@pytest.fixture
def cli(tmp_path: Path) -> Iterator[CliFixture]:
    cli = CliFixture(tmp_path)
    cli.settings["job.rows"] = "12"
    cli.write(BUILD, HEAD + FIRST)
    cli.run()
    yield cli
    store_cache.close_all()


def _check(cli: CliFixture) -> tuple[int, str]:
    settings = cli.folder / "job.toml"
    settings.write_text(f'local_dir = "{cli.folder}/scratch"\nmax_parallelism = 128\n[job]\nrows = "12"\n')
    (command,) = [line for block in blocks(GUIDE) for line in block.splitlines() if "stateflow check" in line]
    for name, value in (("JOB", cli.job), ("ROOT", cli.root), ("SETTINGS", settings)):
        command = command.replace(f'"${name}"', str(value))
    shown = invoke(*command.split()[1:])
    checkpoint = root_files.head(Path(cli.root)).checkpoint
    # The hashes are those of the job of this test.
    output = re.sub(r"code \([0-9a-f]{12}\)(.*)\([0-9a-f]{12}\)", r"code (9a0247e03a64)\1(62ea5b2d844b)", shown.output)
    return shown.exit_code, re.sub(rf"\b{checkpoint}\b", "4", output, count=1)


@pytest.mark.slow(reason="runs the job of the guide twice")
def test_the_example_migrates_as_the_guide_shows(cli: CliFixture) -> None:
    cli.write(BUILD, HEAD + SECOND)
    assert _check(cli) == (0, ACCEPTED)
    cli.settings["job.rows"] = "24"
    cli.run()
    counts = sorted(row["count"] for row in FolderSink(cli.folder / "table").rows() if row["key"] == "a")
    assert counts == list(range(1, 9))


@pytest.mark.slow(reason="runs the job of the guide")
def test_a_change_that_is_refused_is_printed_as_the_guide_shows(cli: CliFixture) -> None:
    third = SECOND.replace('rows: int = msgspec.field(name="count")', 'rows: str = msgspec.field(name="count")')
    assert third != SECOND
    cli.write(BUILD, HEAD + third)
    assert _check(cli) == (20, REFUSED)


def test_the_serializer_reads_both_of_its_versions() -> None:
    names: dict[str, typing.Any] = {each.__name__: each for each in (Serializer, Compatibility, ValueStateDescriptor)}
    exec(SERIALIZER, names)
    codec = value_serializer(list, names["WORDS"].serializer)
    assert codec.decode(codec.encode(["a b", "c"])) == ["a b", "c"]
    assert codec.decode(b"\x01" + msgspec.msgpack.encode((1, b"a b"))) == ["a", "b"]


def test_the_guide_has_the_types_of_the_error() -> None:
    text = " ".join(GUIDE.replace("`", "").split()).lower()
    # Of the words of the error, those that name a type.
    homes = (builtins, datetime, decimal, enum, msgspec, np, pa, typing, uuid)
    types = [word for word in re.findall(r"\w+", SUPPORTED) if any(hasattr(home, word) for home in homes)]
    assert len(types) > 30
    assert [name for name in types if name.lower() not in text] == []
