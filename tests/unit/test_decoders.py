"""Decoders that are asked for by several threads at once."""

from __future__ import annotations

import subprocess
import sys
from typing import Annotated

import msgspec
import pytest

from stateflow.types.decoders import json_decoder, msgpack_decoder, value_decoder

_TWO_THREADS = """
import threading
import msgspec
from stateflow.types.decoders import json_decoder, msgpack_decoder, value_decoder

begun, second = threading.Event(), threading.Event()

def slowly():
    # msgspec evaluates annotations while it has found half of what there is to find.
    begun.set()
    second.wait(%r)
    return int

class Inner(msgspec.Struct):
    x: "slowly()"

class Outer(msgspec.Struct):
    inner: Inner
    after: str

HOW = {
    "json": lambda data: json_decoder(Outer).decode(data),
    "msgpack": lambda data: msgpack_decoder(Outer).decode(msgspec.msgpack.encode(msgspec.json.decode(data))),
    "value": lambda data: value_decoder(Outer, lambda kind, value: value).decode(
        msgspec.msgpack.encode(msgspec.json.decode(data))),
    "bare": lambda data: msgspec.json.decode(data, type=Outer),
}[%r]
DATA = b'{"inner": {"x": 1}, "after": "y"}'
first = threading.Thread(target=HOW, args=(DATA,))
first.start()
begun.wait()
try:
    found = HOW(DATA)
finally:
    second.set()
first.join()
assert found == Outer(Inner(1), "y"), found
print("whole")
"""


def _of_two_threads(how: str, seconds: float) -> subprocess.CompletedProcess[str]:
    """What comes of it when the first looks at the type until the second is through, or for so long."""
    return subprocess.run(
        [sys.executable, "-c", _TWO_THREADS % (seconds, how)], capture_output=True, text=True, check=False
    )


@pytest.mark.parametrize("how", ["json", "msgpack", "value"])
def test_a_type_is_whole_for_whoever_asks_while_it_is_looked_at(how: str) -> None:
    # The second waits for the first, so the first has to wait for nothing.
    done = _of_two_threads(how, 1)
    assert (done.returncode, done.stdout) == (0, "whole\n"), done.stderr


def test_without_them_it_is_not() -> None:
    """When this fails msgspec has fixed it, and `stateflow.types.decoders` may go."""
    assert _of_two_threads("bare", 60).returncode != 0


def test_a_decoder_is_made_once() -> None:
    class Point(msgspec.Struct):
        x: Annotated[int, msgspec.Meta(ge=0)]

    assert json_decoder(Point) is json_decoder(Point)
    assert msgpack_decoder(Point) is msgpack_decoder(Point)
    with pytest.raises(msgspec.ValidationError):
        json_decoder(Point).decode(b'{"x": -1}')


def test_a_type_that_cannot_be_decoded_is_told_each_time() -> None:
    for _ in range(2):
        with pytest.raises(TypeError):
            value_decoder(dict[object, int] | list[int] | set[int], lambda kind, value: value)
