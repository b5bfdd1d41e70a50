// The points to which a restore can return, from what a job keeps.
import type { ActionEntry, CheckpointSummary, Entry, RunSummary, Savepoint } from "./api";
import { isCheckpoint, type Mark } from "./pictures/timelineLayout";
import { type Deployment, deploymentsOf } from "./runs";

/** A point to which a restore can return. */
export interface Point {
  target: string;
  name: string;
  at: string | null;
  /** Null if that is not known. */
  bytes: number | null;
  /** Rows that the job has read after it; null if that is not known. */
  rowsAfter: number | null;
  remark: string;
}

/** A target as a reader sees it. A time without an offset is in UTC. */
export function targetText(target: string): string {
  if (/^\d+$/.test(target)) return `checkpoint ${target}`;
  return /^before:[\dW-]+([^=\d][\d:.,]+)?$/.test(target) ? `${target} UTC` : target;
}

/** The path of a location on this machine, which is stored as a URI and shown without its scheme. */
function withoutScheme(location: string): string {
  if (!location.startsWith("file://")) return location;
  try {
    return decodeURIComponent(location.slice("file://".length));
  } catch {
    // Not written by a job: a percent sign that begins no character.
    return location;
  }
}

/** Whether two locations are the same. */
export function isSameLocation(one: string, other: string): boolean {
  const [a, b] = [one, other].map((each) => withoutScheme(each).replace(/\/$/, ""));
  return a === b;
}

/** Whether a location is below a folder. */
export function isBelow(location: string, folder: string): boolean {
  return withoutScheme(location).startsWith(`${withoutScheme(folder).replace(/\/$/, "")}/`);
}

/** Whether a restore can return to a point. One that is undone and still kept is kept only by a reader's pin. */
export function isRestorable({ checkpoint_id: id, retained, undone }: Pick<CheckpointSummary | Entry, "checkpoint_id" | "retained" | "undone">): boolean {
  return id !== null && retained === true && undone !== true;
}

/**
 * The checkpoint or savepoint to which a restore can return at a mark; null if there is none, or it is the present one.
 * Without a job root, savepoints are named by their paths. The actions say which savepoints are deleted.
 */
export function targetOf({ kind, entries, newest }: Mark, actions: readonly ActionEntry[], jobRoot: string | null): string | null {
  const entry = entries.at(-1);
  if (entry === undefined || kind === "group" || newest) return null;
  if (kind !== "savepoint" || isCheckpoint(entry)) return isRestorable(entry) ? String(entry.checkpoint_id) : null;
  const { savepoint, savepoint_id: id, path } = entry.facts;
  const isDisposed = actions.some((action) => action.kind === "dispose" && action.facts.savepoint_id === id);
  if (typeof savepoint !== "string" || isDisposed) return null;
  // Names are searched in the job root only.
  const isInside = jobRoot !== null && typeof path === "string" && isBelow(path, jobRoot);
  return typeof path === "string" && !isInside ? path : savepoint;
}

/** By checkpoint that is not undone, the rows of the completed checkpoints after it. */
export function rowsAfterEach(checkpoints: readonly CheckpointSummary[]): ReadonlyMap<number | null, number> {
  const live = checkpoints.filter((each) => each.checkpoint_id !== null && each.undone === false).sort((a, b) => (b.checkpoint_id ?? 0) - (a.checkpoint_id ?? 0));
  const after = new Map<number | null, number>();
  let rows = 0;
  for (const each of live) {
    after.set(each.checkpoint_id, rows);
    rows += each.rows_in;
  }
  return after;
}

/** The kept checkpoints of a page of points, without the newest one, where the job is. */
export function keptPoints(points: readonly Entry[], newest: number | null, after: ReadonlyMap<number | null, number>): Point[] {
  // The record of a restore that made no checkpoint of its own has the id of the checkpoint to which it returned.
  const isOwn = (each: Entry) => isCheckpoint(each) || each.checkpoint_id !== each.restored_checkpoint_id;
  return points
    .filter((each) => each.checkpoint_id !== null && each.checkpoint_id !== newest && isOwn(each))
    .map((each) => ({
      target: String(each.checkpoint_id),
      name: `checkpoint ${each.checkpoint_id ?? ""}`,
      at: each.ended_at,
      bytes: isCheckpoint(each) ? each.full_bytes : each.size_bytes,
      rowsAfter: after.get(each.checkpoint_id) ?? null,
      remark: isCheckpoint(each) ? "" : `made by a ${each.kind}`,
    }));
}

/** The savepoints of a job, the newest first. */
export function savedPoints(savepoints: readonly Savepoint[], after: ReadonlyMap<number | null, number>): Point[] {
  return savepoints.map((each) => ({
    target: each.name,
    name: `savepoint ${each.name}`,
    at: each.made_at,
    bytes: each.size_bytes,
    rowsAfter: after.get(each.checkpoint_id) ?? null,
    remark: [each.checkpoint_id === null ? "" : `checkpoint ${each.checkpoint_id}`, each.reason ?? ""].filter((part) => part !== "").join(": "),
  }));
}

/** A deployment with the point before it; null if neither the job nor a savepoint has that point any more. */
export interface Before {
  deployment: Deployment;
  target: string | null;
}

/** The points before the job file changed, the newest first. */
export function beforeDeployments(runs: readonly RunSummary[], kept: readonly number[], savepoints: readonly Savepoint[]): Before[] {
  return deploymentsOf(runs).map((deployment) => {
    const { checkpoint } = deployment;
    if (checkpoint !== null && kept.includes(checkpoint)) return { deployment, target: String(checkpoint) };
    return { deployment, target: savepoints.find((each) => checkpoint !== null && each.checkpoint_id === checkpoint)?.name ?? null };
  });
}
