"""``python benchmarks/run.py [NAME…]``: runs benchmarks and writes their figures to ``benchmarks/results/``."""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent))

from benchmarks import memory, micro_batch, savepoints, throughput

BENCHMARKS = {
    "micro-batch": micro_batch.run,
    "memory": memory.run,
    "throughput": throughput.run,
    "savepoints": savepoints.run,
}


def main(names: list[str]) -> int:
    """Runs the named benchmarks, or all of them."""
    unknown = [name for name in names if name not in BENCHMARKS]
    if unknown:
        print(f"no such benchmark: {', '.join(unknown)}; known: {', '.join(BENCHMARKS)}", file=sys.stderr)
        return 2
    for name in names or BENCHMARKS:
        with tempfile.TemporaryDirectory(prefix=f"stateflow-{name}-") as folder:
            path = BENCHMARKS[name](Path(folder))
        print(f"{name}:\n{path.read_text()}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
