"""Asks a schema registry, over the REST interface of Confluent's, for the schemas of records.

The registry may be hostile, or not the server that the user meant: an answer is read up to a limit, must arrive at a
minimum speed, redirections are not followed, and errors contain no text of an answer.
"""

from __future__ import annotations

import base64
import os
from dataclasses import dataclass, field
from functools import lru_cache
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar
from urllib.parse import quote, urlsplit

import msgspec

from stateflow.clock import SystemClock
from stateflow.connectors.kafka.avro.avro_schema import LONGEST_SCHEMA, AvroSchema, UnusableSchema
from stateflow.errors import ConfigError, EnvironmentUnsupported, JobDefinitionError, StorageError
from stateflow.types.bounded_json import decode_json

if TYPE_CHECKING:
    import requests

_TIMEOUT = (5, 30)
"""Longest wait for a connection and for the next bytes, in seconds."""
_RETRIES = 3
_LONGEST_ANSWER = 4 * LONGEST_SCHEMA
_CACHED_SCHEMAS = 256
_MOST_REFERENCES = 64
_NOT_FOUND = {40401: "subject", 40402: "version", 40403: "schema"}
"""Error codes of the interface for what does not exist."""

T = TypeVar("T")


@dataclass(frozen=True)
class SchemaRegistry:
    """A schema registry with Confluent's REST interface. No `repr`, log, plan or stored file contains a secret of it.

    Read secrets from the environment, as in ``password=os.environ["REGISTRY_PASSWORD"]``.

    Args:
        url: address, such as ``https://registry:8081``.
        username: for basic authentication.
        password: for basic authentication.
        token: bearer token, instead of username and password.
        ca_file: PEM file with the certificates of trusted authorities, at the same path on the driver and on all
            executors; by default those of the package certifi.
        key_file: PEM file with the client's certificate and its unencrypted private key, for mutual TLS; at the same
            path everywhere.

    Raises:
        EnvironmentUnsupported: packages for Avro are not installed.
        JobDefinitionError: the address is not one of HTTP, has a login in it, or a file does not exist.
    """

    url: str
    username: str = field(default="", repr=False)
    password: str = field(default="", repr=False)
    token: str = field(default="", repr=False)
    ca_file: str | Path = field(default="", repr=False)
    key_file: str | Path = field(default="", repr=False)

    def __post_init__(self) -> None:
        check_installed()
        parts = urlsplit(self.url)
        if parts.scheme not in ("http", "https") or not parts.hostname or "@" in parts.netloc or parts.query:
            raise JobDefinitionError(
                "the address of a schema registry is not supported",
                hint="give a URL such as https://registry:8081; a login has arguments of its own",
                scheme=parts.scheme,
                host=parts.hostname,
            )
        if bool(self.username) != bool(self.password) or (self.token and self.username):
            raise JobDefinitionError(
                "the login of a schema registry is not complete, or there are two",
                hint="give username and password, or token",
                registry=self.url,
            )
        for name, path in (("ca_file", self.ca_file), ("key_file", self.key_file)):
            if path and not os.path.isfile(path):
                raise JobDefinitionError(
                    "a file for a schema registry does not exist",
                    hint="give a PEM file that exists on the driver and on all executors",
                    argument=name,
                    path=str(path),
                )

    def schema(self, number: int) -> AvroSchema:
        """Returns the schema with an id. Schemas never change: each process asks for a schema once.

        Raises:
            UnusableSchema: the registry has no such schema, or it is not one of Avro, or not supported.
            StorageError: the registry did not answer.
            ConfigError: it refused the login, or is not a schema registry.
        """
        return _fetched(self, number)


def check_installed() -> None:
    """Raises EnvironmentUnsupported if a package is missing that values in Avro need."""
    for package in ("fastavro", "requests"):
        if find_spec(package) is None:
            raise EnvironmentUnsupported(
                "values in Avro cannot be decoded without a package",
                hint="install it on the driver and on all executors: pip install 'stateflow[avro]'",
                package=package,
            )


class _Reference(msgspec.Struct):
    name: str
    subject: str
    version: int


class _Registered(msgspec.Struct):
    schema: str
    schemaType: str = "AVRO"
    references: list[_Reference] = []


class _Refusal(msgspec.Struct):
    error_code: int = 0


