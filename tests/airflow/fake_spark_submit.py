"""Replaces spark-submit and the program that it launches; run as a program, never imported.

Notes its arguments and environment in ``<n>.json`` below ``$STATEFLOW_FAKE_SPARK``, then does what the file ``script``
there has for the n-th launch, one line each: ``finish``, ``finish-after-gate``, ``fail CODE EXIT RETRYABLE``,
``exit N``, ``die``, ``ignore-terminate``.
"""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

FOLDER = Path(os.environ["STATEFLOW_FAKE_SPARK"])
RESULT = Path(sys.argv[sys.argv.index("--result-file") + 1])
REPORT: dict[str, object] = json.loads((Path(__file__).parent / "data" / "report.json").read_text())


def write(path: Path, document: dict[str, object]) -> None:
    path.with_suffix(".new").write_text(json.dumps(document))
    path.with_suffix(".new").rename(path)


def tell_ready() -> None:
    (FOLDER / "ready").write_text("ready")


number = len(list(FOLDER.glob("*.json")))
line = (FOLDER / "script").read_text().splitlines()[number].split()
print(f"launch {number} says {line[0]}", flush=True)
write(
    FOLDER / f"{number}.json", {"argv": sys.argv[1:], "env": dict(os.environ), "pid": os.getpid(), "cwd": os.getcwd()}
)
match line:
    case ["finish"]:
        write(RESULT, REPORT)
    case ["finish-after-gate"]:
        tell_ready()
        (FOLDER / "gate").read_text()
        write(RESULT, REPORT)
    case ["fail", code, exit_code, retryable]:
        error = {"code": code, "message": f"it is {code}", "facts": {"key": "a"}, "hint": "fix it"}
        write(RESULT, {"status": "failed", "error": {**error, "retryable": retryable == "yes"}, "result": None})
        sys.exit(int(exit_code))
    case ["exit", exit_code]:
        sys.exit(int(exit_code))
    case ["die"]:
        os.kill(os.getpid(), signal.SIGKILL)
    case ["ignore-terminate"]:
        # With a child in another process group as Spark's Python workers are; only SIGKILL ends either.
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        child = subprocess.Popen([sys.executable, "-c", "import signal; signal.pause()"], process_group=0)
        (FOLDER / "child").write_text(str(child.pid))
        tell_ready()
        signal.pause()
