"""The documents against the code: a name that is missing on either side fails here."""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import msgspec
import pytest

from stateflow import errors
from stateflow.checkpoint.log import documents
from stateflow.checkpoint.log.records import ActionRecord, CheckpointRecord, Spread
from stateflow.checkpoint.log.sealed_json import seal
from stateflow.errors import StateflowError
from stateflow.failpoints import NAMES
from stateflow.observability.metrics import METRICS
from stateflow.runtime.spark import versions
from stateflow.state import handles
from stateflow.types.serializers import ValueSerializer, encode_key
from stateflow_airflow.provider_info import get_provider_info
from stateflow_airflow.versions import SUPPORTED, require_supported

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"

_CODE = re.compile(r"`([^`]+)`")
_LINK = re.compile(r"\]\(([^)\s]+)\)")
_FENCE = re.compile(r"^```.*?^```", re.MULTILINE | re.DOTALL)


def _read(path: Path) -> str:
    return path.read_text(encoding="utf-8")


def _rows(text: str) -> list[list[str]]:
    """Cells of every line that belongs to a table, heads and rules left out."""
    lines = [line for line in text.splitlines() if line.startswith("|")]
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    return [row for row in rows if not set("".join(row)) <= set("-: ")]


def _named(cell: str) -> list[str]:
    return _CODE.findall(cell)


# --- Errors ----------------------------------------------------------------------------------------------------------


def _error_classes(base: type[StateflowError] = StateflowError) -> Iterator[type[StateflowError]]:
    yield base
    for cls in base.__subclasses__():
        if cls.__module__ == errors.__name__:
            yield from _error_classes(cls)


def test_the_runbook_has_a_row_for_each_error_and_none_besides() -> None:
    rows = {_named(row[0])[0]: row[1:3] for row in _rows(_read(DOCS / "runbook.md")) if _named(row[0])}
    assert rows == {c.code: [str(c.exit_code), "yes" if c.retryable else "no"] for c in _error_classes()}


# --- Architecture ----------------------------------------------------------------------------------------------------


def test_modules_that_the_architecture_names_exist() -> None:
    named = {n for n in _named(_FENCE.sub("", _read(DOCS / "architecture.md"))) if n.endswith(".py")}
    assert named
    assert [n for n in sorted(named) if not (ROOT / "stateflow" / n).is_file()] == []


def test_each_layer_of_the_package_is_in_the_architecture() -> None:
    text = _read(DOCS / "architecture.md")
    cells = [row[0] for row in _rows(text[text.index("## Layers") : text.index("## Life")])]
    described = {name for cell in cells for name in _named(cell)}
    paths = (ROOT / "stateflow").iterdir()
    there = {p.stem for p in paths if p.suffix == ".py" or (p / "__init__.py").is_file()}
    assert described == {name for name in there if not name.startswith("__")}


def test_the_architecture_has_each_place_where_a_run_can_die() -> None:
    text = _read(DOCS / "architecture.md")
    cells = [row[0] for row in _rows(text[text.index("## Killed at any step") :])]
    described = [name for cell in cells for name in _named(cell)]
    assert sorted(described) == sorted(NAMES)


# --- Format ----------------------------------------------------------------------------------------------------------


def _stored() -> list[type[msgspec.Struct]]:
    found = [v for module in (documents, handles) for v in vars(module).values() if isinstance(v, type)]
    return [
        c
        for c in {*found, ActionRecord, CheckpointRecord, Spread}
        if issubclass(c, handles.Document) and c is not handles.Document
    ]


def _described_fields() -> dict[str, list[str]]:
    """Fields in the tables of format.md, by the class that the heading above names."""
    result = {}
    for section in re.split(r"^##+ ", _read(DOCS / "format.md"), flags=re.MULTILINE)[1:]:
        heading, _, body = section.partition("\n")
        if heading.startswith("`"):
            result[_named(heading)[0]] = [_named(row[0])[0] for row in _rows(body) if _named(row[0])]
    return result


def test_the_format_has_each_stored_document_with_its_fields_in_order() -> None:
    assert _described_fields() == {c.__name__: list(c.__struct_fields__) for c in _stored()}


def test_the_format_names_its_version() -> None:
    assert re.search(rf"\bformat version {documents.FORMAT_VERSION}\b", _read(DOCS / "format.md"))


