"""The documents against the code: a name that is missing on either side fails here."""

from __future__ import annotations

import ast
import itertools
import json
import os
import re
import shlex
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import msgspec
import pytest
from matrix import blocks as pin_blocks
from matrix import combinations, requirements_of
from packaging.requirements import Requirement

import stateflow
from stateflow import errors, testing
from stateflow.checkpoint.history import HistoryIndex, LostIndex
from stateflow.checkpoint.log import documents
from stateflow.checkpoint.log.documents import ActionRecord, CheckpointRecord, Spread
from stateflow.checkpoint.log.manifest_files import seal
from stateflow.cli.main import main
from stateflow.config.spark_versions import DELTA, PINNED, TESTED, warn_of_untested
from stateflow.environment import declare
from stateflow.errors import StateflowError
from stateflow.failpoints import NAMES
from stateflow.observability import METRICS
from stateflow.runtime.spark.session import requirements
from stateflow.serving.registry import ServerLease
from stateflow.state import handles
from stateflow.types.key_encoding import encode_key
from stateflow.types.serializers import ValueSerializer
from stateflow_airflow.versions import SUPPORTED, require_supported
from tests.docs.pages import DOCS, ROOT, blocks, code, hadoop_settings, load_module, read, rows, section

_FENCE = re.compile(r"^```.*?^```", re.MULTILINE | re.DOTALL)
PROJECT: dict[str, Any] = tomllib.loads(read("pyproject.toml"))["project"]


def _error_classes(base: type[StateflowError] = StateflowError) -> Iterator[type[StateflowError]]:
    yield base
    for cls in base.__subclasses__():
        if cls.__module__ == errors.__name__:
            yield from _error_classes(cls)


def test_the_runbook_has_a_row_for_each_error_and_no_other() -> None:
    described = {code(row[0])[0]: row[1:3] for row in rows(read("docs/runbook.md")) if code(row[0])}
    assert described == {c.code: [str(c.exit_code), "yes" if c.retryable else "no"] for c in _error_classes()}


def test_the_metrics_are_all_described_with_kind_and_unit() -> None:
    page = rows(section(read("observe-a-job"), "Metrics"))
    described = {code(row[0])[0]: tuple(row[1:]) for row in page if code(row[0]) and len(row) == 4}
    assert described == {name: (about.kind.value, about.unit, about.text) for name, about in METRICS.items()}


# --- Architecture ----------------------------------------------------------------------------------------------------


def test_the_architecture_has_each_layer_and_each_failpoint() -> None:
    text = read("docs/architecture.md")
    contracts = tomllib.loads(read("pyproject.toml"))["tool"]["importlinter"]["contracts"]
    layers = next(contract["layers"] for contract in contracts if contract["id"] == "layers")
    described = [" | ".join(code(row[0])) for row in rows(section(text, "Layers"))]
    assert described[1:] == layers, "the first row is the heading"
    failpoints = [name for row in rows(section(text, "Killed at any step")) for name in code(row[0])]
    assert sorted(failpoints) == sorted(NAMES)


# --- Pictures --------------------------------------------------------------------------------------------------------


def test_every_picture_of_a_page_exists_and_is_described() -> None:
    """MkDocs checks links of Markdown, but not those of elements such as <picture>."""
    shown = set()
    for page in (ROOT / "README.md", *DOCS.rglob("*.md")):
        for element in re.findall(r"<(?:img|source)\s[^>]*>", page.read_text()):
            attributes = dict(re.findall(r'([\w-]+)="([^"]*)"', element))
            path = (page.parent / (attributes.get("src") or attributes["srcset"])).resolve()
            assert path.is_file(), (page, path)
            assert "srcset" in attributes or attributes["alt"], (page, element)
            shown.add(path)
    assert shown


# --- Format ----------------------------------------------------------------------------------------------------------


def test_the_format_has_each_stored_document_with_its_fields_in_order() -> None:
    described = {}
    for part in re.split(r"^##+ ", read("docs/format.md"), flags=re.MULTILINE)[1:]:
        heading, _, body = part.partition("\n")
        if heading.startswith("`"):
            described[code(heading)[0]] = [code(row[0])[0] for row in rows(body) if code(row[0])]
    found = [v for module in (documents, handles) for v in vars(module).values() if isinstance(v, type)]
    classes = {
        c
        for c in {*found, ActionRecord, CheckpointRecord, Spread, HistoryIndex, LostIndex, ServerLease}
        if issubclass(c, handles.Document)
    }
    assert described == {c.__name__: list(c.__struct_fields__) for c in classes - {handles.Document}}


def test_the_format_has_its_version_and_right_examples() -> None:
    text = read("docs/format.md")
    assert re.search(rf"\bformat version {documents.FORMAT_VERSION}\b", text)
    (example,) = blocks(text, "json")
    line, digest = seal(msgspec.convert(json.loads(example), documents.LogEntry))
    assert json.loads(line.splitlines()[0]) == json.loads(example)
    assert digest in text
    integers: ValueSerializer[int] = ValueSerializer(int)
    examples = {'`"AA"`': encode_key(("AA",)), "`-1`": encode_key((-1,)), "`int` state": integers.encode(7)}
    assert [e for e, data in examples.items() if f"{e} is `{data.hex(' ')}`" not in text] == []


