// Where the records of a job's history are in its timeline: a slot from left to right in the order of the log, and a
// lane from top to bottom. Lane 0 is the history of the present state; the lanes below are branches that restores have
// undone. Pure: records in, places out; a slot and a lane are whole numbers, and pixels are the picture's business.
import type { ActionEntry, CheckpointEntry, CheckpointSummary, TimelinePage } from "../api";

/** A record on the timeline. */
export type TimelineRecord = CheckpointSummary | ActionEntry;

export type MarkKind = "checkpoint" | "group" | "aborted" | "restore" | "savepoint" | "failure" | "rejection" | "action";

/** One thing to see, and to select. */
export interface Mark {
  /** The same for the same records in each layout. */
  key: string;
  kind: MarkKind;
  slot: number;
  lane: number;
  /** Its records, oldest first: several only of a group of checkpoints. */
  entries: TimelineRecord[];
  /** The point's id, or "64–75 (12)" for a group; empty for an action that made no point. */
  label: string;
  undone: boolean;
  retained: boolean;
  newest: boolean;
  /** Of several savepoints of one point, which share its slot: which one it is, and their number. */
  place: { index: number; count: number };
}

/** A line from a point to the next point of the same branch. */
export interface Edge {
  fromSlot: number;
  fromLane: number;
  toSlot: number;
  toLane: number;
  /** Whether one run made both points. */
  sameRun: boolean;
  undone: boolean;
}

/** An arc from a restore back to its base. */
export interface Arc {
  key: string;
  fromSlot: number;
  fromLane: number;
  /** -1: the base is older than the first record. */
  toSlot: number;
  toLane: number;
  /** Number of arcs that lie below it. */
  level: number;
  entry: ActionEntry;
}

/** The checkpoints of a run that are next to each other; of several runs, where one mark has them. */
export interface RunSpan {
  run: number;
  lastRun: number;
  /** Of the first run. */
  generation: number;
  fromSlot: number;
  toSlot: number;
  lane: number;
}

export interface TimelineLayout {
  slots: number;
  lanes: number;
  marks: Mark[];
  edges: Edge[];
  arcs: Arc[];
  runs: RunSpan[];
}

export interface LayoutOptions {
  /** Keys of groups that are shown one by one. */
  expanded: ReadonlySet<string>;
  /** Whether checkpoints of several runs can be one mark. */
  acrossRuns: boolean;
  /** Whether the records end with the present state. */
  isNewest: boolean;
}

/** Fewer checkpoints than these are not collapsed. */
const FEWEST_COLLAPSED = 3;

export function isCheckpoint<C extends CheckpointSummary | CheckpointEntry>(entry: C | ActionEntry): entry is C {
  return "ordinal" in entry;
}

function isAborted(entry: TimelineRecord): boolean {
  return isCheckpoint(entry) && entry.checkpoint_id === null;
}

function isSavepoint(entry: TimelineRecord): boolean {
  return !isCheckpoint(entry) && entry.kind === "savepoint";
}

/** Whether the job had the state of this record: a checkpoint, a restore, a rewind, or the start of a fork. */
function isPoint(entry: TimelineRecord): boolean {
  if (isCheckpoint(entry)) return entry.checkpoint_id !== null;
  return entry.kind === "restore" || entry.kind === "rewind" || (entry.kind === "fork" && "forked_from" in entry.facts);
}

/** The number of the log entry that a record refers to. */
function seqOf(entry: TimelineRecord): number {
  if (!isCheckpoint(entry)) return entry.seq;
  return entry.checkpoint_id ?? entry.previous_checkpoint_id ?? 0;
}

/** The checkpoint that a restore returned to, 0 for another job's; null if the job just continued. */
function baseOf(entry: TimelineRecord): number | null {
  if (isCheckpoint(entry) || !(entry.kind === "restore" || entry.kind === "rewind" || entry.kind === "fork")) return null;
  return entry.restored_checkpoint_id ?? 0;
}

/**
 * Returns the records of a page in order: positions by log entry, and actions on them in between by time. Clocks of hosts
 * may differ: whatever the times, an action follows its position.
 */
export function inOrder({ checkpoints, actions }: Pick<TimelinePage, "checkpoints" | "actions">): TimelineRecord[] {
  const [points, others] = [[...checkpoints, ...actions.filter(isPoint)], actions.filter((action) => !isPoint(action))];
  points.sort((a, b) => seqOf(a) - seqOf(b));
  const after = points.map((): TimelineRecord[] => []);
  const first: TimelineRecord[] = [];
  for (const action of others) {
    let place = points.findLastIndex((point) => seqOf(point) <= action.seq);
    while (place + 1 < points.length && (points[place + 1]?.ended_at ?? "") <= (action.ended_at ?? "")) place += 1;
    (after[place] ?? first).push(action);
  }
  return [...first, ...points.flatMap((point, place) => [point, ...(after[place] ?? [])])];
}

interface Tree {
  /** By row, the row of the point that it follows; null if that is older than the first record. */
  parent: (number | null)[];
  points: number[];
  /** The points that the present state follows from, itself included. */
  live: Set<number>;
}

