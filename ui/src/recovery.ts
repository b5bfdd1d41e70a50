// The steps of a recovery, from the task instances of its DAG run.
import type { DagRun, Question, TaskInstance } from "./airflow";
import type { Backlog, PendingRestore, RestorePlan, SinkChange } from "./api";
import { sum } from "./losses";

export type StepStatus = "to do" | "in progress" | "waits" | "done" | "failed" | "rejected" | "skipped";

export interface Step {
  task: string;
  title: string;
  status: StepStatus;
  instance: TaskInstance | null;
}

const STEPS = [
  ["plan", "Plan"],
  ["approve", "Approval"],
  ["restore", "Restore"],
  ["verify", "Verified"],
  ["run", "Run"],
] as const;

const STATUS: Record<string, StepStatus> = {
  success: "done",
  failed: "failed",
  upstream_failed: "skipped",
  removed: "skipped",
  skipped: "skipped",
  deferred: "in progress",
  awaiting_input: "waits",
  running: "in progress",
  queued: "in progress",
  restarting: "in progress",
  up_for_retry: "in progress",
  up_for_reschedule: "in progress",
};

function statusOf(task: string, state: string | null, question: Question | null): StepStatus {
  const status = STATUS[state ?? ""] ?? "to do";
  if (task !== "approve") return status;
  // The task of a rejected request succeeds, and skips what follows.
  const isRejected = question?.response_received === true && question.chosen_options?.includes("Approve") !== true;
  if (isRejected && status !== "in progress") return "rejected";
  return state === "deferred" ? "waits" : status;
}

/** The steps of a recovery in their order. */
export function stepsOf(tasks: readonly TaskInstance[], question: Question | null): Step[] {
  return STEPS.map(([task, title]) => {
    const instance = tasks.find((each) => each.task_id === task) ?? null;
    return { task, title, status: statusOf(task, instance?.state ?? null, question), instance };
  });
}

export function isEnded(run: DagRun | null): boolean {
  return run?.state === "success" || run?.state === "failed";
}

/** The target by which a restore can be undone; null if nothing keeps the state before it. `kept` is what the job keeps now, if that is known. */
export function undoTarget(plan: RestorePlan, kept: readonly number[] | null): string | null {
  const id = plan.checkpoint_id;
  const isKept = !plan.dropped_checkpoint_ids.includes(id) && kept?.includes(id) !== false;
  return isKept ? String(id) : (plan.saved.find((each) => each.checkpoint_id === id)?.savepoint ?? null);
}

/** Something of which a part is done. */
export interface Part {
  done: number;
  all: number;
}

/** How many tables a restore that is not completed has restored. A table without a version is kept, and not restored. */
export function restoredTables({ tables, restored_tables: restored }: PendingRestore): Part {
  const changed = Object.keys(tables).filter((uid) => tables[uid] !== null);
  return { done: changed.filter((uid) => restored.includes(uid)).length, all: changed.length };
}

/** The sinks whose tables a plan changes. */
export function plannedTables({ sinks }: RestorePlan): SinkChange[] {
  return sinks.filter((sink) => sink.mode === "restore" && sink.target_version !== null);
}

/** How many of the files that came after the target the run has read again; null if plan or job do not tell. */
export function filesRead(plan: RestorePlan, { backlog }: { backlog: Backlog | null }): Part | null {
  const all = sum(plan.sources.filter((source) => source.action !== "removed").map((source) => source.files));
  const waiting = backlog?.files ?? null;
  if (all === null || waiting === null || all === 0) return null;
  // Files that have come in the meantime wait, too.
  return { done: Math.max(0, all - waiting), all: Math.max(all, waiting) };
}
