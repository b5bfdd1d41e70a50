"""The tables of a folder sink, read as plain JSON: shares nothing with the code under test."""

from __future__ import annotations

import json
import os
from pathlib import Path

from tests.support.root_files import Document


def rows(table: Path) -> list[Document]:
    texts = [(table / "data" / name).read_text() for name in _paths(table)]
    return [json.loads(line) for text in texts for line in text.splitlines()]


def _paths(table: Path) -> list[str]:
    """The files that the newest version has: from there, each version names the one whose files it adds to."""
    documents = {int(p.name): json.loads(p.read_bytes()) for p in (table / "versions").iterdir()}
    number, found = max(documents), []
    while number >= 0:
        document = documents[number]
        found.append(document.get("paths", []))
        number = document.get("back_to", number - 1)
    return [name for paths in reversed(found) for name in paths]


def tokens(table: Path) -> list[int]:
    versions = [json.loads(p.read_bytes()) for p in sorted((table / "versions").iterdir())]
    return [v["token"] for v in versions if v.get("paths")]


def leftovers(table: Path) -> list[str]:
    named = {n for p in (table / "versions").iterdir() for n in json.loads(p.read_bytes()).get("paths", [])}
    return sorted(set(os.listdir(table / "data")) - named) if (table / "data").is_dir() else []


def by_token(table: Path) -> dict[int, list[Document]]:
    versions = [json.loads(p.read_bytes()) for p in sorted((table / "versions").iterdir())]
    found: dict[int, list[Document]] = {}
    for version in versions:
        for name in version.get("paths", []):
            lines = (table / "data" / name).read_text().splitlines()
            found.setdefault(version["token"], []).extend(json.loads(line) for line in lines)
    return found
