"""Decoders that several threads ask for at once."""

from __future__ import annotations

import subprocess
import sys

_TWO_THREADS = """
import threading
import msgspec
from stateflow.types.decoders import json_decoder, msgpack_decoder, value_decoder

def slowly():
    # msgspec evaluates annotations while it has found half of the fields.
    begun.set()
    second.wait(0.3)
    return int

JSON = b'{"inner": {"x": 1}, "after": "y"}'
MSGPACK = msgspec.msgpack.encode(msgspec.json.decode(JSON))
for decode in (
    lambda: json_decoder(Outer).decode(JSON),
    lambda: msgpack_decoder(Outer).decode(MSGPACK),
    lambda: value_decoder(Outer, lambda kind, value: value).decode(MSGPACK),
):
    begun, second = threading.Event(), threading.Event()

    class Inner(msgspec.Struct):
        x: "slowly()"

    class Outer(msgspec.Struct):
        inner: Inner
        after: str

    first = threading.Thread(target=decode)
    first.start()
    begun.wait()
    # The second waits for the first, so the first waits for the second in vain.
    found = decode()
    second.set()
    first.join()
    assert found == Outer(Inner(1), "y"), found
"""


def test_a_thread_waits_while_another_one_inspects_the_type() -> None:
    done = subprocess.run([sys.executable, "-c", _TWO_THREADS], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