@lru_cache(maxsize=_CACHED_SCHEMAS)
def _fetched(registry: SchemaRegistry, number: int) -> AvroSchema:
    with _session(registry) as session:
        client = _Client(registry.url.rstrip("/"), session)
        found = client.answer(f"/schemas/ids/{number}", _Registered)
        references: dict[str, str] = {}
        _add_references(client, found, references)
    return AvroSchema.of(found.schema, references)


def _add_references(client: _Client, schema: _Registered, found: dict[str, str], depth: int = 0) -> None:
    """Adds the schemas that a schema refers to, each one after those that it refers to itself."""
    if schema.schemaType != "AVRO":
        raise UnusableSchema("the schema is not one of Avro")
    for reference in schema.references:
        if reference.name in found:
            continue
        if len(found) >= _MOST_REFERENCES or depth >= _MOST_REFERENCES:
            raise UnusableSchema(f"the schema refers to more than {_MOST_REFERENCES} other schemas")
        path = f"/subjects/{quote(reference.subject, safe='')}/versions/{reference.version}"
        other = client.answer(path, _Registered)
        _add_references(client, other, found, depth + 1)
        found[reference.name] = other.schema


def _session(registry: SchemaRegistry) -> requests.Session:
    """Returns a session that sends the login to the registry, and follows no redirection."""
    from stateflow.http.connections import BoundedRetry, BoundedSession

    retries = BoundedRetry(
        total=_RETRIES, backoff_factor=0.2, status_forcelist=(429, 500, 502, 503, 504), raise_on_status=False
    )
    session = BoundedSession(retries, 1)
    session.headers["Accept"] = "application/vnd.schemaregistry.v1+json, application/json"
    # A compressed answer could be much larger than what was received.
    session.headers["Accept-Encoding"] = "identity"
    if registry.token:
        session.headers["Authorization"] = f"Bearer {registry.token}"
    elif registry.username:
        login = base64.b64encode(f"{registry.username}:{registry.password}".encode()).decode()
        session.headers["Authorization"] = f"Basic {login}"
    if registry.ca_file:
        session.verify = str(registry.ca_file)
    if registry.key_file:
        session.cert = str(registry.key_file)
    return session


class _Client:
    """Asks one registry.

    Args:
        url: its address, without a slash at the end.
    """

    def __init__(self, url: str, session: requests.Session) -> None:
        self._url = url
        self._session = session

    def answer(self, path: str, kind: type[T]) -> T:
        """Returns the document at a path; errors as those of `SchemaRegistry.schema`."""
        status, body = self._received(path)
        if status == 200:
            try:
                return decode_json(kind, body)
            except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
                raise self._not_a_registry(status) from None
        if status in (401, 403):
            raise ConfigError(
                "the schema registry refused the login",
                hint="check username and password, or token, of SchemaRegistry, and its permissions",
                registry=self._url,
                status=status,
            )
        if status == 429 or status >= 500:
            raise self._no_answer(f"HTTP status {status}")
        if what := _NOT_FOUND.get(_error_code(body)):
            raise UnusableSchema(f"the schema registry has no {what} {path[:200]}")
        raise self._not_a_registry(status)

    def _received(self, path: str) -> tuple[int, bytes]:
        import requests
        from urllib3.exceptions import HTTPError

        from stateflow.http.answers import BadAnswer, content

        try:
            # requests would prefer a bundle that the environment names to the session's, unless it is given here.
            bundle = self._session.verify
            with self._session.get(
                f"{self._url}{path}", timeout=_TIMEOUT, allow_redirects=False, stream=True, verify=bundle
            ) as response:
                return response.status_code, content(response, SystemClock(), _LONGEST_ANSWER)
        except (requests.RequestException, HTTPError, BadAnswer, OSError) as e:
            raise self._no_answer(type(e).__name__) from None

    def _no_answer(self, reason: str) -> StorageError:
        return StorageError(
            "the schema registry did not answer",
            hint="check its address, the network and TLS; a new run continues from the last checkpoint",
            registry=self._url,
            reason=reason,
        )

    def _not_a_registry(self, status: int) -> ConfigError:
        return ConfigError(
            "the server is not a schema registry",
            hint="check the address of SchemaRegistry; it needs the REST interface of Confluent's",
            registry=self._url,
            status=status,
        )


def _error_code(body: bytes) -> int:
    try:
        return decode_json(_Refusal, body).error_code
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return 0
