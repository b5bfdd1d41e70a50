"""The modules of a job: which files they are, in this process and in a worker that is started in another folder."""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from stateflow.errors import JobDefinitionError
from stateflow.runtime.job_loader import _dumps, job_modules, load_job
from tests.support.errors import raises
from tests.support.processes import ROOT

_BUILD = "\ndef build(env): ...\n"


@pytest.fixture(autouse=True)
def _as_before() -> Iterator[None]:
    """Other tests find the modules that they have imported."""
    path, finders, loaded = list(sys.path), list(sys.meta_path), set(sys.modules)
    yield
    job_modules.clear()
    sys.path[:], sys.meta_path[:] = path, finders
    for name in set(sys.modules) - loaded:
        del sys.modules[name]


def _write(folder: Path, files: Mapping[str, str]) -> Path:
    for name, text in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return folder


def _in_worker(function: object, cwd: Path) -> str:
    """What a function returns in a worker that Spark would start in `cwd`, which Python then imports from first."""
    program = (
        "import sys; from pyspark.serializers import CloudPickleSerializer as S;"
        "print(S().loads(sys.stdin.buffer.read())())"
    )
    (cwd / "worker.py").write_text(program)
    done = subprocess.run(
        [sys.executable, "-m", "worker"], input=_dumps(None, function), cwd=cwd,
        env={**os.environ, "PYTHONPATH": str(ROOT)}, capture_output=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr.decode()
    return done.stdout.decode().strip()


_FORMS = {
    "the file itself": {"pay.py": "FOUND = 'right'\ndef found(): return FOUND"},
    "a module in a function": {
        "pay.py": "def found():\n  import helper\n  return helper.FOUND",
        "helper.py": "FOUND = 'right'",
    },
    "a package": {
        "pay.py": "from helper.a import found",
        "helper/__init__.py": "from . import b",
        "helper/a.py": "from .deep.c import FOUND\nfrom .b import X\ndef found(): return FOUND",
        "helper/b.py": "X = 1",
        "helper/deep/__init__.py": "",
        "helper/deep/c.py": "FOUND = 'right'",
    },
    "a computed name": {
        "pay.py": "import importlib\nH = importlib.import_module('hel' + 'per')\ndef found(): return H.FOUND",
        "helper.py": "FOUND = 'right'",
    },
    "classes": {
        "pay.py": "from helper import Row, Kind, Data\nR = Row(1, Kind.A, Data('right'))\ndef found(): return R.c.d",
        "helper.py": "import enum, msgspec\nfrom dataclasses import dataclass\nclass Kind(enum.Enum): A = 'a'\n"
        "@dataclass\nclass Data: d: str\nclass Row(msgspec.Struct):\n  a: int\n  b: Kind\n  c: Data",
    },
    "the name of an installed module": {
        "pay.py": "import pip\ndef found(): return pip.FOUND",
        "pip.py": "FOUND = 'right'",
    },
}


@pytest.mark.long(reason="starts a process that imports a job")
@pytest.mark.parametrize("form", _FORMS)
def test_a_worker_imports_the_modules_of_the_jobs_folder(form: str, tmp_path: Path) -> None:
    files = _FORMS[form]
    job = _write(tmp_path / "v2", {**files, "pay.py": files["pay.py"] + _BUILD})
    decoys = dict.fromkeys(("pay.py", "helper.py", "other.py"), "FOUND = 'wrong'\ndef found(): return 'wrong'\n")
    elsewhere = _write(tmp_path / "x", decoys | {"helper/__init__.py": decoys["helper.py"]})
    module = load_job(job / "pay.py")
    assert module.found() == "right"
    assert _in_worker(module.found, elsewhere) == "right"


@pytest.mark.long(reason="starts a process that imports a job")
def test_a_job_in_a_package_may_use_relative_imports(tmp_path: Path) -> None:
    _write(
        tmp_path / "shop",
        {
            "__init__.py": "",
            "jobs/__init__.py": "",
            "jobs/pay.py": f"from ..rates import found\nfrom shop.rates import FOUND{_BUILD}",
            "rates.py": "FOUND = 'right'\ndef found(): return FOUND",
        },
    )
    module = load_job(tmp_path / "shop" / "jobs" / "pay.py")
    assert _in_worker(module.found, _write(tmp_path / "x", {"rates.py": "", "pay.py": ""})) == "right"


def test_another_job_gets_its_own_modules_and_an_edited_one_its_new_text(tmp_path: Path) -> None:
    text = f"import helper\ndef found(): return helper.FOUND{_BUILD}"
    for name in ("a", "b"):
        _write(tmp_path / name, {"pay.py": text, "helper.py": f"FOUND = '{name}'"})
    assert [load_job(tmp_path / name / "pay.py").found() for name in "aba"] == ["a", "b", "a"]
    digest = job_modules.digest
    _write(tmp_path / "a", {"helper.py": "FOUND = 'c'"})
    module = load_job(tmp_path / "a" / "pay.py")
    assert module.found() == "c" and job_modules.digest != digest
    assert _in_worker(module.found, _write(tmp_path / "x", {"helper.py": ""})) == "c"


def test_a_worker_keeps_its_classes_when_the_driver_imports_one_more_module(tmp_path: Path) -> None:
    late = "def late(): return importlib.import_module('la' + 'ter')"
    text = f"import importlib\nclass Row: ...\ndef kind(): return Row\n{late}{_BUILD}"
    module = load_job(_write(tmp_path / "a", {"pay.py": text, "later.py": ""}) / "pay.py")
    before = _dumps(None, module.kind)
    module.late()
    sent = tmp_path / "sent"
    sent.write_bytes(pickle.dumps([before, _dumps(None, module.kind), before]))
    program = (
        "import pickle; from pathlib import Path; from pyspark.serializers import CloudPickleSerializer as S;"
        f"kinds = [S().loads(each)() for each in pickle.loads(Path({str(sent)!r}).read_bytes())];"
        "print(len(set(kinds)))"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=tmp_path, env={**os.environ, "PYTHONPATH": str(ROOT)}, capture_output=True,
        check=False,
    )  # fmt: skip
    assert done.stdout.split() == [b"1"], done.stderr.decode()


def test_the_hash_is_of_names_and_texts_and_not_of_folders(tmp_path: Path) -> None:
    files = {"pay.py": f"import helper{_BUILD}", "helper.py": "A = 1", "unused.py": "X = 1"}
    hashes = []
    for name, more in (("a", {}), ("b", {"unused.py": "X = 2"}), ("c", {"helper.py": "A = 2"})):
        load_job(_write(tmp_path / name, {**files, **more}) / "pay.py")
        hashes.append(job_modules.digest)
    assert hashes[0] == hashes[1] != hashes[2] and len(hashes[0]) == 32


def test_a_name_that_two_modules_could_have_is_refused(tmp_path: Path) -> None:
    for name in ("calendar", "time", "msgspec", "click"):
        job = _write(tmp_path / name, {"pay.py": f"import {name}{_BUILD}", f"{name}.py": "A = 1"})
        with raises(JobDefinitionError, module=name, path=str(job / f"{name}.py")):
            load_job(job / "pay.py")
        # What lies there and is not imported is not the job's.
        load_job(_write(job, {"pay.py": _BUILD}) / "pay.py")


@pytest.mark.parametrize(
    ("text", "line", "named"),
    [
        ("import json\nimport rate_list", 2, "rate_list.py"), ("import helper", 1, "missing_one"),
        ("from . import helper", 1, "__init__.py"), ("from helper import nothing", 1, "nothing"),
    ],
)  # fmt: skip
def test_an_import_that_fails_names_file_line_and_a_fix(text: str, line: int, named: str, tmp_path: Path) -> None:
    helper = "\nimport missing_one" if "missing" in named else "A = 1"
    job = _write(tmp_path, {"pay.py": text + _BUILD, "helper.py": helper})
    where = job / "helper.py", 2
    with raises(JobDefinitionError, path=str(job / "pay.py")) as refused:
        load_job(job / "pay.py")
    file, at = where if "missing" in named else (job / "pay.py", line)
    assert refused.value.facts["where"] == f"{file}:{at}"
    assert named in str(refused.value)


def test_modules_that_are_too_large_to_send_are_refused(tmp_path: Path) -> None:
    job = _write(tmp_path, {"pay.py": f"import helper{_BUILD}", "helper.py": f"A = '{'x' * (17 << 20)}'"})
    with raises(JobDefinitionError, limit_bytes=16 << 20):
        load_job(job / "pay.py")
