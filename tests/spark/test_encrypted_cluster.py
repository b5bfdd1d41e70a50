"""A job on a cluster whose connections are authenticated and encrypted, as docs/guides/harden-a-deployment.md says."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.docs.pages import blocks, read, section
from tests.recovery.random_kills import clustered_flights

pytestmark = [pytest.mark.spark, pytest.mark.slow(reason="each run is a driver with Spark, which takes seconds")]


def test_the_settings_of_the_guide_encrypt_a_run_and_a_driver_without_the_secret_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (settings,) = blocks(section(read("docs/guides/harden-a-deployment.md"), "Spark"), "properties")
    folder = tmp_path / "conf"
    folder.mkdir()
    (folder / "spark-defaults.conf").write_text(settings)
    # For the master, the workers, their executors and the drivers of runs.
    monkeypatch.setenv("SPARK_CONF_DIR", str(folder))
    with clustered_flights(tmp_path) as flights:
        flights.end_well(3)
        log = (tmp_path / "cluster" / "master.log").read_text()
        assert re.search("authentication enabled", log) and "authentication disabled" not in log
        flights.job.settings = {**flights.job.settings, "spark__conf__spark.authenticate.secret": "another"}
        flights.job.deliver(4)
        assert flights.job.run().code != 0