/** Rows are indexes of entries. */
function treeOf(entries: readonly TimelineRecord[]): Tree {
  const points: number[] = [];
  const parent = entries.map((entry, row) => {
    const base = baseOf(entry);
    const sought = base ?? seqOf(entry);
    // A run that was killed after its commit has left no record of the checkpoint: the point before it is used.
    const found = points.findLast((point) => seqOf(entries[point] as TimelineRecord) <= sought && point < row) ?? null;
    if (isPoint(entry)) points.push(row);
    return base === 0 ? null : found;
  });
  const live = new Set<number>();
  // The newest point of an older part may be undone by a restore after it.
  for (let row: number | null = points.findLast((point) => entries[point]?.undone !== true) ?? null; row !== null; row = parent[row] ?? null) live.add(row);
  return { parent, points, live };
}

interface Branch {
  first: number;
  last: number;
  tip: number | null;
  lane: number;
}

/** Returns the lane of each row: 0 for the present state's history, further lanes for branches that do not touch. */
function lanesOf(entries: readonly TimelineRecord[], { parent, live }: Tree): number[] {
  const alive: Branch = { first: 0, last: entries.length, tip: null, lane: 0 };
  const branches: Branch[] = [];
  const branchOf: Branch[] = [];
  entries.forEach((entry, row) => {
    const before = parent[row] ?? null;
    const beforeBranch = before === null ? alive : (branchOf[before] ?? alive);
    let branch = beforeBranch;
    if (live.has(row)) branch = alive;
    else if (isPoint(entry) && (beforeBranch === alive || beforeBranch.tip !== before)) {
      branch = { first: before ?? row, last: row, tip: null, lane: 0 };
      branches.push(branch);
    }
    branch.last = Math.max(branch.last, row);
    if (isPoint(entry)) branch.tip = row;
    branchOf.push(branch);
  });
  const placed: Branch[] = [];
  for (const branch of branches) {
    const taken = new Set(placed.filter((o) => branch.first <= o.last + 1 && o.first <= branch.last + 1).map((o) => o.lane));
    for (branch.lane = 1; taken.has(branch.lane); ) branch.lane += 1;
    placed.push(branch);
  }
  return branchOf.map((branch) => branch.lane);
}

/** Returns the rows of each slot; several only of collapsed checkpoints. Savepoints of known points have none. */
function slotsOf(
  entries: readonly TimelineRecord[],
  tree: Tree,
  lanes: readonly number[],
  { expanded, acrossRuns }: Omit<LayoutOptions, "isNewest">,
): number[][] {
  const special = new Set<number>([tree.points[0] ?? -1, tree.points.at(-1) ?? -1]);
  entries.forEach((entry, row) => {
    const before = tree.parent[row] ?? null;
    if (before !== null && (baseOf(entry) !== null || isSavepoint(entry))) special.add(before);
  });
  const belong = (row: number, other: number) => {
    const [a, b] = [entries[row], entries[other]];
    if (a === undefined || b === undefined || !isCheckpoint(a) || !isCheckpoint(b)) return false;
    const sameRun = acrossRuns || (a.run === b.run && a.generation === b.generation);
    const same = a.retained === b.retained && lanes[row] === lanes[other];
    return sameRun && same && !isAborted(a) && !isAborted(b) && !special.has(row) && !special.has(other);
  };
  const groups: number[][] = [];
  entries.forEach((entry, row) => {
    if (isSavepoint(entry) && attachedTo(entries, tree, row) !== null) return;
    const group = groups.at(-1);
    const last = group?.at(-1);
    if (group && last !== undefined && belong(last, row)) group.push(row);
    else groups.push([row]);
  });
  return groups.flatMap((group) => {
    const isWhole = group.length >= FEWEST_COLLAPSED && !expanded.has(keyOf(entries, group));
    return isWhole ? [group] : group.map((row) => [row]);
  });
}

/** The row of the checkpoint that a savepoint was made of; null if it is not among the records. */
function attachedTo(entries: readonly TimelineRecord[], tree: Tree, row: number): number | null {
  const entry = entries[row];
  const before = tree.parent[row] ?? null;
  const point = before === null ? undefined : entries[before];
  return entry && point && seqOf(point) === seqOf(entry) ? before : null;
}

/** A group keeps its key while later checkpoints join it. */
function keyOf(entries: readonly TimelineRecord[], rows: readonly number[]): string {
  const first = entries[rows[0] ?? 0] as TimelineRecord;
  // Several actions can refer to one log entry.
  const position = isPoint(first) ? "" : `@${first.ended_at ?? ""}`;
  return `${rows.length > 1 ? "group" : isCheckpoint(first) ? "checkpoint" : first.kind}:${seqOf(first)}${position}`;
}

function kindOf(entry: TimelineRecord): MarkKind {
  if (isCheckpoint(entry)) return isAborted(entry) ? "aborted" : "checkpoint";
  if (entry.kind === "failed-start") return "failure";
  if (entry.kind === "savepoint" || entry.kind === "failure" || entry.kind === "rejection") return entry.kind;
  return isPoint(entry) ? "restore" : "action";
}

