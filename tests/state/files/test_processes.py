"""The owner of a local file is found by its process id and its start time."""

from __future__ import annotations

import os
import subprocess

import pytest

from stateflow.state.uploads import is_running, own_label
from tests.support.processes import wait_for


@pytest.mark.parametrize("label", ["", "_", "{pid}", "{pid}_1", f"{2**31}_1", "notes", "../1_1"])
def test_a_reused_id_or_no_label_is_no_running_process(label: str) -> None:
    assert not is_running(label.format(pid=os.getpid()))


def test_a_label_is_of_one_process_until_that_process_is_a_zombie() -> None:
    child = subprocess.Popen(["sleep", "60"])
    with open(f"/proc/{child.pid}/stat") as file:
        label = f"{child.pid}_{file.read().rpartition(')')[2].split()[19]}"
    assert is_running(own_label()) and is_running(label)
    assert not is_running(f"{child.pid}_{own_label().partition('_')[2]}")
    child.kill()
    # Its entry below /proc exists until `wait`.
    wait_for(lambda: not is_running(label), lambda: "a zombie")
    assert os.path.exists(f"/proc/{child.pid}")
    child.wait()
