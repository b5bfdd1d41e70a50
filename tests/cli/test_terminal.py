"""A job on a terminal: one live line while it runs, then the result, and nothing else that stays."""

from __future__ import annotations

import json
import os
import pty
import re
import select
import subprocess
import sys
import time
from pathlib import Path

import pytest
from syrupy.assertion import SnapshotAssertion

from tests.support.cli_fixture import BUILD, JOB, CliFixture, invoke
from tests.support.errors import reported_error
from tests.support.screens import normalized

ROOT = Path(__file__).resolve().parents[2]
DEADLINE = 60.0
COLUMNS = 60
# Each slice waits for a byte: so the test decides how long a batch is what is shown.
GATED = JOB.replace(
    "ROWS = ",
    """
class Gated(ScriptedSource):
    def read(self, position, limits):
        with open(HERE.parent / "gate", "rb", 0) as gate:
            gate.read(1)
        return super().read(position, limits)


ROWS = """,
).replace("return ScriptedSource(", "return Gated(")
# The job's file waits for a byte as well: loading it takes less time than the next drawing of the live line.
GATED_FILE = GATED.replace(
    "\nROWS = ",
    """
with open(HERE.parent / "gate", "rb", 0) as gate:
    gate.read(1)

ROWS = """,
)
_CONTROL = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")
_SPINNER = "\N{BRAILLE PATTERN BLANK}-\N{BRAILLE PATTERN DOTS-12345678}"


class Terminal:
    """A process whose three streams are one terminal; the process is killed at the end of the block."""

    def __init__(self, command: list[str], folder: Path, columns: int = 100) -> None:
        self._gate = os.open(folder / "gate", os.O_RDWR)
        self._master, slave = pty.openpty()
        colours = {"NO_COLOR", "FORCE_COLOR", "TTY_COMPATIBLE", "TTY_INTERACTIVE"}
        environment = {name: value for name, value in os.environ.items() if name not in colours}
        environment |= {"PYTHONPATH": str(ROOT), "TERM": "xterm-256color", "COLUMNS": str(columns)}
        program = [sys.executable, "-m", "stateflow", *command]
        self.process = subprocess.Popen(program, cwd=folder, env=environment, stdin=slave, stdout=slave, stderr=slave)
        os.close(slave)
        self.bytes = b""

    def __enter__(self) -> Terminal:
        return self

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.process.wait()
        os.close(self._master)
        os.close(self._gate)

    @property
    def text(self) -> str:
        return _CONTROL.sub("", self.bytes.decode())

    @property
    def live(self) -> list[str]:
        return list(dict.fromkeys(re.findall(rf"[{_SPINNER}] ([^\r\n]*[^\r\n ])", self.text)))

    @property
    def screen(self) -> list[str]:
        """What stays at the end: enough of a terminal for lines that are drawn again."""
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

    def wait_for(self, pattern: str) -> None:
        # The live line never stops printing.
        deadline = time.monotonic() + DEADLINE
        while not re.search(pattern, self.text):
            assert time.monotonic() < deadline, f"without {pattern!r}: {self.bytes[-2000:]!r}"
            assert self._read(), f"ended without {pattern!r}: {self.bytes!r}"

    def type(self, line: str) -> None:
        os.write(self._master, f"{line}\n".encode())

    def go_on(self) -> None:
        os.write(self._gate, b"x")

    def end(self) -> int:
        while self._read():
            pass
        return self.process.wait(DEADLINE)

    def _read(self) -> bool:
        if not select.select([self._master], [], [], DEADLINE)[0]:
            raise TimeoutError(f"no more output after {self.bytes!r}")
        try:
            data = os.read(self._master, 1 << 16)
        except OSError:  # Linux: the other side is closed
            data = b""
        self.bytes += data
        return bool(data)


@pytest.fixture
def gated(cli: CliFixture) -> CliFixture:
    cli.write(BUILD, GATED)
    os.mkfifo(cli.folder / "gate")
    return cli


def _batch(number: int) -> str:
    """A line with the number of a batch, the rows in and out so far, and the checkpoint, in this order."""
    return r"[^\d\r\n]+".join((rf"\b{number}", f"{4 * number}", f"{4 * number}", rf"{number + 1}\b"))


def _restores_the_cursor(terminal: Terminal) -> bool:
    return terminal.bytes.rindex(b"\x1b[?25h") > terminal.bytes.rindex(b"\x1b[?25l")


@pytest.mark.slow(reason="starts a process with a terminal")
def test_a_run_shows_one_live_line_and_only_its_result_remains(gated: CliFixture, golden: SnapshotAssertion) -> None:
    gated.write(BUILD, GATED_FILE)
    # Narrower than "loading" and the path of the job's file: a line that is folded stays.
    with Terminal(gated.command(), gated.folder, columns=COLUMNS) as terminal:
        # The path of the job's file, which does not fit; then the job's name.
        terminal.wait_for("…")
        terminal.go_on()
        terminal.wait_for(r"\bjob\b(?!\.py)")
        for batch in (1, 2, 3):
            terminal.go_on()
            terminal.wait_for(_batch(batch))
        terminal.go_on()
        assert terminal.end() == 0
    assert max(map(len, terminal.live)) <= COLUMNS - len("⠋ ")
    # The line was drawn again each time, never below itself, and is gone; so is the log, and the cursor is back.
    *above, _, end = terminal.screen
    assert (end, above) == ("", [])
    assert normalized("\n".join([*terminal.live[-4:], "", *terminal.screen])) == golden
    assert _restores_the_cursor(terminal)


@pytest.mark.slow(reason="starts a process on a terminal; so does the test above")
def test_the_error_of_a_run_remains_and_the_live_line_is_removed(gated: CliFixture, golden: SnapshotAssertion) -> None:
    gated.write(BUILD, GATED.replace("yield Total(", "1 // (7 - row.number)\n        yield Total("))
    with Terminal(gated.command(), gated.folder) as terminal:
        terminal.go_on()
        terminal.wait_for(_batch(1))
        terminal.go_on()
        assert terminal.end() == 4
    screen = "\n".join(terminal.screen)
    assert reported_error(screen).code == "user-code"
    assert normalized(screen, folder=gated.folder) == golden
    assert _restores_the_cursor(terminal)


@pytest.mark.slow(reason="starts a process on a terminal")
def test_a_restore_without_a_reason_prompts_for_the_reason(gated: CliFixture, golden: SnapshotAssertion) -> None:
    gated.write(BUILD)
    gated.run()
    where = [str(gated.job), "--job-root", gated.root, *gated.command()[4:]]
    plan = str(gated.folder / "plan.json")
    assert invoke("restore", *where, "--plan", "latest", "--out", plan).exit_code == 0
    with Terminal(["restore", *where, "--execute", plan], gated.folder) as terminal:
        terminal.wait_for(r": \Z")
        terminal.type("wrong rows")
        assert terminal.end() == 0, terminal.text
    assert normalized("\n".join(terminal.screen)) == golden
    *_, restored = map(json.loads, invoke("history", "--job-root", gated.root, "--json").output.splitlines())
    assert (restored["kind"], restored["reason"]) == ("restore", "wrong rows")
