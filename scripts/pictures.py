"""Draws the pictures of the documentation: ``python scripts/pictures.py`` writes ``docs/pictures/*.svg``.

With ``--check`` it writes nothing, and ends with 1 when a file differs from what it draws.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import drawsvg

FOLDER = Path(__file__).resolve().parents[1] / "docs" / "pictures"
INK, QUIET, PAPER = "#1f2933", "#7b8794", "#ffffff"
ALERT = "#a12d26"
BLUE, GREEN, RED, SAND = "#d6e4f5", "#d5f0dd", "#f8d7d5", "#f3ecd9"


@dataclass(frozen=True)
class Canvas:
    """A drawing on white, so that it is readable on a dark page."""

    drawing: drawsvg.Drawing

    @classmethod
    def of(cls, width: int, height: int, title: str) -> Canvas:
        """An empty canvas; the title is read aloud by screen readers."""
        drawing = drawsvg.Drawing(width, height, font_family="Helvetica, Arial, sans-serif")
        drawing.append(drawsvg.Title(title))
        drawing.append(drawsvg.Rectangle(0, 0, width, height, rx=8, fill=PAPER))
        return cls(drawing)

    def text(self, at: tuple[float, float], words: str, fill: str = INK, anchor: str = "middle") -> None:
        """Lines of text around a point."""
        lines = words.split("\n")
        self.drawing.append(drawsvg.Text(lines, 13, *at, fill=fill, text_anchor=anchor, dominant_baseline="middle"))

    def box(self, at: tuple[float, float], size: tuple[float, float], words: str, fill: str) -> None:
        """A box with its text in the middle; `at` is its upper left corner."""
        (x, y), (width, height) = at, size
        self.drawing.append(drawsvg.Rectangle(x, y, width, height, rx=5, fill=fill, stroke=INK, stroke_width=1))
        lines = words.count("\n")
        self.text((x + width / 2, y + height / 2 - lines * 6.5), words)

    def arrow(
        self, start: tuple[float, float], end: tuple[float, float], color: str = INK, dashed: bool = False
    ) -> None:
        """A straight arrow."""
        head = drawsvg.Marker(-7, -4, 0, 4, scale=1.4, orient="auto")
        head.append(drawsvg.Lines(-7, -3, 0, 0, -7, 3, close=True, fill=color))
        dashes = "5,4" if dashed else "none"
        self.drawing.append(
            drawsvg.Line(*start, *end, stroke=color, stroke_width=1.5, stroke_dasharray=dashes, marker_end=head)
        )

    def svg(self) -> str:
        """The file's text."""
        return str(self.drawing.as_svg(header='<?xml version="1.0" encoding="UTF-8"?>\n')) + "\n"


def rewind() -> Canvas:
    """A restore takes state, source positions and tables back to one savepoint."""
    canvas = Canvas.of(780, 330, "A restore takes state, source positions and sink tables back together")
    names = ("checkpoint 41", "checkpoint 42\n= savepoint", "checkpoint 43", "checkpoint 44")
    for column, name in enumerate(names):
        x = 150 + column * 155
        is_wrong = column > 1
        canvas.text((x + 60, 30), name, QUIET if is_wrong else INK)
        for row, values in enumerate(
            (
                ("1.9 M keys", "2.0 M keys", "2.1 M keys", "2.1 M keys"),
                ("file 410", "file 420", "file 430", "file 440"),
                ("version 41", "version 42", "version 43", "version 44"),
            )
        ):
            canvas.box((x, 60 + row * 62), (120, 44), values[column], RED if is_wrong else (BLUE, SAND, GREEN)[row])
        if column < 3:
            canvas.arrow((x + 122, 30), (x + 150, 30), QUIET)
    for row, name in enumerate(("keyed state", "source position", "sink table")):
        canvas.text((130, 82 + row * 62), name, anchor="end")
    canvas.text((600, 252), "written by a wrong version of the job", ALERT)
    canvas.drawing.append(drawsvg.Line(460, 240, 740, 240, stroke=ALERT, stroke_width=1))
    canvas.arrow((600, 285), (375, 285))
    canvas.text((487, 303), "stateflow restore")
    canvas.box((305, 265), (70, 40), "continue", BLUE)
    return canvas


def micro_batch() -> Canvas:
    """How the rows of a micro-batch become a checkpoint."""
    canvas = Canvas.of(780, 250, "A micro-batch ends with a barrier, and the barrier becomes a checkpoint")
    steps = (
        ("source\nrows, position", SAND),
        ("shuffle\nby key group", PAPER),
        ("tasks\nkeyed state", BLUE),
        ("manifest\nlists all files", PAPER),
        ("COMMIT\nin the log", GREEN),
        ("publish\neach sink", GREEN),
    )
    for column, (words, fill) in enumerate(steps):
        x = 12 + column * 128
        canvas.box((x, 40), (112, 56), words, fill)
        if column:
            canvas.arrow((x - 15, 68), (x - 2, 68))
    canvas.text((324, 125), "new state files and output files, which no table names yet", QUIET)
    canvas.arrow((324, 98), (324, 114), QUIET)
    canvas.drawing.append(drawsvg.Line(520, 20, 520, 200, stroke=QUIET, stroke_dasharray="4,4"))
    canvas.text((300, 190), "killed here: the batch never happened;\nthe next run reads the same rows")
    canvas.text((650, 190), "killed here: the checkpoint exists;\nthe next run publishes its output once")
    return canvas


def fencing() -> Canvas:
    """Two drivers of one job: the later claim fences the earlier one."""
    canvas = Canvas.of(780, 220, "The log admits one driver: a CLAIM fences every older run")
    entries = (("1 CLAIM", "a"), ("2 COMMIT", "a"), ("3 COMMIT", "a"), ("4 CLAIM", "b"), ("5 COMMIT", "b"))
    canvas.text((60, 110), "log", anchor="end")
    for column, (name, owner) in enumerate(entries):
        canvas.box((80 + column * 128, 88), (108, 44), name, BLUE if owner == "a" else GREEN)
    canvas.box((80, 16), (236, 36), "driver A", BLUE)
    canvas.box((464, 168), (236, 36), "driver B, started later", GREEN)
    for x in (134, 262, 390):
        canvas.arrow((198, 54), (x, 86), QUIET)
    for x in (518, 646):
        canvas.arrow((582, 166), (x, 134), QUIET)
    canvas.arrow((318, 34), (512, 86), ALERT, dashed=True)
    canvas.text((560, 40), "A's next COMMIT needs number 4:\nit exists, so A is fenced and ends", ALERT)
    return canvas


PICTURES = {"rewind": rewind, "micro-batch": micro_batch, "fencing": fencing}


def main(arguments: Sequence[str]) -> int:
    """Writes or checks the files; returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="write nothing; end with 1 when a file is outdated")
    check = parser.parse_args(arguments).check
    drawn = {FOLDER / f"{name}.svg": draw().svg() for name, draw in PICTURES.items()}
    outdated = [path for path, text in drawn.items() if not path.is_file() or path.read_text() != text]
    if check:
        print(*(f"{path.name} is outdated: run 'make reference'" for path in outdated), sep="\n", file=sys.stderr)
        return int(bool(outdated))
    FOLDER.mkdir(exist_ok=True)
    for path in outdated:
        path.write_text(drawn[path])
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
