"""Values in Avro, plain or in the wire format of Confluent, their schemas, and the schema registry."""

from __future__ import annotations

import base64
import datetime
import enum
import io
import os
import struct
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Context, Decimal, Inexact, InvalidOperation, Overflow
from functools import cached_property, lru_cache, partial
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import quote, urlsplit

import msgspec
import pyarrow as pa

from stateflow.api.schema import Column
from stateflow.clock import SystemClock
from stateflow.connectors.kafka.formats import ValueFormat, decode_in_tasks
from stateflow.errors import ConfigError, EnvironmentUnsupported, JobDefinitionError, StorageError
from stateflow.types.columns.conversion import with_nullable_parts
from stateflow.types.columns.shapes import Entries, Items, Leaf, Record, Shape
from stateflow.types.declared_types import BY_NAME
from stateflow.types.decoders import decode_json

if TYPE_CHECKING:
    import requests
    from pyspark.sql import DataFrame


Node = Any
"""A type in a parsed schema: a name, a list of types, or a dict with the definition."""
Decoded = Any
"""A value as fastavro decodes it."""
LONGEST_SCHEMA = 1 << 20
"""Characters of the text of a schema."""
_DEEPEST, _DEEPEST_JSON = 32, 128
_MOST_PARTS = 10_000
DECIMAL = "stateflow-decimal"
"""The logical type that decimals have after a schema was parsed. fastavro's own reader rounds to the schema's precision
without an error, and takes 20 seconds for 900 kB: converting digits between bases is quadratic."""
MAP = "stateflow-map"
"""The logical type that maps have after a schema was parsed: they are arrays of entries, as which Avro encodes them.
fastavro's own reader keeps the last one of two entries with one key."""
_ENTRY = "stateflow_entry"
_KEY, _VALUE = "key", "value"
_LONGEST_DECIMAL = 256
"""Bytes of a decimal; those that a column can have take 16, and 32 with the padding that some writers add."""


class UnusableSchema(ValueError):
    """A schema is not valid, not supported, or exceeds a limit; the text is the reason."""


class NotDecodable(ValueError):
    """A value cannot be decoded; the text is the reason."""


class DecodedMap(list[dict[str, Decoded]]):
    """The entries of a map, in their order."""

    def pairs(self) -> Iterator[tuple[str, Decoded]]:
        """Yields the keys and values."""
        return ((entry[_KEY], entry[_VALUE]) for entry in self)


def values_of_map(node: Node) -> Node:
    """Returns the type of the values of a map in a parsed schema; None for other types."""
    if not isinstance(node, dict) or node.get("logicalType") != MAP:
        return None
    return node["items"]["fields"][1]["type"]


@dataclass(frozen=True)
class AvroSchema:
    """A schema within the limits.

    Attributes:
        parsed: the schema as fastavro parses it.
        names: definitions of the named types in it, by full name.
    """

    parsed: Node
    names: Mapping[str, Node]

    @classmethod
    def of(cls, given: str | Mapping[str, object], references: Mapping[str, str] | None = None) -> AvroSchema:
        """Returns a schema that a user or a registry gives.

        Args:
            given: JSON, as text or decoded.
            references: texts of other schemas whose types it uses, by name, in the order of their use.

        Raises:
            UnusableSchema: see there.
        """
        from fastavro import parse_schema

        names: dict[str, Node] = {}
        try:
            for text in (references or {}).values():
                parse_schema(_document(text), named_schemas=names)
            parsed: Node = parse_schema(_document(given), named_schemas=names)
            _Limits(names).check(parsed, _Place())
        except UnusableSchema:
            raise
        except Exception as e:  # whatever its parser raises for a schema that is not valid
            raise UnusableSchema(f"the schema is not valid: {type(e).__name__}: {e}"[:500]) from e
        return cls(parsed, names)

    @property
    def fields(self) -> dict[str, Node]:
        """The types of the fields, by name. Raises UnusableSchema unless the schema is one of a record."""
        if not isinstance(self.parsed, dict) or self.parsed.get("type") != "record":
            raise UnusableSchema("the schema is not one of a record")
        return {field["name"]: field["type"] for field in self.parsed["fields"]}

    def resolved(self, node: Node) -> Node:
        """Returns the definition of a type that may be given by its name."""
        return _resolved(node, self.names)

    def decode(self, value: bytes, reader: AvroSchema | None = None) -> dict[str, Decoded]:
        """Returns the record in a value.

        Args:
            value: the bytes, all of which must belong to the record.
            reader: the schema that the record is converted to; by default it remains as it was written.

        Raises:
            NotDecodable: the value is not one of this schema, or cannot be converted.
        """
        from fastavro import schemaless_reader
        from fastavro.read import LOGICAL_READERS

        # As fastavro documents it for logical types of one's own; the readers of others stay.
        LOGICAL_READERS.update({f"{kind}-{DECIMAL}": _read_decimal for kind in ("bytes", "fixed")})
        LOGICAL_READERS[f"array-{MAP}"] = _read_map
        stream = io.BytesIO(value)
        try:
            record: Decoded = schemaless_reader(stream, self.parsed, reader.parsed if reader else None)
        except MemoryError:
            raise
        except Exception as e:  # whatever its decoder raises for bytes that are not of the schema
            raise NotDecodable(f"the value is not one of its Avro schema: {type(e).__name__}: {e}"[:500]) from e
        if stream.tell() != len(value):
            raise NotDecodable(f"the value has {len(value) - stream.tell()} bytes after its record")
        if not isinstance(record, dict):
            raise NotDecodable("the value is not a record")
        return record


