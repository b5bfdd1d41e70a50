"""``make demo``: Airflow runs two jobs over a year of flights; drivers are killed, and the tables are compared.

``demo.py`` ends with 0 only if every row of all tables is correct. ``demo.py bucket`` runs the first job without
Airflow, with job root, input and tables in a bucket of S3; it is killed, restored and compared. ``demo.py ui`` starts
Airflow with the results of the demo, which it runs first if necessary, and keeps it running until Ctrl-C.
"""

from __future__ import annotations

import contextlib
import signal
import sys
from concurrent.futures import ThreadPoolExecutor

from flights_demo import aircraft
from flights_demo.aircraft import AircraftRun
from flights_demo.airflow_home import USER, AirflowHome, wipe
from flights_demo.broker import Broker
from flights_demo.bucket import BucketDemo, open_bucket
from flights_demo.client import AirflowError
from flights_demo.crash import DemoCheckFailed, Kill
from flights_demo.expected import read_flights
from flights_demo.flights import csv_file, prepare
from flights_demo.layout import REPOSITORY, Layout
from flights_demo.polling import Stopwatch, poll
from flights_demo.quarters import DAG, DemoContext, QuarterResult, collect_garbage, run_quarter
from flights_demo.screen import Screen
from flights_demo.upgrade import deploy, go_back, take_savepoint
from flights_demo.verdict import compare_tables, replayed, show_checkpoints, show_sample

from stateflow.ui.catalog import job_at

KILLED_QUARTER = 2
STARTING = 180.0


def main(arguments: list[str]) -> int:
    """Runs the command; returns its exit code."""
    screen, layout = Screen(), Layout()
    # As for Ctrl-C, all processes that were started are ended first.
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda received, _: sys.exit(128 + received))
    # A shell without job control starts commands in the background with SIGINT ignored.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        match arguments:
            case []:
                return run_demo(screen, layout)
            case ["ui"]:
                return show_ui(screen, layout)
            case ["bucket"]:
                return run_in_bucket(screen, Layout(REPOSITORY / ".demo-bucket"))
    except (AirflowError, DemoCheckFailed) as error:
        screen.bad(str(error))
        return 1
    except KeyboardInterrupt:
        screen.say("stopped")
        return 130
    print(__doc__, file=sys.stderr)
    return 2


def run_demo(screen: Screen, layout: Layout) -> int:
    """Runs the whole demo in an empty folder; returns the exit code."""
    watch = Stopwatch()
    wipe(layout.root)
    layout.root.mkdir(parents=True)
    with Broker(layout.broker) as broker, layout.airflow_home(broker.address) as airflow:
        deploy(layout)
        prepare_everything(screen, layout, airflow, broker)
        rounds = run_the_year(screen, DemoContext(layout, airflow, airflow.client()), broker)
    with screen.step("Compare the tables, row for row, with a plain computation") as news:
        comparisons = compare_tables(layout, list(layout.tables), news)
    for result in comparisons:
        if result.equal:
            screen.good(f"{result.name}: all {result.rows:,} rows are equal")
        else:
            screen.bad(f"{result.name}: {result.difference}")
    show_sample(screen, layout)
    show_checkpoints(screen, layout, rounds)
    screen.say(replayed(layout, rounds[KILLED_QUARTER - 1]))
    screen.table("How long it took", ("part", "seconds"), [(part, f"{s:.1f}") for part, s in screen.timings])
    screen.say(f"{watch.seconds:.0f} s in total. To explore the results, run make ui; the files are in {layout.root}")
    return 0 if all(result.equal for result in comparisons) else 1


def run_in_bucket(screen: Screen, layout: Layout) -> int:
    """Runs the demo in a bucket, in an empty folder; returns the exit code."""
    watch = Stopwatch()
    wipe(layout.root)
    layout.root.mkdir(parents=True)
    deploy(layout)
    with open_bucket(layout) as address:
        BucketDemo(layout, screen, address).play()
    screen.say(f"{watch.seconds:.0f} s in total; job root, input and tables are at {address}, logs in {layout.root}")
    return 0


def prepare_everything(screen: Screen, layout: Layout, airflow: AirflowHome, broker: Broker) -> None:
    """Writes the input files while Airflow and Kafka start."""
    with (
        screen.step("Write a year of flights as Parquet files; start Airflow and Kafka") as news,
        ThreadPoolExecutor() as pool,
    ):
        news("making Airflow's database, writing files")
        written = pool.submit(prepare, layout.staging)
        broker.start()
        airflow.migrate()
        news(f"{written.result():,} flights are written; Airflow starts")
        airflow.start()
        watch = Stopwatch()
        airflow.wait_until_healthy(STARTING, lambda: news(f"Airflow starts, {watch.seconds:.0f} s"))
        client = airflow.client()
        for dag in (DAG, aircraft.DAG):
            if not poll(lambda dag=dag: client.has_dag(dag), 60):  # type: ignore[misc]
                raise AirflowError(f"Airflow does not find the DAG {dag!r}: airflow dags list-import-errors says why")
        client.unpause(DAG)
        broker.create_topic()
    screen.say(f"{written.result():,} flights; Airflow is at {airflow.url}")


