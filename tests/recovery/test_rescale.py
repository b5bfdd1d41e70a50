"""Runs at one parallelism after another, with and without kills in the batch that lays the state out anew."""

from __future__ import annotations

import pytest

from tests.support import root_files
from tests.support.job_fixture import AccountsJob

CHAIN = (1, 3, 5, 2)
OPERATORS = ("balances", "turnovers")


@pytest.mark.parametrize("failpoint", ["", "task.restored:3", "task.snapshot:2", "task.uploaded:1", "batch.reported:1"])
def test_a_job_goes_on_at_any_parallelism(box: AccountsJob, failpoint: str) -> None:
    box.settings = {"checkpoints__retained": 2}
    for number, parallelism in enumerate(CHAIN):
        box.deliver(30 * (number + 1))
        if failpoint and number:
            _kill(box, failpoint, parallelism)
        box.finish(parallelism=parallelism)
        assert _layout(box) == {uid: (parallelism, list(range(parallelism))) for uid in OPERATORS}
        box.check_results()
        box.check_clean()


def test_a_batch_without_a_row_for_most_subtasks_lays_all_of_them_out(box: AccountsJob) -> None:
    box.deliver(50)
    box.finish(parallelism=2)
    box.deliver(51)
    box.finish(parallelism=7)
    assert {len(subtasks) for _, subtasks in _layout(box).values()} == {7}
    box.check_results()
    box.check_clean()


def test_after_a_kill_another_parallelism_may_be_chosen(box: AccountsJob) -> None:
    box.deliver(40)
    box.finish(parallelism=4)
    box.deliver(70)
    _kill(box, "task.uploaded:3", 6)
    box.finish(parallelism=4)
    box.check_results()
    box.check_clean()


def test_full_bytes_count_a_shared_file_once(box: AccountsJob) -> None:
    box.deliver(50)
    box.finish(parallelism=1)
    box.deliver(60)
    box.finish(parallelism=3)
    manifest = root_files.read_manifest(box.root, root_files.head(box.root).doc["manifest"])
    handles = list(root_files.handles(manifest))
    sizes = {h["key"]: h["size"] for h in handles}
    assert len(handles) > len(sizes)
    assert manifest["full_bytes"] == sum(sizes.values())
    assert root_files.history(box.root)[-1]["files"] == len(sizes)


def test_a_damaged_file_is_named_before_the_job_is_claimed(box: AccountsJob) -> None:
    box.deliver(50)
    box.finish(parallelism=2)
    before = root_files.head(box.root).seq
    victim = next(key for key in root_files.live_files(box.root) if key.endswith(".sst"))
    data = bytearray((box.root / victim).read_bytes())
    data[len(data) // 2] ^= 1
    (box.root / victim).unlink()
    (box.root / victim).write_bytes(data)
    ended = box.run(parallelism=3)
    assert (ended.code, ended.error.code) == (4, "corrupt-file"), str(ended)
    assert ended.error.facts["file"] == victim
    assert root_files.head(box.root).seq == before


def _kill(box: AccountsJob, failpoint: str, parallelism: int) -> None:
    box.marker.unlink(missing_ok=True)
    before = root_files.head(box.root)
    live = root_files.live_files(box.root)
    ended = box.run(failpoint, parallelism=parallelism)
    assert ended.code == -9 and box.marker.exists(), str(ended)
    after = root_files.head(box.root)
    assert after.doc["manifest"] == before.doc["manifest"]
    assert (
        root_files.live_files(box.root).items()
        >= {before.doc["manifest"]["key"]: live[before.doc["manifest"]["key"]]}.items()
    )
    root_files.check_hashes(box.root)


def _layout(box: AccountsJob) -> dict[str, tuple[int, list[int]]]:
    manifest = root_files.read_manifest(box.root, root_files.head(box.root).doc["manifest"])
    return {o["uid"]: (o["parallelism"], [s["subtask"] for s in o["subtasks"]]) for o in manifest["operators"]}
