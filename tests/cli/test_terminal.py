"""What a person sees who runs a job on a terminal: one live line, then the result, and nothing that is left over."""

from __future__ import annotations

import os
import pty
import re
import select
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.errors.kit import BUILD, JOB, Bench

ROOT = Path(__file__).resolve().parents[2]
DEADLINE = 60.0
# Each slice waits for a byte: so the test decides how long a batch is what is shown.
GATED = JOB.replace("ROWS = ", """
class Gated(ScriptedSource):
    def read(self, position, limits):
        with open(HERE.parent / "gate", "rb", 0) as gate:
            gate.read(1)
        return super().read(position, limits)


ROWS = """).replace("return ScriptedSource(", "return Gated(")  # fmt: skip
_CONTROL = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")


class Terminal:
    """A process whose three streams are one terminal."""

    def __init__(self, command: list[str], folder: Path, columns: int = 100) -> None:
        self._gate = os.open(folder / "gate", os.O_RDWR)
        self._master, slave = pty.openpty()
        environment = {
            **os.environ,
            "PYTHONPATH": str(ROOT),
            "TERM": "xterm-256color",
            "COLUMNS": str(columns),
        }
        for name in ("NO_COLOR", "FORCE_COLOR", "TTY_COMPATIBLE", "TTY_INTERACTIVE"):
            environment.pop(name, None)
        self.process = subprocess.Popen(
            [sys.executable, "-m", "stateflow", *command],
            cwd=folder, env=environment, stdin=slave, stdout=slave, stderr=slave,
        )  # fmt: skip
        os.close(slave)
        self.bytes = b""

    @property
    def text(self) -> str:
        """All that was printed, without what moves the cursor."""
        return _CONTROL.sub("", self.bytes.decode())

    @property
    def screen(self) -> list[str]:
        """What is left to see at the end: enough of a terminal for lines that are drawn anew."""
        lines, row, column = [""], 0, 0
        for part in re.findall(r"\x1b\[[0-9;?]*[A-Za-z]|[\r\n]|[^\r\n\x1b]+", self.bytes.decode()):
            if part == "\r":
                column = 0
            elif part == "\n":
                row += 1
                lines += [""] * (row + 1 - len(lines))
            elif part == "\x1b[1A":
                row -= 1
            elif part == "\x1b[2K":
                lines[row] = ""
            elif not part.startswith("\x1b"):
                lines[row] = lines[row][:column].ljust(column) + part + lines[row][column + len(part) :]
                column += len(part)
        return lines

    def wait_for(self, wanted: str) -> None:
        """Reads until this is on the terminal."""
        while wanted not in self.text:
            assert self._read(), f"ended without {wanted!r}: {self.bytes!r}"

    def type(self, line: str) -> None:
        """Answers a question."""
        os.write(self._master, f"{line}\n".encode())

    def go_on(self) -> None:
        """Lets the next slice through."""
        os.write(self._gate, b"x")

    def end(self) -> int:
        """Reads to the end; returns the exit code."""
        while self._read():
            pass
        return self.process.wait(DEADLINE)

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        os.close(self._master)
        os.close(self._gate)

    def _read(self) -> bool:
        if not select.select([self._master], [], [], DEADLINE)[0]:
            raise TimeoutError(f"nothing came any more after {self.bytes!r}")
        try:
            data = os.read(self._master, 1 << 16)
        except OSError:  # Linux: nobody has the other side open
            data = b""
        self.bytes += data
        return bool(data)


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    bench = Bench(tmp_path)
    bench.write(BUILD, GATED)
    os.mkfifo(tmp_path / "gate")
    return bench


@pytest.fixture
def terminal(bench: Bench) -> Iterator[Terminal]:
    # Narrower than "loading" and the path of the job's file: a line that is folded stays.
    terminal = Terminal(bench.command("--set", "checkpoints.asynchronous=no"), bench.folder, columns=60)
    yield terminal
    terminal.close()


def test_one_line_lives_while_a_job_runs_and_the_result_stays(terminal: Terminal) -> None:
    terminal.wait_for("loading")
    terminal.wait_for("job: from the beginning")
    for batch in (1, 2, 3):
        terminal.go_on()
        terminal.wait_for(f"batch {batch}: {4 * batch} rows in, {4 * batch} out, checkpoint {batch + 1}, ")
    terminal.go_on()
    assert terminal.end() == 0
    assert re.search(r"batch 3: 12 rows in, 12 out, checkpoint 4, [\d.]+ s, \+[\d.]+ kB", terminal.text)
    # The line was drawn anew each time, never below itself, and is gone; so is the log, and the cursor is back.
    *above, last, end = terminal.screen
    assert re.fullmatch(
        r"job: 3 batches, 12 rows in, 12 out, from the beginning to checkpoint 4, caught-up, [\d.]+ s", last
    )
    assert (end, above) == ("", [])
    assert terminal.bytes.rindex(b"\x1b[?25h") > terminal.bytes.rindex(b"\x1b[?25l")


def test_an_error_stays_and_the_line_goes(bench: Bench) -> None:
    bench.write(BUILD, GATED.replace("yield Total(", "1 // (7 - row.number)\n        yield Total("))
    terminal = Terminal(bench.command("--set", "checkpoints.asynchronous=no"), bench.folder)
    try:
        terminal.go_on()
        terminal.wait_for("batch 1: 4 rows in, ")
        terminal.go_on()
        assert terminal.end() == 4
    finally:
        terminal.close()
    assert "batch 1" not in "".join(terminal.screen)
    assert terminal.screen[0].startswith("error [user-code]: ") and "ZeroDivisionError" in terminal.screen[0]
    assert any(line.startswith("  hint: ") for line in terminal.screen)
    assert terminal.bytes.rindex(b"\x1b[?25h") > terminal.bytes.rindex(b"\x1b[?25l")


def test_who_goes_back_without_a_reason_is_asked_for_one(bench: Bench) -> None:
    bench.write(BUILD, JOB)
    bench.run()
    sets = bench.command()[4:]
    where = [str(bench.job), "--job-root", bench.root, *sets]
    plan = str(bench.folder / "plan.json")
    for options, question in ((["--plan", "latest", "--out", plan], ""), (["--execute", plan], "why? ")):
        terminal = Terminal(["restore", *where, *options], bench.folder, columns=300)
        try:
            if question:
                terminal.wait_for(question)
                terminal.type("wrong rows")
            assert terminal.end() == 0, terminal.text
        finally:
            terminal.close()
    shown = Terminal(["history", *where[1:3]], bench.folder, columns=300)
    try:
        assert shown.end() == 0
    finally:
        shown.close()
    assert "(wrong rows): to checkpoint" in shown.text
