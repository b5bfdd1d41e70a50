"""A lineage server on loopback, and the schemas of OpenLineage that its events must have."""

from __future__ import annotations

import contextlib
import json
import threading
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

from jsonschema import Draft202012Validator, FormatChecker
from referencing import Registry, Resource

from tests.servers.listening import QuietHandler, listening

_SPECIFICATION = Path(__file__).parents[1] / "data" / "openlineage"
_OWN = Path(__file__).parents[2] / "stateflow" / "lineage" / "facets.schema.json"
_EVENT = "https://openlineage.io/spec/2-0-2/OpenLineage.json"

Document = dict[str, Any]


@dataclass
class LineageServer:
    """Keeps the events that it receives.

    Attributes:
        status: of each answer.
        released: answers wait until it is set.
    """

    address: str = ""
    events: list[Document] = field(default_factory=list)
    status: int = 201
    released: threading.Event = field(default_factory=threading.Event)

    def __post_init__(self) -> None:
        self.released.set()

    @property
    def variables(self) -> dict[str, str]:
        """The environment of a process whose events it receives."""
        return {"OPENLINEAGE_URL": self.address}

    def states(self) -> list[tuple[str, str]]:
        """Id of the run, and its state, of each event."""
        return [(event["run"]["runId"], event["eventType"]) for event in self.events]

    def take(self) -> list[Document]:
        """The events since the last call, each of which must be valid."""
        taken, self.events = self.events, []
        for event in taken:
            check_event(event)
        return taken


class _Handler(QuietHandler):
    server_of_events: LineageServer

    def do_POST(self) -> None:
        of = self.server_of_events
        event = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        of.released.wait()
        if of.status < 300:
            of.events.append(event)
        self.send_response(of.status)
        self.send_header("Content-Length", "0")
        self.end_headers()


@contextlib.contextmanager
def lineage_server() -> Iterator[LineageServer]:
    server = LineageServer()
    with listening(_Handler, server_of_events=server) as server.address:
        try:
            yield server
        finally:
            server.released.set()


def facets_of(event: Mapping[str, Any], name: str) -> Document:
    """A facet of the event's run; empty if it has none."""
    found: Document = event["run"].get("facets", {}).get(name, {})
    return found


def check_event(event: Mapping[str, Any]) -> None:
    """An event, and each of its facets, is valid by the schema that it names."""
    assert event["schemaURL"] == f"{_EVENT}#/$defs/RunEvent"
    _check(event, event["schemaURL"])
    datasets = [*event["inputs"], *event["outputs"]]
    groups = [event["run"]["facets"], event["job"]["facets"]]
    groups += [dataset.get(name, {}) for dataset in datasets for name in ("facets", "inputFacets", "outputFacets")]
    for facets in groups:
        for facet in facets.values():
            _check(facet, facet["_schemaURL"])


def _check(document: object, schema: str) -> None:
    validator = Draft202012Validator({"$ref": schema}, registry=_registry(), format_checker=FormatChecker())
    errors = [f"{'/'.join(map(str, e.path))}: {e.message}" for e in validator.iter_errors(document)]
    assert not errors, (schema, errors)


@cache
def _registry() -> Registry[Any]:
    files = [*_SPECIFICATION.rglob("*.json"), _OWN]
    return Registry().with_resources(
        (document["$id"], Resource.from_contents(document)) for document in (json.loads(f.read_text()) for f in files)
    )
