"""The pages of the documentation, and their code as modules."""

from __future__ import annotations

import importlib.util
import re
import shlex
import sys
from itertools import pairwise
from pathlib import Path
from types import ModuleType

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"


def read(page: str) -> str:
    """The text of a page by its path in the repository; of a guide by its name alone."""
    path = ROOT / page if "." in page else DOCS / "guides" / f"{page}.md"
    return path.read_text(encoding="utf-8")


def section(text: str, heading: str) -> str:
    found = re.search(rf"^## {heading}$(.*?)(?=^## |\Z)", text, re.MULTILINE | re.DOTALL)
    assert found, heading
    return found[1]


def blocks(text: str, language: str = "") -> list[str]:
    """The fenced blocks of a language; without a language, those to type into a terminal."""
    # All of them at once: the end of one block looks like the beginning of another.
    fenced = re.findall(r"^```(\w*)\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    return [block for found, block in fenced if found == language]


def code(text: str) -> list[str]:
    """Names that a text has between backticks."""
    return re.findall(r"`([^`]+)`", text)


def hadoop_settings() -> dict[str, str]:
    """Spark's settings for Hadoop's S3 client, of which the guide of buckets has two blocks."""
    found = section(read("keep-tables-in-a-bucket"), "Formats that only Spark reads, and names in a catalog")
    words = shlex.split(" ".join(blocks(found, "sh")).replace("\\\n", " "))
    given = [word for option, word in pairwise(words) if option == "--set"]
    return dict(word.removeprefix("spark.conf.").split("=", 1) for word in given)


def rows(text: str) -> list[list[str]]:
    lines = [line for line in text.splitlines() if line.startswith("|")]
    found = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    return [row for row in found if not set("".join(row)) <= set("-: ")]


def load_module(path: Path, text: str, right: str = "", wrong: str = "") -> ModuleType:
    """Writes a text with `right` replaced by `wrong`, and imports it; its classes can be pickled."""
    assert right in text
    path.write_text(text.replace(right, wrong) if right else text)
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = module
    spec.loader.exec_module(module)
    return module