def _read_decimal(data: bytes, writer_schema: Node, reader_schema: Node = None) -> Decimal:
    """Returns the number in the bytes of a decimal. Raises NotDecodable if they are too long."""
    if len(data) > _LONGEST_DECIMAL:
        raise NotDecodable(f"a decimal has {len(data)} bytes, more than {_LONGEST_DECIMAL}")
    unscaled = int.from_bytes(data, signed=True)
    # From text: a Decimal of a sum or product would be rounded to the context's digits.
    return Decimal(f"{unscaled}E{-int(writer_schema.get('scale', 0))}")


def _read_map(entries: list[dict[str, Decoded]], writer_schema: Node, reader_schema: Node = None) -> DecodedMap:
    return DecodedMap(entries)


def _as_entries(node: dict[str, Node]) -> None:
    """Makes a map of a parsed schema an array of its entries."""
    values = node.pop("values")
    fields = [{"name": _KEY, "type": "string"}, {"name": _VALUE, "type": values}]
    node.update(type="array", items={"type": "record", "name": _ENTRY, "fields": fields}, logicalType=MAP)


def _document(given: str | Mapping[str, object]) -> Node:
    """Returns a schema as decoded JSON. Raises UnusableSchema."""
    text = given if isinstance(given, str) else msgspec.json.encode(given).decode()
    if len(text) > LONGEST_SCHEMA:
        raise UnusableSchema(f"the schema has more than {LONGEST_SCHEMA} characters")
    try:
        document = decode_json(object, text.encode())
    except (msgspec.MsgspecError, UnicodeError, RecursionError) as e:
        raise UnusableSchema(f"the schema is not valid JSON: {e}"[:500]) from e
    level: list[Node] = [document]
    for _ in range(_DEEPEST_JSON):
        level = [part for each in level for part in _parts(each)]
        if not level:
            return document
    raise UnusableSchema("the schema is nested too deeply")


def _parts(document: object) -> Iterator[object]:
    if isinstance(document, dict):
        yield from document.values()
    elif isinstance(document, list):
        yield from document


def _resolved(node: Node, names: Mapping[str, Node]) -> Node:
    while True:
        if isinstance(node, str) and node in names:
            node = names[node]
        elif isinstance(node, dict) and not isinstance(node["type"], str):
            node = node["type"]
        else:
            return node


@dataclass(frozen=True)
class _Place:
    """Where a part of a schema is.

    Attributes:
        enclosing: names of the records around it.
        depth: number of types around it.
        repeated: whether a value may have it any number of times.
        counted: whether each occurrence takes a byte, whatever the part is: it is a branch of a union.
    """

    enclosing: frozenset[str] = frozenset()
    depth: int = 0
    repeated: bool = False
    counted: bool = False

    def inner(self, *, name: str = "", repeated: bool = False, counted: bool = False) -> _Place:
        enclosing = self.enclosing | {name} if name else self.enclosing
        return _Place(enclosing, self.depth + 1, self.repeated or repeated, counted)