def test_the_example_of_a_log_entry_is_one_and_has_its_hash() -> None:
    text = _read(DOCS / "format.md")
    block = re.search(r"^```json\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
    assert block
    entry = msgspec.convert(json.loads(block[1]), documents.LogEntry)
    line, digest = seal(entry)
    assert json.loads(line.splitlines()[0]) == json.loads(block[1])
    assert digest in text


def test_the_examples_of_bytes_are_right() -> None:
    text = _read(DOCS / "format.md")
    examples = {'`"AA"`': encode_key(("AA",)), "`-1`": encode_key((-1,)), "`int` state": ValueSerializer(int).encode(7)}
    assert [e for e, data in examples.items() if f"{e} is `{data.hex(' ')}`" not in text] == []


# --- Settings --------------------------------------------------------------------------------------------------------

_TYPES = {
    "str": "text",
    "Choice": "text",
    "int": "whole number",
    "Count": "whole number, also 0",
    "bool": "true or false",
    "timedelta": "duration",
    "Delay": "duration, also `0s`",
    "float": "number",
}


def test_the_metrics_are_all_described_with_kind_and_unit() -> None:
    page = _rows(_read(DOCS / "guides" / "observe-a-job.md"))
    described = {_named(r[0])[0]: tuple(r[1:]) for r in page if _named(r[0]) and len(r) == 4}
    assert described == {name: (about.kind.value, about.unit, about.text) for name, about in METRICS.items()}


# --- README and links ------------------------------------------------------------------------------------------------


def _supported() -> Mapping[str, str]:
    (major, first), (_, last) = versions.PYTHON
    return {
        "Python": ", ".join(f"{major}.{minor}" for minor in range(first, last + 1)),
        "Java": ", ".join(map(str, versions.JAVA)),
        "Spark": versions.SPARK,
        "Airflow": _range("apache-airflow-core"),
        "its Spark provider": _range("apache-airflow-providers-apache-spark"),
    }


def _range(distribution: str) -> str:
    first, beyond = SUPPORTED[distribution]
    return f"from {first}, before {beyond}"


@pytest.mark.parametrize("what", ["Python", "Java", "Spark", "Airflow", "its Spark provider"])
def test_the_readme_names_the_versions_that_are_checked(what: str) -> None:
    row = next(r for r in _rows(_read(ROOT / "README.md")) if r[0] == what)
    assert row[1].partition(" (")[0] == _supported()[what]


def test_the_versions_that_are_pinned_are_among_those_that_are_supported() -> None:
    project = _project()
    pins = dict(re.findall(r"^([\w.-]+)==([^\s;]+)", _read(ROOT / "requirements.txt"), re.MULTILINE))
    extra = dict(line.split("==") for line in project["optional-dependencies"]["airflow"])
    assert extra.items() <= pins.items()
    for found in (pins, {**extra, "apache-airflow-core": extra["apache-airflow"]}):
        require_supported(found)
    versions.check_spark(pins["pyspark"])
    named = [c.rpartition(" ")[2] for c in project["classifiers"] if "Python :: 3." in c]
    assert ", ".join(named) == _supported()["Python"]


def _project() -> dict[str, Any]:
    project: dict[str, Any] = tomllib.loads(_read(ROOT / "pyproject.toml"))["project"]
    return project


def test_nothing_is_promised_that_this_version_lacks() -> None:
    _, _, rest = _read(ROOT / "CHANGELOG.md").partition("**Not yet**: ")
    assert rest.startswith("windows and joins")
    project = _project()
    promises = [project["description"], *project["keywords"], get_provider_info()["description"]]
    assert [p for p in promises if re.search("window|join", p)] == []
    assert set(project["optional-dependencies"]) == {
        "airflow",
        "azure",
        "delta",
        "gcs",
        "hdfs",
        "s3",
        "spark",
        "telemetry",
    }


def _documents() -> list[Path]:
    folders = ("benchmarks", "dags", "docker", "docs", "plugins", "stateflow", "tests")
    found = [*ROOT.glob("*.md"), *(p for folder in folders for p in (ROOT / folder).rglob("*.md"))]
    return sorted(found)


def test_the_readme_has_the_headline_of_the_scoreboard() -> None:
    headline = next(line for line in _read(DOCS / "scoreboard.md").splitlines() if line.startswith("**"))
    assert headline.strip("*") in " ".join(_read(ROOT / "README.md").split())


def test_relative_links_lead_to_files() -> None:
    broken = []
    for path in _documents():
        for target in _LINK.findall(_FENCE.sub("", _read(path))):
            if re.match(r"[a-z]+:|#", target):
                continue
            if not (path.parent / target.partition("#")[0]).exists():
                broken.append(f"{path.relative_to(ROOT)}: {target}")
    assert broken == []


def test_design_notes_have_their_number_and_the_parts_of_the_template() -> None:
    parts = re.findall(r"^## \w+", _read(DOCS / "design" / "0000-template.md"), re.MULTILINE)
    for path in sorted((DOCS / "design").glob("*.md"))[1:]:
        text = _read(path)
        assert text.startswith(f"# {path.name[:4]}: "), path.name
        assert [h for h in re.findall(r"^## \w+", text, re.MULTILINE) if h in parts] == parts, path.name
