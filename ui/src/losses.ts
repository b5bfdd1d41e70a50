// What a restore takes away: from its plan, as numbers and sentences.
import type { RestorePlan } from "./api";
import { counted, formatBytes, formatCount } from "./format";

/** A number that an approver sees first. */
export interface LossNumber {
  value: string;
  label: string;
  /** What makes it harmless or worse. */
  note: string;
  isLoss: boolean;
}

/** The sum of numbers; null if one is not known. */
export function sum(numbers: readonly (number | null)[]): number | null {
  return numbers.reduce<number | null>((total, each) => (total === null || each === null ? null : total + each), 0);
}

/** Kept checkpoints that neither the job nor a savepoint has after the restore. */
export function lostCheckpoints({ dropped_checkpoint_ids: dropped, saved }: RestorePlan): number[] {
  const savedIds = new Set(saved.map((each) => each.checkpoint_id));
  return dropped.filter((id) => !savedIds.has(id));
}

/** Rows that the restore removes from tables; null if a table does not tell. */
export function rowsRemoved({ sinks }: RestorePlan): number | null {
  return sum(sinks.map((sink) => sink.rows_removed));
}

/** Commits of other writers that the restore undoes; null if a table that it changes was not read. */
function commitsOfOthers({ sinks }: RestorePlan): number | null {
  return sum(sinks.map((sink) => (sink.read || sink.mode === "keep" || sink.rows_removed === 0 ? sink.others.length : null)));
}

/** Whether removed rows are written again: true, false, or null if a source does not tell. */
function areWrittenAgain({ sources, undone }: RestorePlan): boolean | null {
  if (undone) return false;
  const held = sources.filter((source) => source.action !== "new").map((source) => source.available);
  if (held.includes(false)) return false;
  return held.every((each) => each === true) ? true : null;
}

function againText(plan: RestorePlan): string {
  if (plan.undone) return "the rows of the target return";
  const again = areWrittenAgain(plan);
  if (again === null) return "it is not known whether all are written again";
  return again ? "the next run writes them again" : "not all of them are written again";
}

/** Rows, checkpoints and commits of others that the restore takes away. */
export function lossNumbers(plan: RestorePlan): [LossNumber, LossNumber, LossNumber] {
  const rows = rowsRemoved(plan);
  const lost = lostCheckpoints(plan).length;
  const commits = commitsOfOthers(plan);
  return [
    {
      value: rows === null ? "not known" : formatCount(rows),
      label: rows === 1 ? "row is removed from tables" : "rows are removed from tables",
      note: rows === 0 ? "tables keep all rows" : againText(plan),
      isLoss: rows !== 0 && areWrittenAgain(plan) !== true,
    },
    {
      value: formatCount(lost),
      label: lost === 1 ? "checkpoint can no longer be restored" : "checkpoints can no longer be restored",
      note: plan.saved.length === 0 ? "" : `savepoints keep ${formatCount(plan.saved.length)} more`,
      isLoss: lost > 0,
    },
    {
      value: commits === null ? "not known" : formatCount(commits),
      label: commits === 1 ? "commit of another writer is undone" : "commits of other writers are undone",
      note: commits === null ? "the plan of the recovery DAG has it" : "",
      isLoss: commits !== 0,
    },
  ];
}

/** What is lost for ever, a sentence with a number for each loss. */
export function lossSentences(plan: RestorePlan): string[] {
  const rows = rowsRemoved(plan);
  const lost = lostCheckpoints(plan);
  const sentences = plan.sinks
    .filter((sink) => sink.others.length > 0)
    .map((sink) => `${counted(sink.others.length, "commit")} of other writers to the table of ${sink.uid} ${sink.others.length === 1 ? "is" : "are"} undone.`);
  if (rows !== 0 && areWrittenAgain(plan) !== true) {
    sentences.push(`${rows === null ? "An unknown number of rows" : counted(rows, "row")} of tables ${rows === 1 ? "is" : "are"} removed: ${againText(plan)}.`);
  }
  for (const source of plan.sources.filter((each) => each.available === false)) {
    const files = source.files === null ? "" : ` ${counted(source.files, "file")} came after the target.`;
    sentences.push(`Source ${source.uid}, 1 of ${formatCount(plan.sources.length)}, no longer has all input since the target: the missing rows cannot be read again.${files}`);
  }
  for (const state of plan.states.filter((each) => each.action === "dropped")) {
    sentences.push(`The state of ${state.uid}, ${formatBytes(state.target_bytes)}, is not restored.`);
  }
  if (lost.length > 0) {
    const named = lost.length > MOST_NAMED ? `${lost.slice(0, MOST_NAMED).join(", ")} and ${counted(lost.length - MOST_NAMED, "other")}` : lost.join(", ");
    sentences.push(`${counted(lost.length, "checkpoint")} can no longer be restored: ${named}.`);
  }
  return sentences;
}

const MOST_NAMED = 10;