# --- Versions and promises -------------------------------------------------------------------------------------------


def test_the_readme_the_pins_and_the_metadata_have_the_versions_that_are_checked() -> None:
    (major, first), (_, last) = requirements.PYTHON
    provider = ("apache-airflow-core", "apache-airflow-providers-apache-spark")
    airflow, of_spark = (", ".join(SUPPORTED[name].tested) for name in provider)
    supported = {
        "Python": ", ".join(f"{major}.{minor}" for minor in range(first, last + 1)),
        "Java": ", ".join(map(str, requirements.JAVA)),
        "Spark": ", ".join(TESTED),
        "Airflow": airflow,
        "its Spark provider": of_spark,
    }
    assert {row[0]: row[1].partition(" (")[0] for row in rows(read("README.md")) if row[0] in supported} == supported
    runs = [row[1] for row in rows(read("docs/design/0032-supported-versions.md")) if len(row) == 4]
    assert all(any(f"Java {version}" in run for run in runs) for version in requirements.JAVA)
    named = [c.rpartition(" ")[2] for c in PROJECT["classifiers"] if "Python :: 3." in c]
    assert ", ".join(named) == supported["Python"]
    pins = dict(re.findall(r"^([\w.-]+)==([^\s;]+)", read("requirements.txt"), re.MULTILINE))
    for extra in ("airflow", "spark"):
        wanted = map(Requirement, PROJECT["optional-dependencies"][extra])
        assert [str(each) for each in wanted if not each.specifier.contains(pins[each.name])] == []
    require_supported(pins)
    assert pins["pyspark"] == PINNED and warn_of_untested(PINNED) == ()
    assert pins["delta-spark"] == DELTA


def test_the_packages_for_hadoop_s_s3_client_are_the_ones_whose_hashes_are_pinned() -> None:
    packages = hadoop_settings()["spark.jars.packages"].split(",")
    assert len(packages) == 2 and set(packages) <= json.loads(read("scripts/jars.lock.json")).keys()


def test_every_combination_of_the_matrix_has_its_pins_and_a_row_in_the_note() -> None:
    note = {row[0] for row in rows(read("docs/design/0032-supported-versions.md"))}
    for name, combination in combinations().items():
        assert f"`{name}`" in note
        pins = requirements_of(combination)
        assert all(f"\n{pin} " in f"\n{pins}" for pin in combination.replace)
        assert all("--hash=sha256:" in pin for pin in pin_blocks(pins).values())


def test_the_readme_has_the_headline_of_the_scoreboard() -> None:
    headline = next(line for line in read("docs/scoreboard.md").splitlines() if line.startswith("**"))
    assert headline.strip("*") in " ".join(read("README.md").split())


# --- Links and design notes ------------------------------------------------------------------------------------------


def _pages() -> list[Path]:
    folders = ("benchmarks", "dags", "docker", "docs", "plugins", "stateflow", "tests")
    return sorted([*ROOT.glob("*.md"), *(page for folder in folders for page in (ROOT / folder).rglob("*.md"))])