@dataclass
class _Limits:
    """Checks the parts of one schema, with each named type at each place where it is used."""

    names: Mapping[str, Node]
    parts: int = field(default=0, init=False)

    def check(self, node: Node, place: _Place) -> None:
        """Raises UnusableSchema if a part exceeds a limit."""
        node = _resolved(node, self.names)
        self.parts += 1
        if place.depth > _DEEPEST or self.parts > _MOST_PARTS:
            raise UnusableSchema("the schema is nested too deeply, or has too many parts")
        if isinstance(node, list):
            if not node:
                raise UnusableSchema("the schema has a union without types")
            for branch in node:
                self.check(branch, place.inner(counted=True))
            return
        kind = node["type"] if isinstance(node, dict) else node
        if place.repeated and not place.counted and _takes_no_bytes(kind, node):
            raise UnusableSchema("the schema has an array or a map whose items have parts without bytes")
        if kind == "record":
            self._check_record(node, place)
        elif kind in ("array", "map"):
            values = values_of_map(node)
            if kind == "map":
                self.check(node["values"], place.inner(repeated=True))
                _as_entries(node)
            else:
                self.check(node["items"] if values is None else values, place.inner(repeated=True))
        elif isinstance(node, dict) and node.get("logicalType") == "decimal":
            node["logicalType"] = DECIMAL

    def _check_record(self, node: dict[str, Node], place: _Place) -> None:
        if node["name"] in place.enclosing:
            raise UnusableSchema(f"the schema is recursive: {node['name']}")
        for each in node["fields"]:
            if not isinstance(each["name"], str):
                raise UnusableSchema("the name of a field is not a text")
            self.check(each["type"], place.inner(name=node["name"]))


def _takes_no_bytes(kind: str, node: Node) -> bool:
    return kind == "null" or (kind == "fixed" and int(node["size"]) <= 0) or (kind == "record" and not node["fields"])


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
            executors; by default the package certifi's.
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
                "a schema registry needs exactly one complete login",
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
                "a package for Avro is not installed",
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
    from stateflow.http import BoundedRetry, BoundedSession

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
        """Returns the document at a path; raises as `SchemaRegistry.schema`."""
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

        from stateflow.http import BadAnswer, read_answer

        try:
            # requests would prefer a bundle that the environment names to the session's, unless it is given here.
            bundle = self._session.verify
            with self._session.get(
                f"{self._url}{path}", timeout=_TIMEOUT, allow_redirects=False, stream=True, verify=bundle
            ) as response:
                return response.status_code, read_answer(response, SystemClock(), _LONGEST_ANSWER)
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


_HEADER = struct.Struct(">BI")
"""Confluent's header of a value: a zero byte, and the id of its schema."""
_MOST_IDS = 10_000
"""Ids of schemas that a task remembers; a hostile producer can send any number of them."""


