"""The guides about changing and querying state: code runs, commands are typed, output is compared."""

from __future__ import annotations

import builtins
import contextlib
import datetime
import decimal
import enum
import io
import json
import re
import shlex
import ssl
import textwrap
import typing
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import msgspec
import numpy as np
import pyarrow as pa
import pytest

from stateflow import Compatibility, QueryableStateClient, Serializer, ValueStateDescriptor
from stateflow.runtime.task import store_cache
from stateflow.testing.sinks import FolderSink
from stateflow.types.declared_types import SUPPORTED
from stateflow.types.serializers import value_serializer
from tests.docs.pages import blocks, load_module, read
from tests.servers.listening import certificate
from tests.serving.shops_job import serving
from tests.support import local_flights, root_files
from tests.support.cli_fixture import JOB, CliFixture, invoke
from tests.support.job_fixture import Row

GUIDE = read("change-state")
FIRST, SECOND, SERIALIZER = blocks(GUIDE, "python")
ACCEPTED, REFUSED = blocks(GUIDE, "text")
HEAD = f"""{JOB}
class Out(msgspec.Struct):
    key: str
    count: int


"""
BUILD = """

def build(env):
    counts = env.from_source(source(), uid="rows").key_by("key").process(Count(), output=Out, uid="count")
    counts.sink_to(sink(), uid="counts")
"""


@pytest.fixture
def cli(tmp_path: Path) -> Iterator[CliFixture]:
    cli = CliFixture(tmp_path)
    cli.write(BUILD, HEAD + FIRST)
    cli.run()
    yield cli
    store_cache.close_all()


def _check(cli: CliFixture) -> tuple[int, str]:
    settings = cli.folder / "job.toml"
    settings.write_text(f'local_dir = "{cli.folder}/scratch"\nmax_parallelism = 128\n')
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
    cli.write(BUILD, HEAD.replace("range(12)", "range(24)") + SECOND)
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


# -- query state: the client and the request of the guide get the right values ----------------------------------------


QUERIES = read("query-state")
NAMED, STREAM, TLS, CLIENT = blocks(QUERIES, "python")
_, _, REQUEST = blocks(QUERIES, "console")
(ANSWER,) = blocks(QUERIES, "text")
_OPEN = '        self.stats = ctx.get_state(ValueStateDescriptor("stats", Stats))\n'


class Flights:
    def __init__(self, folder: Path) -> None:
        self.root = str(folder / "root")
        text = local_flights.job_text()
        before, found, after = text.rpartition("    def open(self, ctx: RuntimeContext) -> None:\n" + _OPEN)
        assert found
        job = folder / "flights.py"
        job.write_text(before + textwrap.indent(NAMED, "    ") + after + textwrap.indent(STREAM, "    "))
        self.module = load_module(folder / "queried_flights.py", job.read_text())
        files = local_flights.stage(folder / "data")
        self.rows = [row for file in files for row in local_flights.rows_of(file)]
        settings = folder / "flights.toml"
        settings.write_text(
            f'local_dir = "{folder}/local"\n[job]\nflights = "{folder}/data"\ntables = "{folder}/tables"\n'
        )
        done = invoke("run", str(job), "--job-root", self.root, "--config", str(settings))
        assert done.exit_code == 0, done.output

    def stats(self, carrier: str, origin: str) -> dict[str, Any]:
        flights = [row for row in self.rows if (row["carrier"], row["origin"]) == (carrier, origin)]
        delays = [row["arr_delay"] for row in flights if row["arr_delay"] is not None]
        return {"flights": len(flights), "measured": len(delays), "maximum": max(delays)}

    def newest(self, carrier: str, flight: int) -> Row:
        return max(
            (row for row in self.rows if (row["carrier"], row["flight"]) == (carrier, flight)), key=lambda r: r["time"]
        )


@pytest.fixture(scope="module")
def flights(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Flights]:
    yield Flights(tmp_path_factory.mktemp("flights"))


@pytest.mark.slow(reason="runs the job of the guide and a state server")
def test_the_client_and_the_request_of_the_guide_get_what_the_job_has_computed(flights: Flights) -> None:
    token = "of-the-guide"
    with serving(flights.root, token) as server:
        client = CLIENT.replace("s3://bucket/jobs/flights", flights.root)
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            exec(client, {"token": token, "Stats": flights.module.Stats})
        lines = printed.getvalue().splitlines()
        wanted = flights.stats("UA", "EWR")
        shown = re.fullmatch(r"Stats\(flights=(\d+), measured=(\d+), .*maximum=([\d.]+), .*\) \d+", lines[0])
        assert shown is not None, lines[0]
        assert [float(number) for number in shown.groups()] == list(map(float, wanted.values()))
        assert [line.partition(" ")[0] for line in lines[1:3]] == ["True", "True"]
        groups = {(row["carrier"], row["origin"]) for row in flights.rows}
        assert sorted(lines[3:]) == sorted(map(str, groups))

        words = shlex.split(REQUEST)
        body = words[words.index("-d") + 1]
        headers = {"authorization": f"Bearer {token}"}
        answer = httpx.post(f"{server.url}/v1/get", content=body, headers=headers).json()
        (value,) = answer["values"]
        assert {name: value["value"][name] for name in wanted} == wanted
        example = json.loads(ANSWER)
        assert (example.keys(), example["values"][0]["value"].keys()) == (answer.keys(), value["value"].keys())

        row = flights.rows[-1]
        asked = {"state": "newest-flight", "keys": [[row["carrier"], row["flight"]]]}
        (found,) = httpx.post(f"{server.url}/v1/get", json=asked, headers=headers).json()["values"]
        newest = flights.newest(row["carrier"], row["flight"])
        assert (found["value"]["dest"], found["value"]["arr_delay"]) == (newest["dest"], newest["arr_delay"])


def test_the_client_for_a_proxy_of_the_guide_loads_its_certificates(tmp_path: Path) -> None:
    made = certificate(tmp_path)
    files = {"servers.pem": made.ca_file, "client.pem": made.ca_file, "client.key": made.key_file}
    code = TLS.replace("s3://bucket/jobs/flights", str(tmp_path))
    for name, file in files.items():
        assert f"/etc/state/{name}" in code
        code = code.replace(f"/etc/state/{name}", str(file))
    found: dict[str, Any] = {"ssl": ssl, "QueryableStateClient": QueryableStateClient}
    exec(code, found)
    found["client"].close()
