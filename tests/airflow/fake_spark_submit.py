"""Stands in for spark-submit and for the program that it launches; run as a program, never imported.

Notes its arguments and environment in ``$FAKE_SPARK/<n>.json``, then does what ``$FAKE_SPARK/script`` has for the
n-th launch, one line each: ``finish``, ``finish-after-gate``, ``fail CODE EXIT RETRYABLE``, ``exit N``, ``die``,
``ignore-terminate``.
"""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

RESULT: dict[str, object] = {
    "status": "finished",
    "error": None,
    "job": "fake",
    "job_uuid": "0" * 32,
    "generation": 7,
    "started_from": 5,
    "started_at": "checkpoint 5",
    "checkpoint_id": 9,
    "batches": 2,
    "rows_in": 20,
    "rows_out": {"delays": 20},
    "offsets": {"flights": '{"logOffset": 1}'},
    "stopped_because": "caught-up",
    "quarantined_count": 0,
    "quarantined": [],
    "duration_s": 0.1,
}


def main() -> None:
    folder = Path(os.environ["FAKE_SPARK"])
    number = len(list(folder.glob("*.json")))
    line = (folder / "script").read_text().splitlines()[number].split()
    print(f"launch {number} says {line[0]}", flush=True)
    seen = {"argv": sys.argv[1:], "env": dict(os.environ), "pid": os.getpid(), "cwd": os.getcwd()}
    note = folder / f"{number}.json"
    note.with_suffix(".new").write_text(json.dumps(seen))
    note.with_suffix(".new").rename(note)
    act(line, folder, Path(sys.argv[sys.argv.index("--result-file") + 1]))


def act(line: list[str], folder: Path, result_file: Path) -> None:
    match line:
        case ["finish"]:
            write(result_file, RESULT)
        case ["finish-after-gate"]:
            tell_ready(folder)
            (folder / "gate").read_text()
            write(result_file, RESULT)
        case ["fail", code, exit_code, retryable]:
            error = {
                "code": code,
                "message": f"it is {code}",
                "facts": {"key": "a"},
                "hint": "mend it",
                "retryable": retryable == "yes",
            }
            write(result_file, {**RESULT, "status": "failed", "error": error})
            sys.exit(int(exit_code))
        case ["exit", exit_code]:
            sys.exit(int(exit_code))
        case ["die"]:
            os.kill(os.getpid(), signal.SIGKILL)
        case ["ignore-terminate"]:
            ignore_terminate(folder)


def ignore_terminate(folder: Path) -> None:
    """Hangs, with a child in another process group as Spark's Python workers are; only SIGKILL ends either."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    child = subprocess.Popen([sys.executable, "-c", "import signal; signal.pause()"], process_group=0)
    (folder / "child").write_text(str(child.pid))
    tell_ready(folder)
    signal.pause()


def tell_ready(folder: Path) -> None:
    with (folder / "ready").open("w") as fifo:
        fifo.write("ready")


def write(path: Path, result: dict[str, object]) -> None:
    path.with_suffix(".new").write_text(json.dumps(result))
    path.with_suffix(".new").rename(path)


main()