@dataclass(frozen=True)
class AvroFormat(ValueFormat):
    """Values that are records of Avro, with a field per column. Further fields are ignored; missing ones are null.

    Fields are matched by name, and types by Avro's rules: an int is also a float or a Decimal, a union with null is
    ``… | None``, and a named type is a class or an Enum. A union of several types is decoded as the one that the value
    has. Recursive schemas are not supported.

    Args:
        schema: without `registry`, the schema that all values were written with, as JSON. With `registry`, the schema
            that values are converted to by Avro's rules of schema resolution, with its defaults and aliases; by default
            each value has the fields that it was written with.
        registry: where the schemas of values in the wire format of Confluent are registered. Without it, a value has
            no header.

    Raises:
        EnvironmentUnsupported: packages for Avro are not installed.
        JobDefinitionError: there is neither a schema nor a registry, or the schema is not valid.
    """

    schema: str | Mapping[str, object] = ""
    registry: SchemaRegistry | None = None

    def __post_init__(self) -> None:
        check_installed()
        if not self.schema and self.registry is None:
            raise JobDefinitionError(
                "values in Avro need a schema or a schema registry",
                hint='pass AvroFormat(schema="…") for plain values, or AvroFormat(registry=SchemaRegistry("https://…"))',
            )
        try:
            self.declared()
        except UnusableSchema as e:
            raise JobDefinitionError(
                "a schema of Avro cannot be used", hint="correct the schema of AvroFormat", reason=str(e)
            ) from e

    def declared(self) -> AvroSchema | None:
        """Returns the parsed `schema`; None without one. Raises UnusableSchema."""
        if not self.schema:
            return None
        schema = AvroSchema.of(self.schema)
        _ = schema.fields
        return schema

    def check(self, columns: Sequence[Column]) -> None:
        declared = self.declared()
        found = list(misfits(declared, columns)) if declared else []
        if found:
            raise JobDefinitionError(
                "columns cannot be read from values of the Avro schema",
                hint="declare fields of the types in the schema, or … | None for a field that it does not have",
                problems=found[:10],
            )

    def decode(self, records: DataFrame, columns: Sequence[Column]) -> DataFrame:
        return decode_in_tasks(records, columns, partial(ValueDecoder, self, tuple(columns)))


class ValueDecoder:
    """Decodes the values of one task."""

    def __init__(self, value_format: AvroFormat, columns: Sequence[Column]) -> None:
        self._format = value_format
        self._columns = columns
        self._convert = record_converter(columns)
        self._registered: dict[int, AvroSchema | str] = {}

    @cached_property
    def _declared(self) -> AvroSchema | None:
        return self._format.declared()

    def columns_of(self, values: Sequence[bytes | None]) -> tuple[pa.Array, pa.Array]:
        """Returns the column of decoded values, and the column of reasons why others cannot be decoded.

        Raises:
            StorageError, ConfigError: as `SchemaRegistry.schema` does.
        """
        decoded: list[dict[str, Decoded] | None] = []
        errors: list[str | None] = []
        for value in values:
            record, error = self._decoded(value)
            decoded.append(record)
            errors.append(error)
        try:
            column = to_struct(self._columns, decoded)
        except (ValueError, TypeError, OverflowError):
            column = self._without_refused(decoded, errors)
        return column, pa.array(errors, pa.string())

    def _without_refused(self, decoded: list[dict[str, Decoded] | None], errors: list[str | None]) -> pa.Array:
        """Returns the column without the records that Arrow refuses, whose reasons are added to `errors`."""
        for at, record in enumerate(decoded):
            try:
                to_struct(self._columns, [record])
            except (ValueError, TypeError, OverflowError) as e:
                decoded[at], errors[at] = None, f"the value has no column: {e}"[:500]
        return to_struct(self._columns, decoded)

    def _decoded(self, value: bytes | None) -> tuple[dict[str, Decoded] | None, str | None]:
        if value is None:
            return None, None
        try:
            return self._convert(self._record(value)), None
        except NotDecodable as e:
            return None, str(e)

    def _record(self, value: bytes) -> dict[str, Decoded]:
        if self._format.registry is None:
            assert self._declared is not None
            return self._declared.decode(value)
        if len(value) < _HEADER.size or value[0] != 0:
            raise NotDecodable("the value does not begin with a zero byte and the id of its schema")
        _, number = _HEADER.unpack_from(value)
        schema = self._registered.get(number)
        if schema is None:
            schema = self._remember(number, self._format.registry)
        if isinstance(schema, str):
            raise NotDecodable(f"schema {number}: {schema}")
        return schema.decode(value[_HEADER.size :], self._declared)

    def _remember(self, number: int, registry: SchemaRegistry) -> AvroSchema | str:
        """Returns the schema with an id, or the reason for which values with this id cannot be decoded."""
        if len(self._registered) >= _MOST_IDS:
            self._registered.clear()
        try:
            found: AvroSchema | str = registry.schema(number)
        except UnusableSchema as e:
            found = str(e)
        self._registered[number] = found
        return found


Convert = Callable[[Decoded], Decoded]


