"""Changes of stored bytes and JSON documents, as an attacker who knows the formats would make them."""

from __future__ import annotations

import copy
import hashlib
import json
import random
from collections.abc import Sequence
from typing import Any

SPECIAL = (0, 1, 7, 8, 34, 91, 92, 123, 127, 128, 254, 255)
LENGTHS = (b"\xff" * 4, b"\xff" * 10, b"\x80" * 9 + b"\x01", b"\0" * 8, b"\xff\xff\xff\x7f", b"\xff" * 8, b"\x80" * 40)
VALUES: Sequence[Any] = (
    *(None, True, False, 0, -1, 1, 2**31, 2**63 - 1, 2**63, 2**70, -(2**70), 1e308, float("inf"), float("nan"), 0.5),
    *(
        "",
        "x",
        "-",
        "1",
        "²",
        "9" * 400,
        "\0",
        "\ud83d\ude00",
        "../../x",
        "/etc/passwd",
        "a/b",
        "{",
        "{}",
        "[]",
        "null",
    ),
    *("2026-01-01", "2026-01-01T00:00:00+00:00", "9999-12-31T23:59:59", "é" * 300, "AAAA", "====", "int", "class"),
    *([], {}, [[]], [{}], {"": ""}, {"a": []}, [0], ["x"], [None], {"logOffset": -1}, '{"logOffset":"x"}'),
)


def changed_bytes(rng: random.Random, data: bytes, others: Sequence[bytes]) -> bytes:
    """Returns the data with one to four changes: bits, bytes, lengths, cuts, repeated ranges, ranges of other data."""
    for _ in range(rng.choice([1, 1, 2, 4])):
        at = rng.randrange(len(data) + 1)
        end = min(len(data), at + rng.choice([1, 2, 4, 16, 200]))
        kind = rng.randrange(8)
        if kind == 0 and at < len(data):
            data = data[:at] + bytes([data[at] ^ 1 << rng.randrange(8)]) + data[at + 1 :]
        elif kind == 1:
            data = data[:at] + bytes([rng.choice(SPECIAL)]) + data[at + 1 :]
        elif kind == 2:
            data = data[:at] + rng.choice(LENGTHS) + data[at:]
        elif kind == 3:
            data = data[:at]
        elif kind == 4:
            data = data[:at] + data[at:end] * rng.choice([2, 3, 50]) + data[end:]
        elif kind == 5:
            other = rng.choice(others)
            start = rng.randrange(len(other) + 1)
            data = data[:at] + other[start : start + (end - at)] + data[end:]
        elif kind == 6:
            data = data[:at] + data[end:]
        else:
            data = data[:at] + bytes(rng.randrange(256) for _ in range(end - at)) + data[end:]
    return data


def changed_json(rng: random.Random, text: bytes, others: Sequence[bytes]) -> bytes:
    """Returns the document with one to four changes of its values, or, rarely, of its text."""
    if rng.random() < 0.15:
        return changed_bytes(rng, text, others)
    if rng.random() < 0.01:
        return rng.choice((b"[", b'{"x":', b'{"manifest":{"operators":[')) * rng.choice([10, 1000, 100_000])
    holder = [json.loads(text)]
    for _ in range(rng.choice([1, 1, 2, 4])):
        places = _places(holder)
        container, key = rng.choice(places)
        _change(rng, container, key, places)
    return json.dumps(holder[0], separators=(",", ":")).encode()


def _places(document: Any) -> list[tuple[Any, Any]]:
    """Returns each container in the document with each of its keys."""
    found: list[tuple[Any, Any]] = []
    waiting = [document]
    while waiting and len(found) < 5000:
        container = waiting.pop()
        for key in range(len(container)) if isinstance(container, list) else list(container):
            found.append((container, key))
            if isinstance(container[key], list | dict):
                waiting.append(container[key])
    return found


def _change(rng: random.Random, container: Any, key: Any, places: list[tuple[Any, Any]]) -> None:
    kind = rng.randrange(6)
    value = container[key]
    other_container, other_key = rng.choice(places)
    if kind == 0 and isinstance(container, dict):
        del container[key]
    elif kind == 1:
        # A copy, because a document must not contain itself.
        container[key] = json.loads(json.dumps(other_container[other_key]))
    elif kind == 2 and isinstance(value, list):
        value *= rng.choice([2, 3, 20])
    elif kind == 3 and isinstance(value, int):
        container[key] = value + rng.choice([-1, 1, -(2**31), 2**62])
    elif kind == 4 and isinstance(value, str):
        container[key] = changed_bytes(rng, value.encode("utf-8", "surrogatepass"), [b"{}"]).decode("latin-1")
    else:
        container[key] = copy.deepcopy(rng.choice(VALUES))


def sealed(line: bytes) -> bytes:
    """The document as it is stored, with the hash that fits."""
    return line + b"\n" + hashlib.sha256(line).hexdigest().encode() + b"\n"


def changed_document(rng: random.Random, stored: bytes, others: Sequence[bytes]) -> bytes:
    """Returns a stored document with changes; nearly always with the hash that fits."""
    if rng.random() < 0.05:
        return changed_bytes(rng, stored, others)
    return sealed(changed_json(rng, stored.split(b"\n")[0], others))


def random_text(rng: random.Random, pieces: Sequence[str]) -> str:
    """Returns up to six pieces in a row."""
    return "".join(rng.choice(pieces) for _ in range(rng.randrange(7)))
