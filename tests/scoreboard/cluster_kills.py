"""Kills of drivers in a cluster, and of the processes that submit and follow them: rounds of the scoreboard."""

from __future__ import annotations

import signal
import subprocess
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

from tests.scoreboard.jobs import KILLED, check_complete, kill_after
from tests.scoreboard.row import Round
from tests.servers.local_yarn import LocalYarn
from tests.servers.yarn import Yarn
from tests.support.job_fixture import SLICE, AccountsJob
from tests.support.processes import Ended, Running, unless_ended, wait_for
from tests.support.root_files import Chain
from tests.support.submissions import YarnSubmission, stopped_driver, submit_to_stand_in

_ROWS = 3 * SLICE
_STEPS = ("claim.after:1", "batch.begin:2", "commit.manifest:2", "commit.after:2", "publish.after:2", "batch.end:3")
_STOPS = ("batch.reported:2", "commit.after:2", "publish.before:2", "publish.after:2")
"""Where a driver is that its cluster gives up."""
_CLUSTER_FAILED = 5


@dataclass
class ClusterKills:
    """Launches of a job, in each of which something is killed or lost.

    Attributes:
        seconds: how long a launch takes on this machine.
    """

    round_: Round
    job: AccountsJob
    yarn: LocalYarn
    seconds: float = 0.0
    chain: Chain = field(init=False)

    def __post_init__(self) -> None:
        self.chain = Chain(self.job.root)

    def play(self, launches: int) -> int:
        """Returns the number of faults."""
        self.job.deliver(_ROWS)
        began = time.monotonic()
        self._finish("first")
        self.seconds = time.monotonic() - began
        faults: list[Callable[[str], int]] = [
            self._kill_submitter, self._kill_driver, self._kill_both, self._lose_driver, self._kill_submission,
        ]  # fmt: skip
        injected = 0
        for number in range(launches):
            self.job.deliver_more(_ROWS)
            # Rounds differ in what they begin with.
            fault = faults[(self.round_.seed + number) % len(faults)]
            injected += fault(f"launch-{number}")
        assert self.yarn.staged() == []
        check_complete(self.job, self.chain)
        return injected

    # -- Faults; each returns how many it injected --------------------------------------------------------------------

    def _kill_submitter(self, launch: str) -> int:
        first = self._submit(launch)
        wait_for(lambda: bool(self._drivers(launch)), lambda: f"the driver of {first}")
        kill_after(self.round_.rng.uniform(0, self.seconds), first, self.chain.look)
        killed = first.wait(self.chain.look).code == KILLED
        self._finish(launch)
        assert len(self._drivers(launch)) == 1, "a driver was submitted although one was active or had succeeded"
        return int(killed)

    def _kill_submission(self, launch: str) -> int:
        """While spark-submit runs: its successor may submit a driver, and nothing else may do so after it."""
        first = self._submit(launch)
        kill_after(self.round_.rng.uniform(0, self.seconds / 2), first, first.family)
        ended = first.wait()
        first.wait_family()
        before = len(self._drivers(launch))
        self._finish(launch)
        assert len(self._drivers(launch)) == max(before, 1)
        return int(ended.code == KILLED)

    def _kill_driver(self, launch: str) -> int:
        first = self._submit(launch, self._step("kill"))
        self._check_failed(first.wait(self.chain.look))
        self._finish(launch)
        return 1

    def _kill_both(self, launch: str) -> int:
        first = self._submit(launch, self._step("stop"))
        stopped_driver(self.yarn, first)
        first.kill()
        first.wait()
        (driver,) = self._drivers(launch)
        self.yarn.kill_driver(driver)
        self._finish(launch)
        return 2

    def _lose_driver(self, launch: str) -> int:
        """The cluster gives it up, and its host returns once the successor has run, or while it works."""
        first = self._submit(launch, f"{self.round_.rng.choice(_STOPS)}:stop")
        driver = stopped_driver(self.yarn, first)
        self.yarn.lose_driver(self._drivers(launch)[0])
        self._check_failed(first.wait())
        if self.round_.rng.random() < 0.5:
            second = self._submit(launch, "batch.begin:1:stop")
            wait_for(lambda: len(self._drivers(launch)) == 2, lambda: str(second))
            other = stopped_driver(self.yarn, second)
            driver.resume()
            wait_for(lambda: not driver.is_running(), lambda: "the end of the lost driver")
            other.resume()
            returned = second.wait(self.chain.look).check()
        else:
            returned = self._finish(launch)
            driver.resume()
            wait_for(lambda: not driver.is_running(), lambda: "the end of the lost driver")
        # Whoever asks later gets the same result, and not the one of the driver that was fenced.
        assert self._finish(launch).result == returned.result
        return 1

    # -- Launches -----------------------------------------------------------------------------------------------------

    def _submit(self, launch: str, failpoint: str = "") -> Running:
        return submit_to_stand_in(self.job, self.yarn, launch, failpoint=failpoint)

    def _finish(self, launch: str) -> Ended:
        return self._submit(launch).wait(self.chain.look).check()

    def _step(self, action: str) -> str:
        return f"{self.round_.rng.choice(_STEPS)}:{action}"

    def _drivers(self, launch: str) -> list[str]:
        tag = f"stateflow-{launch}"
        return [found["id"] for found in self.yarn.applications() if found["applicationTags"] == tag]

    def _check_failed(self, ended: Ended) -> None:
        assert (ended.code, ended.failure["code"]) == (_CLUSTER_FAILED, "cluster-failed"), str(ended)


