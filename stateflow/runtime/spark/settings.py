"""What a run demands of Spark's settings and master; known without starting Spark."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from stateflow.api.graph import SinkNode
from stateflow.errors import ConfigError
from stateflow.storage import Storage

REQUIRED = {
    # Without them a lost executor can make the tasks of one level read two different attempts of a task before.
    "spark.sql.shuffle.orderIndependentChecksum.enabled": "true",
    "spark.sql.shuffle.orderIndependentChecksum.enableFullRetryOnMismatch": "true",
}
"""Checked at start: whoever sets them otherwise is refused."""


def check_required(given: Mapping[str, str | None]) -> None:
    """Raises ConfigError when one of the `given` settings is required to be something else."""
    for key, value in REQUIRED.items():
        if key in given and str(given[key]).lower() != value:
            raise ConfigError("a setting of Spark would let results mix two attempts of a task", setting=key,
                              hint=f"set it to {value}", found=given[key])  # fmt: skip


def check_master(master: str) -> None:
    """Raises ConfigError for a local master that never tries a task again."""
    if master == "local" or (master.startswith("local[") and "," not in master):
        raise ConfigError("a local master without retries fails a batch at the first lost task",
                          hint="use local[N,4] instead of local[N]", master=master)  # fmt: skip


def is_local(master: str) -> bool:
    """Whether all tasks run on this host, in this process's JVM."""
    return master == "local" or master.startswith("local[")


def check_sinks(sinks: Iterable[SinkNode], master: str, shared: bool) -> None:
    """Raises ConfigError for a sink whose files tasks on other hosts would write to their own disks."""
    local = [node.uid for node in sinks if node.sink.host_local]
    if local and not is_local(master) and not shared:
        raise ConfigError("a sink's table is on this host only, but tasks run on others", hint="use a path that all "
                          "hosts see, and set storage.shared=true", sinks=local, master=master)  # fmt: skip


def check_root(storage: Storage, master: str, shared: bool) -> None:
    """Raises ConfigError for a job root that the tasks, or Spark's driver, could not see."""
    if storage.local_path("x") is None and storage.host_local:
        raise ConfigError(
            "a job root in memory is for runs without Spark", hint="use a path", root=storage.uri
        )
    if storage.host_local and not is_local(master) and not shared:
        raise ConfigError("the job root is on this host only, but tasks run on others", hint="use a storage that all "
                          "hosts see; if this path is one, set storage.shared=true", root=storage.uri,
                          master=master)  # fmt: skip