def _anchors(page: Path) -> set[str]:
    headings = re.findall(r"^#+ (.+)$", _FENCE.sub("", page.read_text(encoding="utf-8")), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", _pages(), ids=lambda page: str(page.relative_to(ROOT)))
def test_relative_links_lead_to_files_and_headings(page: Path) -> None:
    text = _FENCE.sub("", page.read_text(encoding="utf-8"))
    links = [link for link in re.findall(r"\]\(([^)\s]+)\)", text) if not re.match(r"[a-z]+:", link)]
    for link in links:
        path, _, anchor = link.partition("#")
        target = page.parent / path if path else page
        assert target.exists(), link
        assert not anchor or target.suffix != ".md" or anchor in _anchors(target), link


@pytest.mark.parametrize("note", sorted((DOCS / "design").glob("*.md"))[1:], ids=lambda note: note.stem)
def test_design_notes_have_their_number_and_the_parts_of_the_template(note: Path) -> None:
    parts = re.findall(r"^## \w+", read("docs/design/0000-template.md"), re.MULTILINE)
    text = note.read_text(encoding="utf-8")
    assert text.startswith(f"# {note.name[:4]}: ")
    assert [heading for heading in re.findall(r"^## \w+", text, re.MULTILINE) if heading in parts] == parts


# --- Commands and code of all pages ----------------------------------------------------------------------------------

_PROSE = sorted([*ROOT.glob("*.md"), *DOCS.glob("*.md"), *(DOCS / "guides").glob("*.md")])


def _commands(text: str) -> Iterator[list[str]]:
    """The commands of stateflow that a page has; those in a pipe without what follows."""
    for block in (block for language in ("", "bash", "console", "sh") for block in blocks(text, language)):
        for line in block.replace("\\\n", " ").splitlines():
            if found := re.match(r"(?:! )?stateflow (.*)", line):
                words = shlex.split(found[1].replace("$(", "("), comments=True)
                yield list(itertools.takewhile(lambda word: word not in ("|", ">", "&&", "&", "||", ";"), words))


def _names(command: click.Command, name: str) -> Iterator[str]:
    if not isinstance(command, click.Group):
        yield name
        return
    for part, each in command.commands.items():
        yield from _names(each, f"{name} {part}")


def test_each_command_is_on_a_page_for_users() -> None:
    text = "\n".join(page.read_text(encoding="utf-8") for page in _PROSE if page.name != "CHANGELOG.md")
    names = list(_names(main, "stateflow"))
    assert len(names) > 30
    assert [name for name in names if not re.search(rf"{name}\b", text)] == []


_ERROR_CODE = re.compile(
    r"(?:\b(?:refused|fails?|failed|ends?|ended)(?: (?:the|at|once|login|run|it|batch))* with (?:the (?:error|code) )?"
    r"|\bthe (?:error|code) |\berror \[)`?([a-z]+(?:-[a-z]+)*)[`\]]"
)
"""The words with which a page says that something ends with the code of an error."""


def test_each_error_code_that_a_page_names_exists() -> None:
    codes = {kind.code for kind in _error_classes()}
    plugin = "".join(map(_text, (ROOT / "plugins" / "stateflow_airflow").rglob("*.py")))
    of_airflow = set(re.findall(r'^ +"([a-z]+(?:-[a-z]+)+)",$', plugin, re.MULTILINE))
    named = {(page.name, code) for page in _PROSE for code in _ERROR_CODE.findall(" ".join(_text(page).split()))}
    assert len(named) > 30
    # The runbook has a placeholder.
    assert {each for each in named if each[1] not in codes | of_airflow} == {("runbook.md", "code")}


def _text(page: Path) -> str:
    return page.read_text(encoding="utf-8")


@pytest.mark.parametrize("page", _PROSE, ids=lambda page: page.stem)
def test_each_command_can_be_parsed_and_each_python_block_compiled(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    for words in _commands(text):
        command: click.Command = main
        # With the parent: a command keeps the help option that it is first asked for, also in later tests.
        context = click.Context(main, **main.context_settings)
        while isinstance(command, click.Group):
            name, *words = words
            context, command = click.Context(command, parent=context), command.commands[name]
        try:
            command.make_context(command.name, words, parent=context)
        except click.BadParameter as refused:
            # A file that the user has.
            assert refused.param is not None and isinstance(refused.param.type, click.Path), (words, refused)
    for block in blocks(text, "python"):
        compile(block, page.name, "exec", ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)


_WITH_A_JOB = frozenset(
    "bootstrap-state change-state debug-one-key look-into-state move-state query-state run-continuously test-a-job "
    "test-a-new-version upgrade-with-a-savepoint write-a-connector".split()
)
"""Guides whose code continues a job, or a file, that their tests have."""
_WITH_CODE = [page for page in _PROSE if blocks(page.read_text(encoding="utf-8"), "python")]


@pytest.mark.long(reason="one page has a DAG, for which Airflow is imported")
@pytest.mark.parametrize(
    "page", [page for page in _WITH_CODE if page.stem not in _WITH_A_JOB], ids=lambda page: page.stem
)
def test_the_code_of_each_page_runs_and_its_job_can_be_declared(
    page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("CATALOG_CREDENTIAL", "FLIGHTS_PASSWORD", "KAFKA_PASSWORD", "REGISTRY_PASSWORD"):
        monkeypatch.setenv(name, "none")
    (tmp_path / "kafka-ca.pem").write_text("certificates\n")
    text = "\n".join(blocks(page.read_text(encoding="utf-8"), "python")).replace("/etc/ssl", str(tmp_path))
    module = load_module(tmp_path / f"page_{page.stem.replace('-', '_')}.py", text)
    if build := getattr(module, "build", None):
        names = re.findall(r'env\.parameter\("(\w+)"', text)
        declare(build, "job", ({f"job.{name}": "broker:9092" for name in names},))


# --- Site and walks --------------------------------------------------------------------------------------------------


def _run(*command: str) -> str:
    environment = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, env=environment)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]
    return done.stdout


@pytest.mark.slow(reason="builds the whole site, with the reference of the API")
def test_the_site_is_built_without_a_warning(tmp_path: Path) -> None:
    """MkDocs is strict: a broken link, a missing page or an unknown parameter in a docstring fails."""
    _run(sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(tmp_path))
    assert "stateflow run" in (tmp_path / "reference" / "cli.html").read_text()
    pages = "".join(page.read_text() for page in (tmp_path / "reference" / "api").glob("*.html"))
    public = [getattr(package, name) for package in (stateflow, testing) for name in package.__all__]
    assert [p.__name__ for p in public if f'id="{p.__module__}.{p.__name__}"' not in pages] == []


@pytest.mark.slow(reason="records each call of four walks through the code")
def test_each_walk_enters_files() -> None:
    walks = json.loads(_run(sys.executable, "scripts/walks.py"))
    assert len(walks) == 4 and all(walk["files"] > 10 for walk in walks.values())
