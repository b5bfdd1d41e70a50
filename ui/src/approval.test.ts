import { expect, it } from "vitest";
import type { RestorePlan } from "./api";
import { answerUntil, outdatedBecause, refusals } from "./approval";
import { changesNothing, lossNumbers, lossSentences, rowsRemoved, rowsText, unknownLosses } from "./losses";
import { waitingText } from "./parts/Waiting";
import { filesRead, plannedTables, restoredTables, stepsOf, undoTarget } from "./recovery";
import { CURRENT, dagRun, described, family, plan, question, runSummary, savepoint, state, task } from "./test-pages";

const [recovery] = family.dags.filter((dag) => dag.role === "recovery");
if (recovery === undefined) throw new Error("the family has no recovery DAG");
const uma = { id: "1", name: "uma" };
const oscar = { id: "2", name: "oscar" };
const asks = question();

it("lets another person approve, and the requester only reject", () => {
  expect(refusals(asks, dagRun, oscar, recovery, null)).toEqual({ approve: null, reject: null });
  const own = refusals(asks, dagRun, uma, recovery, null);
  expect([own.approve === null, own.reject]).toEqual([false, null]);
});

it("lets the requester approve where the question does not exclude them", () => {
  expect(refusals({ ...asks, body: "**Requested by**: uma" }, dagRun, uma, recovery, null).approve).toBeNull();
  // A reason is quoted, and so decides nothing.
  expect(refusals({ ...asks, body: "> **Requested by**: uma, who cannot approve it" }, dagRun, uma, recovery, null).approve).toBeNull();
});

it("refuses persons who are not assigned, and those without the right", () => {
  const assigned = { ...asks, assigned_users: [{ id: "ada", name: "ada" }] };
  expect(refusals(assigned, dagRun, oscar, recovery, null).reject).toContain("ada");
  expect(refusals(asks, dagRun, oscar, { ...recovery, may_answer: false }, null).approve).not.toBeNull();
  expect(refusals(asks, dagRun, oscar, { ...recovery, may_trigger: false }, null).approve).toBeNull();
});

it("refuses the approval of an outdated plan, not its rejection", () => {
  const outdated = outdatedBecause(plan, { ...state, generation: 10, runs: [runSummary(10, { run: 12 })] }, null);
  expect([outdated?.sentence.includes("run 12"), outdated?.isGone]).toEqual([true, false]);
  const refused = refusals(asks, dagRun, oscar, recovery, outdated);
  expect([refused.approve?.includes("run 12"), refused.reject]).toEqual([true, null]);
});

it("does not name the run of the restored checkpoint as the one that came after the plan", () => {
  const runs = [runSummary(9, { run: 11 })];
  const restored = outdatedBecause(plan, { ...state, generation: 10, run: 1, runs }, null);
  expect(restored?.sentence).toContain("restore");
  expect(restored?.sentence).not.toMatch(/run \d/);
});

it("compares run and checkpoint of the plan with the job", () => {
  expect(outdatedBecause(plan, state, null)).toBeNull();
  expect(outdatedBecause(plan, { ...state, checkpoint_id: 13 }, null)?.sentence).toContain("checkpoint 13");
  expect(outdatedBecause(plan, null, null)).toBeNull();
});

it("says that the target of a plan is gone, as far as that is known", () => {
  const keeps = (...ids: number[]) => ({ ...state, description: { ...described, retained_checkpoint_ids: ids } });
  expect(outdatedBecause(plan, keeps(10, 12), null)).toBeNull();
  const gone = outdatedBecause(plan, keeps(12), null);
  expect([gone?.sentence.includes("checkpoint 10"), gone?.isGone]).toEqual([true, true]);
  // Another point is needed, whatever else has changed.
  expect(outdatedBecause(plan, { ...keeps(12), generation: 10 }, null)?.isGone).toBe(true);
  const ofSavepoint = { ...plan, savepoint_path: "file:///jobs/flights/savepoints/weekly" };
  const saved = { savepoints: [savepoint("weekly", "manual")], older: false, next_cursor: null, elsewhere: [], ...CURRENT };
  // The savepoint keeps the state of a checkpoint that the job has released.
  expect(outdatedBecause(ofSavepoint, keeps(12), saved)).toBeNull();
  expect(outdatedBecause(ofSavepoint, keeps(12), { ...saved, savepoints: [] })?.isGone).toBe(true);
  expect([null, { ...saved, savepoints: [], older: true }].map((each) => outdatedBecause(ofSavepoint, keeps(12), each))).toEqual([null, null]);
  expect(outdatedBecause({ ...plan, savepoint_path: "s3://backup/weekly" }, keeps(12), { ...saved, savepoints: [] })).toBeNull();
});