_PRIMITIVES: Mapping[str, type] = {
    **{name: BY_NAME[name].python for name in ("boolean", "int", "float", "double", "string")},
    "long": int,
    "bytes": bytes,
    "fixed": bytes,
    "enum": str,
}
_LOGICAL: Mapping[str, type] = {
    "int-date": datetime.date,
    "int-time-millis": datetime.time,
    "long-time-micros": datetime.time,
    "long-timestamp-millis": datetime.datetime,
    "long-timestamp-micros": datetime.datetime,
    "long-local-timestamp-millis": datetime.datetime,
    "long-local-timestamp-micros": datetime.datetime,
    f"bytes-{DECIMAL}": Decimal,
    f"fixed-{DECIMAL}": Decimal,
    "string-uuid": uuid.UUID,
}
"""Python types of values as fastavro decodes them."""


# -- whether a schema fits ---------------------------------------------------------------------------------------------


def misfits(schema: AvroSchema, columns: Sequence[Column]) -> Iterator[str]:
    """Yields why columns cannot be read from records of a schema. Raises UnusableSchema if it is of something else."""
    fields = schema.fields
    for column in columns:
        if column.name in fields:
            yield from _misfits(schema, fields[column.name], column.shape, column.name)
        elif not column.nullable:
            yield f"{column.name} is not in the schema"


def _misfits(schema: AvroSchema, node: Node, shape: Shape, path: str) -> Iterator[str]:
    node = schema.resolved(node)
    if isinstance(node, list):
        branches = [list(_misfits(schema, each, shape, path)) for each in node if each != "null"]
        # With several types, it depends on the value.
        yield from min(branches, key=len, default=[])
        return
    kind = node["type"] if isinstance(node, dict) else node
    if isinstance(shape, Record) and kind == "record":
        fields = {field["name"]: field["type"] for field in node["fields"]}
        for name, part in zip(shape.names, shape.fields, strict=True):
            if name in fields:
                yield from _misfits(schema, fields[name], part, f"{path}.{name}")
            elif not part.nullable:
                yield f"{path}.{name} is not in the schema"
    elif isinstance(shape, Entries) and (values := values_of_map(node)) is not None:
        yield from _misfits(schema, "string", shape.key, f"{path} (key)")
        yield from _misfits(schema, values, shape.value, f"{path}[]")
    elif isinstance(shape, Items) and kind == "array" and values_of_map(node) is None:
        yield from _misfits(schema, node["items"], shape.item, f"{path}[]")
    elif not isinstance(shape, Leaf) or _python_type(node) not in _accepted(shape):
        yield f"{path} is {_described(node)} in the schema, and declared as {shape.spark}"


def _python_type(node: Node) -> type | None:
    kind = node["type"] if isinstance(node, dict) else node
    logical = node.get("logicalType", "") if isinstance(node, dict) else ""
    return _LOGICAL.get(f"{kind}-{logical}") or _PRIMITIVES.get(kind)


def _described(node: Node) -> str:
    kind = str(node.get("logicalType") or node["type"]) if isinstance(node, dict) else str(node)
    return kind.removeprefix("stateflow-")


# -- values ------------------------------------------------------------------------------------------------------------


def to_struct(columns: Sequence[Column], values: Sequence[Mapping[str, Decoded] | None]) -> pa.Array:
    """Returns the column of converted records. Raises ValueError, TypeError or OverflowError if Arrow refuses one."""
    parts = pa.struct([pa.field(column.name, column.arrow_type) for column in columns])
    return pa.array(values, with_nullable_parts(parts))


def record_converter(columns: Sequence[Column]) -> Callable[[Mapping[str, Decoded]], dict[str, Decoded]]:
    """Returns the function that converts a decoded record to its columns; a missing field is null.

    It raises NotDecodable, with the path of the value that cannot be converted.
    """
    parts = [(column.name, _within(column.name, _converter(column.shape))) for column in columns]
    return lambda record: {name: convert(record.get(name)) for name, convert in parts}


def _within(path: str, convert: Convert) -> Convert:
    def converted(value: Decoded) -> Decoded:
        if value is None:
            return None
        try:
            return convert(value)
        except NotDecodable as e:
            joined = "" if str(e)[:1] in ".[" else " "
            raise NotDecodable(f"{path}{joined}{e}") from e

    return converted


