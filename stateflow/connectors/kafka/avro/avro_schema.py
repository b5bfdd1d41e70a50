"""Avro schemas that others may have written: parsed with limits, and decoded with them.

A few bytes of a value must not become millions of objects, and no value may exhaust the stack of the decoder, which is
written in C. So a schema is refused if it is recursive, is nested too deeply, or has arrays or maps whose items take no
bytes: a value could claim any number of them.
"""

from __future__ import annotations

import io
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any

import msgspec

from stateflow.types.bounded_json import decode_json

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
