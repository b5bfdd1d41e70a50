"""The planted bugs of `bugs.txt`, and how one is made in a copy of the repository."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]


@dataclass(frozen=True)
class Bug:
    """A mistake in one place of the code.

    Attributes:
        name: what is wrong, as a short phrase with hyphens.
        file: relative to the repository.
        old: text that occurs once in the file.
        new: the text with the mistake.
        tests: ids of tests, or files with ``::`` and a class or function; each must fail.
    """

    name: str
    file: str
    old: str
    new: str
    tests: tuple[str, ...]

    def plant(self, repository: Path) -> None:
        """Makes the mistake.

        Raises:
            LookupError: the old text does not occur exactly once.
        """
        path = repository / self.file
        text = path.read_text()
        if (number := text.count(self.old)) != 1:
            raise LookupError(f"{self.name}: {self.file} contains the text to replace {number} times, not once")
        path.write_text(text.replace(self.old, self.new))


_BUG = re.compile(r"^  (\S+)\n((?:    .+\n)+)((?:  -.*\n)+)((?:  \+.*\n)+)", re.MULTILINE)
"""A name, tests that are indented further, and lines of a diff."""


def _read_bugs(text: str) -> Iterator[Bug]:
    for block in text.split("\n\n"):
        file, _, bugs = f"{block}\n".partition("\n")
        if rest := _BUG.sub("", bugs).strip():
            raise ValueError(f"these lines of {file} are not bugs:\n{rest}")
        for name, tests, old, new in _BUG.findall(bugs):
            yield Bug(name, file, _code(old), _code(new), tuple(tests.split()))


def _code(lines: str) -> str:
    return "\n".join(line[4:] for line in lines.splitlines())


BUGS = tuple(_read_bugs((ROOT / "tests" / "bugs" / "bugs.txt").read_text()))
