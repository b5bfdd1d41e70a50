"""A job of this project that ends in a Kafka topic: ``python -m benchmarks.peers.kafka_ours ORDER ANSWER``."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Mapping
from pathlib import Path

from benchmarks.runs import run_timed


def main(order: Mapping[str, str], settings: Mapping[str, str]) -> dict[str, object]:
    """Runs the job until its input is read; when each batch ended, the last one with the run."""
    folder = Path(order["folder"])
    common = {"local_dir": str(folder / "local"), "spark.conf.spark.driver.memory": order["heap"]}
    _, timeline = run_timed(Path(order["job"]), folder / "root", {**common, **settings})
    # A batch ends before its rows are visible: those of the last one are when the run ends.
    ends = [*timeline.committed[:-1], time.monotonic()]
    return {"began": timeline.committed[0] - timeline.results[0].seconds, "ends": ends}


if __name__ == "__main__":
    given = json.loads(Path(sys.argv[1]).read_text())
    Path(sys.argv[2]).write_text(json.dumps(main(given, given["settings"])))