class YarnKills:
    """A launch of a job on a real YARN in which something is killed; the seed decides what."""

    def __init__(self, round_: Round, yarn: Yarn) -> None:
        self._rng = round_.rng
        self._submission = YarnSubmission(yarn, round_.folder / "home", "first")
        self._delivered: list[str] = []
        faults = [self._kill_submitter, self._kill_driver, self._kill_executor]
        self._fault = faults[round_.seed % len(faults)]
        self._ends_unseen = round_.seed // len(faults) % 2 == 0

    def play(self) -> int:
        """Returns the number of faults."""
        try:
            self._deliver()
            self._fault()
            self._submission.assert_nothing_is_left()
            assert self._submission.counts() == self._wanted()
        finally:
            self._submission.end_processes()
        return 1

    def _kill_driver(self) -> None:
        process = self._start(stays=True)
        due = time.monotonic() + self._rng.uniform(0, 5)
        wait_for(lambda: time.monotonic() > due or process.poll() is not None, self._submission.log)
        for driver in self._submission.containers("driver"):
            for each in (*driver.children(recursive=True), driver):
                unless_ended(each.kill, None)
        assert self._submission.finish(process) == _CLUSTER_FAILED, self._submission.log()
        self._run_again()

    def _kill_executor(self) -> None:
        process = self._start(stays=True)
        self._submission.wait_for_rows(process, len(self._delivered))
        for executor in self._submission.containers("executor"):
            unless_ended(executor.kill, None)
        self._deliver()
        self._submission.wait_for_rows(process, len(self._delivered))
        process.send_signal(signal.SIGTERM)
        self._finish(process)

    def _kill_submitter(self) -> None:
        process = self._start(stays=False)
        process.kill()
        process.wait()
        if self._ends_unseen:
            wait_for(lambda: self._submission.application()["state"] == "FINISHED", self._submission.log)
        self._run_again()
        # The result of the driver, and not of a start that finds nothing to do.
        assert self._submission.result()["result"]["rows_in"] == len(self._delivered)
        tag = f"stateflow-{self._submission.launch}"
        drivers = [found for found in self._submission.yarn.applications() if found["applicationTags"] == tag]
        assert len(drivers) == 1, "a driver was submitted although one was active or had succeeded"

    def _start(self, *, stays: bool) -> subprocess.Popen[bytes]:
        """Starts a launch; returns once its run has claimed the job. `stays`: it waits for more input at the end."""
        self._submission.settings["run.until"] = "stopped" if stays else "input-ends"
        process = self._submission.start()
        self._submission.wait_until_claimed(process)
        return process

    def _run_again(self) -> None:
        self._submission.settings["run.until"] = "input-ends"
        self._finish(self._submission.start())

    def _finish(self, process: subprocess.Popen[bytes]) -> None:
        assert self._submission.finish(process) == 0, self._submission.log()

    def _deliver(self) -> None:
        names = self._rng.choices("abc", k=self._rng.randrange(1, 6))
        self._submission.add_rows(*names)
        self._delivered += names

    def _wanted(self) -> list[tuple[str, int]]:
        counts = Counter(self._delivered)
        return sorted((name, number + 1) for name, count in counts.items() for number in range(count))