it("finds the time until which a question can be answered", () => {
  expect(answerUntil({ ...asks, body: "text\n\n**Answer by** 2026-01-31 03:00 UTC. No answer" })).toBe("2026-01-31T03:00:00Z");
  expect(answerUntil({ ...asks, body: null })).toBeNull();
});

it("counts what is lost", () => {
  expect(lossNumbers(plan).map(({ value, isLoss }) => [value, isLoss])).toEqual([
    ["1,234", false],
    ["1", true],
    ["2", true],
  ]);
  const texts = lossSentences(plan).join(" ");
  expect(texts).toContain("2 commits");
  expect(texts).toContain("1 checkpoint can no longer be restored: 11");
  // All input is still there: the rows are written again.
  expect(texts).not.toContain("1,234");
});

it("says that removed rows are lost only if their input is known to be gone", () => {
  const { source } = parts();
  const missing = { ...plan, sources: [{ ...source, available: false }] };
  expect(lossNumbers(missing)[0].isLoss).toBe(true);
  expect(lossSentences(missing).join(" ")).toContain("1,234 rows of tables are removed");
  expect(unknownLosses(missing)).toEqual([]);
  const unknown = { ...plan, sources: [{ ...source, available: null }] };
  expect(lossNumbers(unknown)[0].isLoss).toBe(false);
  expect(lossSentences(unknown).join(" ")).not.toContain("1,234");
  expect(unknownLosses(unknown)).toEqual(["1,234 rows are removed from tables: it is not known whether all are written again."]);
});

it("says what is not known, and neither counts it as a loss nor as nothing", () => {
  const { sink, source } = parts();
  // As the plan without the job file has it.
  const unread = { ...plan, dropped_checkpoint_ids: [], sources: [{ ...source, available: null }], sinks: [{ ...sink, read: false, rows_removed: null, rows_returned: null, others: [] }] };
  const [rows, , commits] = lossNumbers(unread);
  expect([rows.value, rows.isLoss, commits.value, commits.isLoss]).toEqual(["at most 1,300", false, "not known", false]);
  expect(lossSentences(unread)).toEqual([]);
  expect(unknownLosses(unread).length).toBe(2);
  expect(unknownLosses(unread)[0]).toContain("At most 1,300 rows are removed");
  const without = { ...unread, sinks: unread.sinks.map((each) => ({ ...each, rows_written_since: null })) };
  expect(lossNumbers(without)[0]).toMatchObject({ value: "not known", isLoss: false });
  expect(unknownLosses(without)[0]).toContain("not known how many rows");
  // Nothing was written, so that nothing is removed.
  const none = { ...unread, sinks: unread.sinks.map((each) => ({ ...each, rows_written_since: 0 })) };
  expect(lossNumbers(none)[0]).toMatchObject({ value: "0", note: "tables keep all rows" });
  expect(lossNumbers({ ...plan, sinks: [{ ...sink, read: false, rows_removed: 0, others: [] }] })[2].value).toBe("0");
});

it("adds the bounds of tables that do not tell to the rows of those that do", () => {
  const { sink } = parts();
  const two = { ...plan, sinks: [sink, { ...sink, uid: "more", rows_removed: null, rows_written_since: 6 }] };
  expect([rowsRemoved(two), rowsText(rowsRemoved(two))]).toEqual([{ exact: null, most: 1240 }, "at most 1,240 rows"]);
  // A table that is kept, printed rows, and rows that a function has received, lose nothing.
  const staying = (["standard output", "function", "topic"] as const).map((kind) => ({ ...sink, kind, rows_removed: null }));
  const kept = { ...plan, sinks: [sink, { ...sink, mode: "keep" as const, rows_removed: 0, rows_written_since: 9 }, ...staying] };
  expect(rowsText(rowsRemoved(kept))).toBe("1,234 rows");
});

it("counts the checkpoints that savepoints keep, each once", () => {
  const saved = [12, 12, 11].map((id, number) => ({ checkpoint_id: id, savepoint: `s${number}` }));
  expect(lossNumbers({ ...plan, dropped_checkpoint_ids: [10, 11, 12], saved })[1]).toMatchObject({ value: "1", note: "2 more are kept by savepoints" });
  expect(lossNumbers(plan)[1].note).toBe("1 more is kept by savepoints");
});

it("calls a sink a table only if it is one", () => {
  const { sink } = parts();
  const printed = { ...plan, sinks: [sink, { ...sink, kind: "topic" as const }] };
  expect([lossNumbers(plan)[0].label, lossNumbers(printed)[0].label]).toEqual(["rows are removed from tables", "rows are removed from sinks"]);
  expect(lossSentences(printed).join(" ")).toContain("2 commits of other writers to topic of out are undone");
});

