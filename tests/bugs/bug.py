"""A planted bug, and how it is made in a copy of the repository."""

from __future__ import annotations

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
