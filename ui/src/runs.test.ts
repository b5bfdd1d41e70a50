import { expect, it } from "vitest";
import { attemptOf, deploymentsOf, earlierEnd, triesOf } from "./runs";
import { runSummary } from "./test-pages";

it("finds DAG run and try in the reason that the task gives its run", () => {
  // As stateflow_airflow.operators.run.run_id writes it.
  expect(attemptOf("flights/scheduled__2026-01-31T03:00:00+00:00/run/2")).toEqual({ dag: "flights", dagRun: "scheduled__2026-01-31T03:00:00+00:00", task: "run", number: 2 });
  expect(attemptOf("flights/a/b/run/7/1")).toEqual({ dag: "flights", dagRun: "a/b", task: "run/7", number: 1 });
  expect(attemptOf("flights/a/run/3; restart 2")?.number).toBe(3);
  expect([attemptOf("by hand"), attemptOf(null), attemptOf("a/b/3")]).toEqual([null, null, null]);
});

it("reads a long reason in linear time", () => {
  // If each letter of a part is tried as the only one, the first of these takes 30 s.
  const long = "x".repeat(150_000);
  expect([`a/b/${long}/y`, `a/b/${"1/".repeat(75_000)}y`, `a/b/${"x/".repeat(75_000)}y`, `a/b/run/${"1".repeat(150_000)}y`].map(attemptOf)).toEqual([null, null, null, null]);
  expect(attemptOf(`a/b/${long}/2`)?.task).toBe(long);
}, 5_000);

it("lists the tries of a DAG run in order, the newest run of each", () => {
  const runs = [
    runSummary(30, { reason: "flights/one/run/2", try_number: 2 }),
    runSummary(10, { reason: "flights/one/run/1", try_number: 1, failure: { generation: 10, failed_at: null, code: "storage", message: "" } }),
    runSummary(20, { reason: "flights/other/run/1", try_number: 1 }),
    runSummary(25, { reason: "flights/one/run/2", try_number: 2 }),
    // A command has started it.
    runSummary(35, { reason: "flights/one/run/3" }),
  ];
  const tries = triesOf(runs[0] ?? runSummary(0), runs);
  expect(tries.map(([attempt, run]) => [attempt.number, run.generation])).toEqual([
    [1, 10],
    [2, 30],
  ]);
  expect(earlierEnd(tries[0]?.[1] ?? runSummary(0))).toBe("failed: storage");
  expect(earlierEnd(runSummary(10))).toContain("killed");
  expect(triesOf(runSummary(1), runs)).toEqual([]);
  expect(triesOf(runSummary(35, { reason: "flights/one/run/3" }), runs)).toEqual([]);
});

it("finds the runs with another job file than before", () => {
  const at = (minute: number) => `2026-01-31T03:0${minute}:00.000Z`;
  const runs = [
    runSummary(30, { job_file_sha256: "b", started_at: at(3), base_checkpoint_id: 12, run: 3, job_file: "flights.py" }),
    runSummary(10, { job_file_sha256: "a", started_at: at(1) }),
    runSummary(20, { job_file_sha256: "a", started_at: at(2) }),
    runSummary(40, { job_file_sha256: null, started_at: at(4) }),
    runSummary(50, { job_file_sha256: "b", started_at: at(5) }),
  ];
  expect(deploymentsOf(runs)).toEqual([{ at: at(3), jobFile: "flights.py", generation: 30, run: 3, checkpoint: 12 }]);
});
