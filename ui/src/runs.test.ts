import { expect, it } from "vitest";
import { deploymentsOf, earlierEnd, triesOf } from "./runs";
import { attempt, runSummary } from "./test-pages";

it("lists the tries of a DAG run in order, the newest run of each", () => {
  const runs = [
    runSummary(30, { attempt: attempt(2, "one") }),
    runSummary(10, { attempt: attempt(1, "one"), failure: { generation: 10, failed_at: null, code: "storage", message: "" } }),
    runSummary(20, { attempt: attempt(1, "other") }),
    runSummary(25, { attempt: attempt(2, "one") }),
    // A command has started it.
    runSummary(35, { reason: "flights/one/run/3" }),
  ];
  const tries = triesOf(runs[0] ?? runSummary(0), runs);
  expect(tries.map(([attempt, run]) => [attempt.try_number, run.generation])).toEqual([
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