it("knows a plan to the present point", () => {
  const { sink, source } = parts();
  const here: RestorePlan = {
    ...plan,
    target_checkpoint_id: plan.checkpoint_id,
    dropped_checkpoint_ids: [],
    states: plan.states.slice(0, 1),
    sources: [{ ...source, target_offset: source.current_offset, available: null }],
    sinks: [{ ...sink, read: false, rows_removed: 0, others: [] }],
  };
  expect(changesNothing(here)).toBe(true);
  expect([lossSentences(here), unknownLosses(here)]).toEqual([[], []]);
  const others: Partial<RestorePlan>[] = [
    { target_checkpoint_id: 10 },
    { undone: true },
    { claim_mode: "claim" },
    { sources: plan.sources },
    { states: plan.states },
    { sinks: [{ ...sink, read: false, rows_removed: null, others: [] }] },
    { left: [{ uid: "gone", table_id: "t", checkpoint_id: 9 }] },
  ];
  expect(others.map((other) => changesNothing({ ...here, ...other }))).toEqual(others.map(() => false));
});

function parts() {
  const [[sink], [source]] = [plan.sinks, plan.sources];
  if (sink === undefined || source === undefined) throw new Error("the plan has no sink or no source");
  return { sink, source };
}

it("has the steps of a recovery in order, whatever the order of tasks", () => {
  const tasks = [task("restore", "running"), task("plan", "success"), task("approve", "success")];
  const answered = { ...asks, response_received: true, chosen_options: ["Approve"] };
  expect(stepsOf(tasks, answered).map(({ task: name, status }) => [name, status])).toEqual([
    ["plan", "done"],
    ["approve", "done"],
    ["restore", "in progress"],
    ["verify", "to do"],
    ["run", "to do"],
  ]);
});

it.each(["deferred", "awaiting_input"])("shows that the approval waits in the state %s", (status) => {
  expect(stepsOf([task("approve", status)], asks)[1]?.status).toBe("waits");
});

it("shows a rejection, whose task succeeds and skips the others", () => {
  const rejected = { ...asks, response_received: true, chosen_options: ["Reject"] };
  const steps = stepsOf([task("approve", "success"), task("restore", "skipped")], rejected);
  expect(steps.slice(1, 3).map(({ status }) => status)).toEqual(["rejected", "skipped"]);
});

it("undoes a restore by the savepoint of the checkpoint before it", () => {
  expect(undoTarget({ ...plan, dropped_checkpoint_ids: [11, 12], saved: [] }, null)).toBeNull();
  expect(undoTarget({ ...plan, dropped_checkpoint_ids: [11, 12], saved: [{ checkpoint_id: 12, savepoint: "s" }] }, null)).toBe("s");
  expect(undoTarget({ ...plan, dropped_checkpoint_ids: [] }, [10, 12])).toBe("12");
  // A retention has released it since.
  expect(undoTarget({ ...plan, dropped_checkpoint_ids: [], saved: [] }, [10])).toBeNull();
});

it("counts the tables that a restore has restored", () => {
  const restoring = { seq: 13, target_label: "", by: null, requested_by: null, reason: null, requested_at: null, tables: { out: 5, late: 3, audit: null }, restored_tables: ["out", "audit"] };
  // The table `audit` is kept.
  expect(restoredTables(restoring)).toEqual({ done: 1, all: 2 });
  const [sink] = plan.sinks;
  if (sink === undefined) throw new Error("the plan has no sink");
  expect(plannedTables({ ...plan, sinks: [sink, { ...sink, uid: "kept", mode: "keep" }, { ...sink, uid: "same", target_version: null }] }).map(({ uid }) => uid)).toEqual(["out"]);
});

const backlog = { measured_at: null, rows: null, files: null, size_bytes: null, exact: true, oldest_at: null, rows_per_second: null, catch_up_ms: null, sources: [] };

it("counts the files that the run has read again, and those that came meanwhile", () => {
  const waiting = (files: number | null) => ({ backlog: { ...backlog, files } });
  // The plan reads 4 files again.
  expect(filesRead(plan, waiting(1))).toEqual({ done: 3, all: 4 });
  expect(filesRead(plan, waiting(9))).toEqual({ done: 0, all: 9 });
  expect(filesRead(plan, waiting(null))).toBeNull();
  expect(filesRead(plan, { backlog: null })).toBeNull();
});

it("says that nothing waits only if the totals say so", () => {
  expect([backlog, { ...backlog, files: 7 }, { ...backlog, size_bytes: 2000 }].map(waitingText)).toEqual(["not known", "7 files", "2 kB"]);
  expect([{ ...backlog, rows: 0 }, { ...backlog, files: 0 }, { ...backlog, size_bytes: 0 }].map(waitingText)).toEqual(["none", "none", "none"]);
});
