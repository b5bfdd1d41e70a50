"""Pins and lists the packages of the combinations of versions in ``tests/matrix/combinations.toml``.

``lock`` writes the packages in which a combination differs from ``requirements.txt`` into ``tests/matrix/NAME.txt``;
``requirements NAME`` prints all pins of a combination, with their hashes; ``show NAME`` prints its values for
``matrix.sh``, one ``NAME=value`` a line.
"""

from __future__ import annotations

import argparse
import os
import re
import shlex
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import msgspec

ROOT = Path(__file__).resolve().parent.parent
FOLDER = ROOT / "tests" / "matrix"
_PINNED = ("requirements.txt", "requirements-dev.txt")


@dataclass(frozen=True)
class Combination:
    """Versions that are tested together. The fields are explained in ``combinations.toml``."""

    name: str
    tests: str
    replace: tuple[str, ...] = ()
    without: tuple[str, ...] = ()
    python: str = ""
    java: int = 0
    kafka: str | None = None

    @property
    def pins(self) -> Path:
        """The file with the pins in which it differs."""
        return FOLDER / f"{self.name}.txt"


def combinations() -> dict[str, Combination]:
    """Returns all combinations by name."""
    found = tomllib.loads((FOLDER / "combinations.toml").read_text())
    return {name: msgspec.convert({**fields, "name": name}, Combination) for name, fields in found.items()}


def blocks(text: str) -> dict[str, str]:
    """Returns the pins in the text of a requirements file, with their hashes, by package."""
    found = re.findall(r"^[A-Za-z0-9][^\n]*(?:(?<=\\)\n[^\n]*)*\n", text, re.MULTILINE)
    return {re.split(r"[=\s;\[]", pin, maxsplit=1)[0].lower(): pin for pin in found}


def pinned() -> dict[str, str]:
    """Returns the pins of ``.venv`` by package."""
    return {name: pin for file in _PINNED for name, pin in blocks((ROOT / file).read_text()).items()}


def requirements_of(combination: Combination) -> str:
    """Returns the text of a requirements file with all pins of a combination."""
    own = blocks(combination.pins.read_text()) if combination.replace else {}
    return "".join(pin for name, pin in sorted((pinned() | own).items()) if name not in combination.without)


def differing(compiled: Mapping[str, str], base: Mapping[str, str]) -> str:
    """Returns the text of the pins that are new, or other than in `base`."""
    return "".join(pin for name, pin in sorted(compiled.items()) if base.get(name) != pin)


def lock(combination: Combination) -> None:
    """Resolves a combination as close to ``requirements.txt`` as possible, and writes the pins that differ."""
    with tempfile.TemporaryDirectory() as folder:
        overrides, output = Path(folder) / "overrides.txt", Path(folder) / "output.txt"
        overrides.write_text("\n".join(combination.replace) + "\n")
        # uv keeps the versions that the output file has, wherever the overrides permit.
        output.write_text((ROOT / "requirements.txt").read_text())
        options = ["--universal", "--python-version", "3.11", "--no-annotate", "--no-header", "--generate-hashes"]
        command = ["uv", "pip", "compile", "--quiet", *options, "--override", str(overrides)]
        environment = {**os.environ, "UV_SYSTEM_CERTS": os.environ.get("UV_SYSTEM_CERTS", "1")}
        subprocess.run([*command, str(ROOT / "requirements.in"), "-o", str(output)], check=True, env=environment)
        found = differing(blocks(output.read_text()), blocks((ROOT / "requirements.txt").read_text()))
    combination.pins.write_text(f"# Written by `make requirements`.\n{found}")


def shown(combination: Combination) -> str:
    """Returns the values that ``matrix.sh`` needs, as assignments of a shell."""
    values = {
        "WANTED_PYTHON": combination.python,
        "WANTED_JAVA": str(combination.java or ""),
        "TESTS": combination.tests,
        "KAFKA": "default" if combination.kafka is None else combination.kafka,
    }
    return "".join(f"{name}={shlex.quote(value)}\n" for name, value in values.items())


def main() -> int:
    """Runs a command; returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("command", choices=["lock", "requirements", "show", "names"])
    parser.add_argument("name", nargs="?", default="")
    given = parser.parse_args()
    known = combinations()
    if given.command in ("requirements", "show") and given.name not in known:
        print(f"no combination {given.name!r}; there are: {', '.join(known)}", file=sys.stderr)
        return 2
    match given.command:
        case "lock":
            for combination in known.values():
                if combination.replace:
                    lock(combination)
        case "names":
            print("\n".join(known))
        case "requirements":
            print(requirements_of(known[given.name]), end="")
        case _:
            print(shown(known[given.name]), end="")
    return 0


if __name__ == "__main__":
    sys.exit(main())