def run_the_year(screen: Screen, demo: DemoContext, broker: Broker) -> list[QuarterResult]:
    """Runs the four quarters: the second with a killed driver, the fourth first with a wrong version of the job.

    The job that reads Kafka runs during the third and the last one.
    """
    rounds = []
    flights = read_flights(csv_file())
    for quarter in range(1, 4):
        killed = quarter == KILLED_QUARTER
        title = f"Quarter {quarter} arrives: one DAG run" + (", whose driver gets SIGKILL" if killed else "")
        with screen.step(title) as news:
            if quarter == 3:
                first_half = aircraft.start_run(demo, broker, flights, half=1, kill=True)
            done = run_quarter(demo, quarter, news, kill=killed)
        show_kill(screen, done.kill, done)
        show_run(screen, done)
        rounds.append(done)
    show_aircraft(screen, demo, first_half)
    rounds += upgrade_and_go_back(screen, demo)
    second_half = aircraft.start_run(demo, broker, flights, half=2)
    with screen.step("The retention DAG retains one checkpoint and deletes the files that it does not need") as news:
        report = collect_garbage(demo, news)
    kept = ", ".join(map(str, report["retained_checkpoint_ids"]))
    screen.say(f"{report['deleted_files']} files, {report['freed_bytes']:,} bytes; retained checkpoints: {kept}")
    show_aircraft(screen, demo, second_half)
    return rounds


def upgrade_and_go_back(screen: Screen, demo: DemoContext) -> list[QuarterResult]:
    """Runs the fourth quarter with a wrong version, restores, and runs it with the right version; returns both runs."""
    with screen.step("A savepoint before an upgrade of the job, taken by its DAG") as news:
        savepoint = take_savepoint(demo, news)
    screen.good(f"savepoint {savepoint['name']}: checkpoint {savepoint['checkpoint_id']}, {savepoint['path']}")
    deploy(demo.layout, wrong=True)
    with screen.step("Quarter 4 arrives, and the new version of the job is wrong") as news:
        wrong = run_quarter(demo, 4, news)
        show_run(screen, wrong)
        comparisons = compare_tables(demo.layout, ("delays", "routes"), news)
    if any(c.equal for c in comparisons):
        raise DemoCheckFailed("the wrong version of the job wrote correct rows")
    for result in comparisons:
        screen.say(f"{result.name}: wrong, as expected: {result.difference}")
    with screen.step("The recovery runbook: plan, approval by a user, restore of the savepoint") as news:
        plan, restored = go_back(demo, news)
    for line in plan["markdown"].splitlines():
        screen.say(line)
    screen.good(f"state, source positions and both tables are restored to {restored['label']}")
    deploy(demo.layout)
    with screen.step("The right version processes quarter 4 again") as news:
        done = run_quarter(demo, 4, news, again=True)
    show_run(screen, done)
    return [wrong, done]


def show_aircraft(screen: Screen, demo: DemoContext, run: AircraftRun) -> None:
    """Waits for a run of the job that reads Kafka, and prints its result."""
    title = f"Meanwhile: the job {aircraft.DAG} reads {run.flights:,} records from Kafka"
    with screen.step(title + (", and its driver gets SIGKILL" if run.kill else "")) as news:
        result = aircraft.wait_for_run(demo, run, news)
    if run.kill:
        screen.good(
            "try 1 was killed after its second commit to the table; try 2 continued from the checkpoint after it"
        )
    screen.say(f"{result['batches']} micro-batches, to checkpoint {result['checkpoint_id']}")


def show_run(screen: Screen, done: QuarterResult) -> None:
    """Prints the result of a run."""
    result = done.returned
    screen.say(
        f"{result['rows_in']:,} flights in {result['batches']} micro-batches,"
        f" from {result['start_label']} to checkpoint {result['checkpoint_id']}"
    )


def show_kill(screen: Screen, kill: Kill | None, done: QuarterResult) -> None:
    """Prints the checked properties of the kill."""
    if kill is None:
        return
    screen.good(f"try 1: driver {kill.driver} was killed by SIGKILL after its tasks had reported and before the commit")
    screen.good(
        f"the log ends with checkpoint {kill.checkpoint_id};"
        f" {kill.left_behind.files} files of the next one exist, and no checkpoint refers to them"
    )
    screen.good(f"try {done.tries}: Airflow retried the task, which continued from checkpoint {kill.checkpoint_id}")


def show_ui(screen: Screen, layout: Layout) -> int:
    """Runs Airflow with the results of the demo until Ctrl-C; returns the exit code."""
    if not (layout.airflow / "airflow.db").exists() and (code := run_demo(screen, layout)):
        return code
    with layout.airflow_home() as airflow:
        with screen.step("Start Airflow") as news:
            airflow.stop()
            airflow.start()
            airflow.wait_until_healthy(STARTING, lambda: news("Airflow starts"))
        job = job_at(str(layout.job_root)).id
        screen.say(f"Airflow: {airflow.url}/dags/{DAG}   user: {USER}   password: {airflow.password}")
        screen.say(f"Checkpoints: .venv/bin/stateflow status --job-root {layout.job_root}")
        # The login leads there.
        screen.say(f"Timeline: {airflow.url}/plugin/stateflow/jobs/{job}/timeline   (Ctrl-C stops Airflow)")
        with contextlib.suppress(KeyboardInterrupt):
            poll(lambda: not airflow.is_running(), float("inf"), interval=2)
            raise AirflowError("a component of Airflow has ended")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
