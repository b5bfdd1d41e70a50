// The steps of a recovery, from the task instances of its DAG run.
import type { DagRun, Question, TaskInstance } from "./airflow";
import type { RestorePlan } from "./api";

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

/** The target by which a restore can be undone; null if nothing keeps the state before it. */
export function undoTarget(plan: RestorePlan): string | null {
  const id = plan.checkpoint_id;
  const saved = plan.saved.find((each) => each.checkpoint_id === id);
  if (!plan.dropped_checkpoint_ids.includes(id)) return String(id);
  return saved?.savepoint ?? null;
}
