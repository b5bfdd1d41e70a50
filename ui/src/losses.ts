// What a restore takes away: from its plan, as numbers and sentences.
import type { RestorePlan, SinkChange } from "./api";
import { counted, formatCount } from "./format";

/** A number that an approver sees first. */
export interface LossNumber {
  value: string;
  label: string;
  /** What makes it harmless or worse. */
  note: string;
  /** Whether something is known to be lost: an unknown number is not a loss. */
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

/** A number of rows, and the most that it can be; null if that is not known. */
export interface Rows {
  exact: number | null;
  most: number | null;
}

/** What a restore cannot take back from a sink, by its kind; null if it removes rows. */
const STAYING: Record<SinkChange["kind"], string | null> = {
  table: null,
  topic: "records of a topic stay",
  files: null,
  "standard output": "printed rows stay",
  function: "the function has received its rows",
  sink: null,
};

/** Why a restore removes nothing of a sink that does not keep its content; null for other sinks. */
export function stayingText({ kind }: Pick<SinkChange, "kind">): string | null {
  // A worker of another version may write a kind that this page does not know.
  return (STAYING as Record<string, string | null | undefined>)[kind] ?? null;
}

/** Whether the restore removes nothing of a sink: rows that were printed, sent or given to a function remain. */
export function staysAsItIs(sink: Pick<SinkChange, "mode" | "kind">): boolean {
  return sink.mode === "keep" || stayingText(sink) !== null;
}

/** Rows that the restore removes from a sink: without its table, at most those that the history says it has written since. */
export function rowsRemovedFrom(sink: SinkChange): Rows {
  const exact = staysAsItIs(sink) ? 0 : sink.rows_removed;
  return { exact, most: exact ?? sink.rows_written_since };
}

/** Rows that the restore removes from all sinks. */
export function rowsRemoved({ sinks }: RestorePlan): Rows {
  const each = sinks.map(rowsRemovedFrom);
  return { exact: sum(each.map(({ exact }) => exact)), most: sum(each.map(({ most }) => most)) };
}

/** "1,234", "at most 1,234" or "not known". */
function amount({ exact, most }: Rows): string {
  if (exact !== null) return formatCount(exact);
  if (most === null) return "not known";
  return most === 0 ? "0" : `at most ${formatCount(most)}`;
}

/** "1,234 rows", "at most 1,234 rows" or "not known". */
export function rowsText(rows: Rows): string {
  const number = rows.exact ?? rows.most;
  return number === null ? amount(rows) : `${amount(rows)} ${number === 1 ? "row" : "rows"}`;
}

/** "table" if all of them are known to be tables. */
export function nounOf(sinks: readonly Pick<SinkChange, "kind">[]): "table" | "sink" {
  return sinks.every(({ kind }) => kind === "table") ? "table" : "sink";
}

/** Whether the job is where the plan leads to, so that a restore changes neither state nor positions nor tables. */
export function changesNothing(plan: RestorePlan): boolean {
  const isElsewhere = plan.undone || plan.foreign || plan.target_checkpoint_id !== plan.checkpoint_id || plan.dropped_checkpoint_ids.length > 0;
  const { moves, dropped, old_max_parallelism: groups, max_parallelism: newGroups } = plan.graph;
  if (isElsewhere || plan.claim_mode === "claim" || plan.left.length > 0 || moves.length > 0 || dropped.length > 0 || groups !== newGroups) return false;
  return (
    plan.states.every(({ action, olds }) => action === "matched" && olds.length === 0) &&
    plan.sources.every(({ action, old, current_offset: now, target_offset: then }) => action === "kept" && old === null && JSON.stringify(now) === JSON.stringify(then)) &&
    plan.sinks.every((sink) => staysAsItIs(sink) || (sink.rows_removed === 0 && sink.rows_returned === 0 && sink.others.length === 0))
  );
}

/** Commits of other writers that the restore undoes; null if a table that it changes was not read. */
function commitsOfOthers({ sinks }: RestorePlan): number | null {
  return sum(sinks.map((sink) => (sink.read || staysAsItIs(sink) || sink.rows_removed === 0 ? sink.others.length : null)));
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
  const sinks = `${nounOf(plan.sinks)}s`;
  const saved = plan.dropped_checkpoint_ids.length - lost;
  return [
    {
      value: amount(rows),
      label: (rows.exact ?? rows.most) === 1 ? `row is removed from ${sinks}` : `rows are removed from ${sinks}`,
      note: rows.most === 0 ? `${sinks} keep all rows` : againText(plan),
      isLoss: areRowsLost(plan),
    },
    {
      value: formatCount(lost),
      label: lost === 1 ? "checkpoint can no longer be restored" : "checkpoints can no longer be restored",
      note: saved === 0 ? "" : `${formatCount(saved)} more ${saved === 1 ? "is" : "are"} kept by savepoints`,
      isLoss: lost > 0,
    },
    {
      value: commits === null ? "not known" : formatCount(commits),
      label: commits === 1 ? "commit of another writer is undone" : "commits of other writers are undone",
      note: commits === null ? "the plan that is made with the job file has it" : "",
      isLoss: commits !== null && commits > 0,
    },
  ];
}

/** Whether rows are known to be removed and not to be written again. */
function areRowsLost(plan: RestorePlan): boolean {
  const { exact } = rowsRemoved(plan);
  return exact !== null && exact > 0 && areWrittenAgain(plan) === false;
}

/** Known losses for ever, a sentence with a number for each loss. */
export function lossSentences(plan: RestorePlan): string[] {
  const lost = lostCheckpoints(plan);
  const sentences = plan.sinks
    .filter((sink) => sink.others.length > 0)
    .map((sink) => `${counted(sink.others.length, "commit")} of other writers to ${nameOf(sink)} ${sink.others.length === 1 ? "is" : "are"} undone.`);
  if (areRowsLost(plan)) {
    const rows = rowsRemoved(plan);
    sentences.push(`${rowsText(rows)} of ${nounOf(plan.sinks)}s ${rows.exact === 1 ? "is" : "are"} removed: ${againText(plan)}.`);
  }
  for (const source of plan.sources.filter((each) => each.available === false)) {
    const files = source.files === null ? "" : ` ${counted(source.files, "file")} came after the target.`;
    sentences.push(`Source ${source.uid}, 1 of ${formatCount(plan.sources.length)}, no longer has all input since the target: the missing rows cannot be read again.${files}`);
  }
  if (lost.length > 0) {
    const named = lost.length > MOST_NAMED ? `${lost.slice(0, MOST_NAMED).join(", ")} and ${counted(lost.length - MOST_NAMED, "other")}` : lost.join(", ");
    sentences.push(`${counted(lost.length, "checkpoint")} can no longer be restored: ${named}.`);
  }
  return sentences;
}

/** What may be lost and is not known, a sentence for each. */
export function unknownLosses(plan: RestorePlan): string[] {
  const rows = rowsRemoved(plan);
  const sentences = [];
  if (!areRowsLost(plan) && rows.most !== 0 && areWrittenAgain(plan) !== true) {
    const text = rows.most === null ? "It is not known how many rows" : `${rows.exact === null ? "At most " : ""}${counted(rows.most, "row")}`;
    sentences.push(`${text} ${rows.most === 1 ? "is" : "are"} removed from ${nounOf(plan.sinks)}s: ${againText(plan)}.`);
  }
  if (commitsOfOthers(plan) === null) {
    sentences.push(`It is not known whether commits of other writers are undone: the ${nounOf(plan.sinks)}s are not read before the plan that is made with the job file.`);
  }
  return sentences;
}

/** "table of totals", or "sink totals" if it is not known what the sink writes to. */
export function nameOf({ uid, kind }: Pick<SinkChange, "uid" | "kind">): string {
  return kind === "sink" ? `sink ${uid}` : `${kind} of ${uid}`;
}

const MOST_NAMED = 10;
