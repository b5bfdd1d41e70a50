"""Settings of Spark and of a job in files, as spark-submit and the library read them."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stateflow.config.sources import read_toml
from stateflow_airflow.failures import PermanentFailure
from stateflow_airflow.spark import hide_conf, settings_file
from tests.airflow.fakes import fails

_TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)


@given(st.dictionaries(_TEXTS, _TEXTS, max_size=5))
def test_any_setting_comes_back_from_its_file(
    tmp_path_factory: pytest.TempPathFactory, settings: dict[str, str]
) -> None:
    path = tmp_path_factory.mktemp("settings") / "settings.toml"
    path.write_text(settings_file(settings))
    assert read_toml(path) == settings


def test_the_other_options_keep_their_place(tmp_path: Path) -> None:
    options = ["--master", "local[2]", "--conf", "a=b=c", "--verbose", "--conf", "d=", "--name", "x"]
    kept, files = hide_conf(options, tmp_path)
    file = str(tmp_path / "spark.conf")
    assert kept == [
        "--master",
        "local[2]",
        "--verbose",
        "--name",
        "x",
        "--properties-file",
        file,
        "--load-spark-defaults",
    ]
    assert files == {"spark.conf": "a=b=c\nd=\n"}
    assert hide_conf(["--name", "x"], tmp_path) == (["--name", "x"], {})


def test_a_file_of_the_author_comes_first(tmp_path: Path) -> None:
    (tmp_path / "own.conf").write_text("spark.a 1")
    options = ["--properties-file", str(tmp_path / "own.conf"), "--conf", "spark.b=2"]
    kept, files = hide_conf(options, tmp_path)
    assert kept == ["--properties-file", str(tmp_path / "spark.conf")]
    assert files == {"spark.conf": "spark.a 1\nspark.b=2\n"}
    with fails(PermanentFailure, "config", properties_file="/nothing"):
        hide_conf(["--properties-file", "/nothing", "--conf", "spark.b=2"], tmp_path)


@pytest.mark.slow(reason="starts Spark with spark-submit")
@pytest.mark.spark
def test_spark_reads_what_was_given(tmp_path: Path) -> None:
    """Special characters of Java's properties, and settings of spark-defaults.conf."""
    given = {
        "spark.x.plain": "a b=c:d",
        "spark.x.slash": "C:\\new\\u0041",
        "spark.x.lines": "1\n2\t3",
        "spark.x y": "#!ä",
    }
    (tmp_path / "spark-defaults.conf").write_text("spark.x.default 7\n")
    options, files = hide_conf([word for k, v in given.items() for word in ("--conf", f"{k}={v}")], tmp_path)
    (tmp_path / "spark.conf").write_text(files["spark.conf"])
    names = [*given, "spark.x.default"]
    program = tmp_path / "program.py"
    program.write_text(
        "from pyspark.sql import SparkSession\n"
        "conf = SparkSession.builder.master('local[1]').getOrCreate().sparkContext.getConf()\n"
        f"print('found', [conf.get(n) for n in {names!r}])\n"
    )
    submit = Path(sys.executable).parent / "spark-submit"
    done = subprocess.run(
        [str(submit), *options, str(program)],
        env={**os.environ, "SPARK_CONF_DIR": str(tmp_path)},
        capture_output=True,
        text=True,
        check=True,
    )
    assert f"found {[*given.values(), '7']!r}" in done.stdout, done.stdout + done.stderr
