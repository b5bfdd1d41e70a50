"""The guide about queries: its code makes the flights queryable, and its client and HTTP request get what is right."""

from __future__ import annotations

import contextlib
import io
import json
import re
import shlex
import ssl
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from stateflow import QueryableStateClient
from tests.docs.pages import blocks, load_module, read
from tests.servers.listening import certificate
from tests.serving.shops_job import serving
from tests.support import local_flights
from tests.support.cli_fixture import invoke
from tests.support.job_fixture import Row

GUIDE = read("query-state")
NAMED, STREAM, TLS, CLIENT = blocks(GUIDE, "python")
_, _, REQUEST = blocks(GUIDE, "console")
(ANSWER,) = blocks(GUIDE, "text")
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