def _converter(shape: Shape) -> Convert:
    if isinstance(shape, Leaf):
        return _leaf_converter(shape)
    if isinstance(shape, Record):
        return _of_type(dict, _record_converter(shape))
    if isinstance(shape, Items):
        item = _within("[]", _converter(shape.item))
        return _of_type(list, lambda values: [item(value) for value in values])
    key, part = _within("(key)", _converter(shape.key)), _within("[]", _converter(shape.value))
    return lambda value: [(key(name), part(each)) for name, each in _entries(value)]


def _entries(value: Decoded) -> Iterable[tuple[str, Decoded]]:
    if type(value) is dict:  # a default of the reader's schema
        return value.items()
    if type(value) is DecodedMap:
        return value.pairs()
    raise NotDecodable(f"has the type {type(value).__name__}")


def _record_converter(shape: Record) -> Convert:
    named = zip(shape.names, shape.fields, strict=True)
    parts = [(name, _within(f".{name}", _converter(part))) for name, part in named]
    return lambda record: {name: convert(record.get(name)) for name, convert in parts}


def _of_type(kind: type, convert: Convert) -> Convert:
    def converted(value: Decoded) -> Decoded:
        if type(value) is not kind:
            raise NotDecodable(f"has the type {type(value).__name__}")
        return convert(value)

    return converted


def _leaf_converter(shape: Leaf) -> Convert:
    accepted = _accepted(shape)

    def converted(value: Decoded) -> Decoded:
        convert = accepted.get(type(value))
        if convert is None:
            raise NotDecodable(f"has the type {type(value).__name__}")
        return convert(value)

    return converted


def _accepted(shape: Leaf) -> Mapping[type, Convert]:
    """Returns the Python types of decoded values that a scalar takes, each with its conversion."""
    if issubclass(shape.kind, enum.Enum):
        values = frozenset(member.value for member in shape.kind)
        return {type(next(iter(values))): _member_of(shape.kind.__name__, values)}
    if shape.kind is datetime.datetime:
        return {datetime.datetime: _zoned if shape.arrow.tz else _naive}
    if shape.kind is Decimal:
        fitted = _fitted(shape.arrow.precision, shape.arrow.scale)
        return {Decimal: fitted, int: lambda value: fitted(Decimal(value))}
    if shape.kind is float:
        return {float: _same, int: float}
    if shape.kind is uuid.UUID:
        return {uuid.UUID: str, str: _uuid_of_text, bytes: _uuid_of_bytes}
    # No type of Avro is a timedelta: its durations have months.
    return {} if shape.kind is datetime.timedelta else {shape.kind: _same}


def _same(value: Decoded) -> Decoded:
    return value


def _member_of(name: str, values: frozenset[Decoded]) -> Convert:
    def member(value: Decoded) -> Decoded:
        if value not in values:
            raise NotDecodable(f"is not a member of {name}")
        return value

    return member


def _zoned(value: datetime.datetime) -> datetime.datetime:
    if value.tzinfo is None:
        raise NotDecodable("is a local timestamp, and the declared one has a time zone")
    return value


def _naive(value: datetime.datetime) -> datetime.datetime:
    # Timestamps of Avro are in UTC.
    return value.replace(tzinfo=None)


def _fitted(precision: int, scale: int) -> Convert:
    context = Context(prec=precision, traps=[Inexact, InvalidOperation, Overflow])
    unit = Decimal(1).scaleb(-scale)

    def fitted(value: Decimal) -> Decimal:
        try:
            return value.quantize(unit, context=context)
        except (Inexact, InvalidOperation, Overflow):
            raise NotDecodable(f"does not fit decimal({precision},{scale})") from None

    return fitted


def _uuid_of_text(value: str) -> str:
    try:
        return str(uuid.UUID(value))
    except ValueError:
        raise NotDecodable("is not a UUID") from None


def _uuid_of_bytes(value: bytes) -> str:
    try:
        return str(uuid.UUID(bytes=value))
    except ValueError:
        raise NotDecodable("is not a UUID") from None
