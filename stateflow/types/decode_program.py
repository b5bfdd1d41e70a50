"""A program that decodes a document of JSON, which `decoders` runs in a child process with a limit for memory.

It imports the modules that define the document's type, but not the package `stateflow` itself, whose imports take five
times as long as everything else here.

Arguments: bytes of memory, seconds of CPU time, size of the document, the folder of stateflow, the folder of msgspec,
module and name of a class, and ``list`` for a list of its instances. Standard input is the document. It exits with 0 if
decoding, successful or not, did not exceed the limits.
"""

import contextlib
import os
import sys
from types import ModuleType
from typing import Any

TYPE_CHECKING = False
if TYPE_CHECKING:  # The text of this function precedes the program.
    from stateflow.process_limits import limit


def main(arguments: list[str]) -> int:
    """Returns the exit code."""
    memory, cpu_seconds, size, stateflow, packages, module, name, *is_list = arguments
    sys.path.append(packages)
    package = ModuleType("stateflow")
    package.__path__ = [stateflow]
    sys.modules["stateflow"] = package
    import msgspec

    kind: Any = getattr(__import__(module, fromlist=[name]), name)
    if is_list:
        kind = list[kind]
    decoder = msgspec.json.Decoder(kind)
    limit(int(memory), int(cpu_seconds))
    try:
        data = bytearray(int(size))
        view = memoryview(data)
        while view and (count := os.readv(0, [view])):
            view = view[count:]
        with contextlib.suppress(ValueError, RecursionError):
            decoder.decode(data)
    except MemoryError:
        sys.stdout.write("decoding it takes too much memory")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