function labelOf(records: readonly TimelineRecord[]): string {
  const [first, last] = [records[0], records.at(-1)];
  if (!first || !last) return "";
  if (records.length > 1) return `${seqOf(first)}–${seqOf(last)} (${records.length})`;
  return isPoint(first) ? String(first.checkpoint_id ?? seqOf(first)) : "";
}

/** Returns the number of arcs that lie below each arc, so that none crosses another's top. */
function withLevels(arcs: readonly Omit<Arc, "level">[]): Arc[] {
  const placed: Arc[] = [];
  for (const arc of [...arcs].sort((a, b) => a.fromSlot - a.toSlot - (b.fromSlot - b.toSlot))) {
    const below = placed.filter((other) => other.toSlot < arc.fromSlot && arc.toSlot < other.fromSlot);
    placed.push({ ...arc, level: below.reduce((most, other) => Math.max(most, other.level + 1), 0) });
  }
  return placed.sort((a, b) => a.fromSlot - b.fromSlot);
}

/** Returns the spans of runs along each lane. */
function runsOf(marks: readonly Mark[]): RunSpan[] {
  const spans: RunSpan[] = [];
  const newest = new Map<number, RunSpan>();
  for (const mark of marks) {
    const [first, last] = [mark.entries[0], mark.entries.at(-1)];
    if (!first || !last || !isCheckpoint(first) || !isCheckpoint(last)) continue;
    const span = newest.get(mark.lane);
    if (span && [span.run, span.lastRun, first.run].every((run) => run === last.run)) {
      span.toSlot = mark.slot;
      continue;
    }
    const begun = { run: first.run, lastRun: last.run, generation: first.generation, fromSlot: mark.slot, toSlot: mark.slot, lane: mark.lane };
    newest.set(mark.lane, begun);
    spans.push(begun);
  }
  return spans;
}

/** Lays out records, oldest first. */
export function layOut(entries: readonly TimelineRecord[], { expanded = new Set(), acrossRuns = false, isNewest = true }: Partial<LayoutOptions> = {}): TimelineLayout {
  const tree = treeOf(entries);
  const lanes = lanesOf(entries, tree);
  const slots = slotsOf(entries, tree, lanes, { expanded, acrossRuns });
  const slotOf = new Map(slots.flatMap((rows, slot) => rows.map((row) => [row, slot] as const)));
  const used = new Map<string, number>();
  const mark = (rows: number[], slot: number, place = { index: 0, count: 1 }): Mark => {
    const [first = 0] = rows;
    const key = keyOf(entries, rows);
    const times = (used.get(key) ?? 0) + 1;
    used.set(key, times);
    const records = rows.map((row) => entries[row] as TimelineRecord);
    const [entry] = records as [TimelineRecord];
    return {
      key: times > 1 ? `${key}#${times}` : key,
      kind: rows.length > 1 ? "group" : kindOf(entry),
      slot,
      lane: lanes[first] ?? 0,
      entries: records,
      label: labelOf(records),
      undone: lanes[first] !== 0,
      retained: entry.retained ?? false,
      newest: isNewest && first === tree.points.at(-1),
      place,
    };
  };
  const marks = slots.map((rows, slot) => mark(rows, slot));
  const savepointsOf = new Map<number, number[]>();
  entries.forEach((entry, row) => {
    const point = isSavepoint(entry) ? attachedTo(entries, tree, row) : null;
    if (point !== null) savepointsOf.set(point, [...(savepointsOf.get(point) ?? []), row]);
  });
  for (const [point, rows] of savepointsOf) rows.forEach((row, index) => marks.push(mark([row], slotOf.get(point) ?? 0, { index, count: rows.length })));
  const edges: Edge[] = [];
  const arcs: Omit<Arc, "level">[] = [];
  for (const row of tree.points) {
    const [entry, before] = [entries[row] as TimelineRecord, tree.parent[row] ?? null];
    const [fromSlot, toSlot] = [before === null ? -1 : (slotOf.get(before) ?? -1), slotOf.get(row) ?? 0];
    const [fromLane, toLane] = [before === null ? 0 : (lanes[before] ?? 0), lanes[row] ?? 0];
    if (baseOf(entry) !== null && !isCheckpoint(entry)) {
      arcs.push({ key: keyOf(entries, [row]), fromSlot: toSlot, fromLane: toLane, toSlot: fromSlot, toLane: fromLane, entry });
    } else if (before !== null && fromSlot !== toSlot) {
      const from = entries[before] as TimelineRecord;
      const sameRun = isCheckpoint(from) && isCheckpoint(entry) && from.run === entry.run;
      edges.push({ fromSlot, fromLane, toSlot, toLane, sameRun, undone: toLane !== 0 });
    }
  }
  return { slots: slots.length, lanes: Math.max(0, ...lanes) + 1, marks, edges, arcs: withLevels(arcs), runs: runsOf(marks) };
}
