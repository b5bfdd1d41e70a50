"""Decoders that several threads ask for at once."""

from __future__ import annotations

import subprocess
import sys

import pytest

_TWO_THREADS = """
import threading
import msgspec
from stateflow.types.decoders import json_decoder, msgpack_decoder, value_decoder

begun, second = threading.Event(), threading.Event()

def slowly():
    # msgspec evaluates annotations while it has found half of the fields.
    begun.set()
    second.wait(%r)
    return int

class Inner(msgspec.Struct):
    x: "slowly()"

class Outer(msgspec.Struct):
    inner: Inner
    after: str

JSON = b'{"inner": {"x": 1}, "after": "y"}'
MSGPACK = msgspec.msgpack.encode(msgspec.json.decode(JSON))
DECODE = {
    "json": lambda: json_decoder(Outer).decode(JSON),
    "msgpack": lambda: msgpack_decoder(Outer).decode(MSGPACK),
    "value": lambda: value_decoder(Outer, lambda kind, value: value).decode(MSGPACK),
    "bare": lambda: msgspec.json.decode(JSON, type=Outer),
}[%r]
first = threading.Thread(target=DECODE)
first.start()
begun.wait()
try:
    found = DECODE()
finally:
    second.set()
first.join()
assert found == Outer(Inner(1), "y"), found
print("whole")
"""


def _decode_in_two_threads(decoder: str, seconds: float) -> subprocess.CompletedProcess[str]:
    """Lets the first thread inspect the type until the second has decoded, but no longer than some seconds."""
    script = _TWO_THREADS % (seconds, decoder)
    return subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)


@pytest.mark.parametrize("decoder", ["json", "msgpack", "value"])
def test_a_thread_waits_while_another_one_inspects_the_type(decoder: str) -> None:
    # The second waits for the first, so the first must wait for nothing.
    done = _decode_in_two_threads(decoder, 1)
    assert (done.returncode, done.stdout) == (0, "whole\n"), done.stderr


def test_msgspec_alone_decodes_with_half_of_the_type() -> None:
    """When this fails msgspec has fixed it, and `stateflow.types.decoders` can be removed."""
    assert _decode_in_two_threads("bare", 60).returncode != 0
