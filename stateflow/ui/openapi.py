"""The OpenAPI document of the pages, which follows from their endpoints and the classes of the answers."""

from __future__ import annotations

import inspect
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from stateflow.outputs import ErrorReport, Schema, json_schema, output_classes

API = "api/v1"
"""The path of all endpoints, relative to the application."""
CSV = "text/csv"


@dataclass(frozen=True)
class ApiError:
    """The answer to a request that failed.

    Attributes:
        error: the error.
    """

    error: ErrorReport


@dataclass(frozen=True)
class Parameter:
    """A parameter of a query.

    Attributes:
        name: its name.
        schema: JSON Schema of its value.
        meaning: a sentence without a period.
    """

    name: str
    schema: Mapping[str, object]
    meaning: str


@dataclass(frozen=True)
class Endpoint:
    """A path that answers GET requests.

    Attributes:
        path: relative to `API`, with names of parameters in braces.
        summary: a sentence without a period.
        output: class of the answer; `CSV` for a table.
        parameters: of the query.
    """

    path: str
    summary: str
    output: type | str
    parameters: Sequence[Parameter] = ()

    @property
    def name(self) -> str:
        """Its name as an operation: ``jobs-points``, and ``jobs-one`` for one of the jobs."""
        parts = self.path.replace(".", "-").split("/")
        named = [part for part in parts if "{" not in part]
        return "-".join([*named, *(["one"] if "{" in parts[-1] else [])])


def to_document(endpoints: Iterable[Endpoint]) -> str:
    """Returns the OpenAPI document of endpoints, as text."""
    endpoints = list(endpoints)
    outputs = [each.output for each in endpoints if isinstance(each.output, type)]
    classes = {found.__name__: found for output in (*outputs, ApiError) for found in output_classes(output)}
    document = {
        "openapi": "3.1.0",
        "info": {
            "title": "Pages of stateflow",
            "version": "1",
            "description": "Jobs, their checkpoints, savepoints and history, read-only. Each answer has an ETag: a "
            "request with If-None-Match is answered with 304 if nothing has changed.",
        },
        "servers": [{"url": "."}],
        "security": [{}, {"token": []}],
        "paths": {f"/{each.path}": {"get": _operation(each)} for each in endpoints},
        "components": {
            "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}},
            "responses": {"error": _content("The request failed.", ApiError)},
            "schemas": {name: _schema_of(classes[name]) for name in sorted(classes)},
        },
    }
    return json.dumps(document, indent=2) + "\n"


def _operation(endpoint: Endpoint) -> Schema:
    in_path = [part[1:-1] for part in endpoint.path.split("/") if part.startswith("{")]
    parameters: list[Schema] = [
        {"name": name, "in": "path", "required": True, "schema": _path_schema(name)} for name in in_path
    ]
    parameters += [
        {"name": each.name, "in": "query", "schema": dict(each.schema), "description": each.meaning}
        for each in endpoint.parameters
    ]
    return {
        "operationId": endpoint.name,
        "summary": endpoint.summary,
        "parameters": parameters,
        "responses": {
            "200": _content(endpoint.summary, endpoint.output),
            "304": {"description": "Nothing has changed since the answer with this ETag."},
            "default": {"$ref": "#/components/responses/error"},
        },
    }


def _path_schema(name: str) -> Schema:
    is_number = name in ("checkpoint_id", "generation")
    return {"type": "integer", "minimum": 1} if is_number else {"type": "string"}


def _content(description: str, output: type | str) -> Schema:
    if isinstance(output, str):
        return {"description": description, "content": {output: {"schema": {"type": "string"}}}}
    schema = {"$ref": f"#/components/schemas/{output.__name__}"}
    return {"description": description, "content": {"application/json": {"schema": schema}}}


def _schema_of(kind: type) -> object:
    definitions = json_schema(kind)["$defs"]
    assert isinstance(definitions, dict)
    text = (inspect.getdoc(kind) or "").split("\n\n")[0]
    return {**_moved(definitions[kind.__name__]), "description": " ".join(text.split()).replace("``", "`")}


def _moved(schema: dict[str, object]) -> dict[str, object]:
    """Returns a schema with references to the components of the document."""
    found: dict[str, object] = json.loads(json.dumps(schema).replace('"#/$defs/', '"#/components/schemas/'))
    return found
