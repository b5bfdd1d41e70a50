// The points to which a restore can return, from what a job keeps.
import type { SavepointPage, TimelinePage, TimelinePoint } from "./api";
import { isCheckpoint, type Mark } from "./pictures/timelineLayout";
import { type Deployment, deploymentsOf } from "./runs";

/** A point to which a restore can return. */
export interface Point {
  target: string;
  name: string;
  at: string | null;
  bytes: number;
  /** Rows that the job has read after it; null if that is not known. */
  rowsAfter: number | null;
  remark: string;
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

/** Whether a location is below a folder. */
export function isBelow(location: string, folder: string): boolean {
  return withoutScheme(location).startsWith(`${withoutScheme(folder).replace(/\/$/, "")}/`);
}

/** The checkpoint or savepoint to which a restore can return at a mark; null if there is none, or it is the present one. Without a job root, savepoints are named by their paths. */
export function targetOf({ kind, entries, retained, newest }: Mark, { actions }: Pick<TimelinePage, "actions">, jobRoot: string | null): string | null {
  const entry = entries.at(-1);
  if (entry === undefined || kind === "group" || newest) return null;
  if (kind !== "savepoint" || isCheckpoint(entry)) return retained && entry.checkpoint_id !== null ? String(entry.checkpoint_id) : null;
  const { savepoint, savepoint_id: id, path } = entry.facts;
  const isDisposed = actions.some((action) => action.kind === "dispose" && action.facts.savepoint_id === id);
  if (typeof savepoint !== "string" || isDisposed) return null;
  // Names are searched in the job root only.
  const isInside = jobRoot !== null && typeof path === "string" && isBelow(path, jobRoot);
  return typeof path === "string" && !isInside ? path : savepoint;
}

/** By checkpoint that is not undone, the rows of the completed checkpoints after it. */
function rowsAfterEach(checkpoints: readonly TimelinePoint[]): Map<number, number> {
  const live = checkpoints.filter((each) => each.checkpoint_id !== null && each.undone === false).sort((a, b) => (b.checkpoint_id ?? 0) - (a.checkpoint_id ?? 0));
  const after = new Map<number, number>();
  let rows = 0;
  for (const each of live) {
    after.set(each.checkpoint_id ?? 0, rows);
    rows += each.rows_in;
  }
  return after;
}

/** The kept checkpoints and the savepoints of a job, the newest first. The newest checkpoint is where the job is. */
export function pointsOf({ checkpoints }: Pick<TimelinePage, "checkpoints">, { savepoints }: Pick<SavepointPage, "savepoints">): Point[] {
  const after = rowsAfterEach(checkpoints);
  const rowsAfter = (id: number | null) => (id === null ? null : (after.get(id) ?? null));
  const newest = checkpoints.reduce((most, each) => (each.undone === false ? Math.max(most, each.checkpoint_id ?? 0) : most), 0);
  const kept = checkpoints.filter((each) => each.retained && each.checkpoint_id !== null && each.checkpoint_id !== newest);
  const points: Point[] = kept.map((each) => ({
    target: String(each.checkpoint_id),
    name: `checkpoint ${each.checkpoint_id ?? ""}`,
    at: each.ended_at,
    bytes: each.full_bytes,
    rowsAfter: rowsAfter(each.checkpoint_id),
    remark: each.undone === true ? "undone" : "",
  }));
  const saved: Point[] = savepoints.map((each) => ({
    target: each.name,
    name: `savepoint ${each.name}`,
    at: each.made_at,
    bytes: each.size_bytes,
    rowsAfter: rowsAfter(each.checkpoint_id),
    remark: [each.checkpoint_id === null ? "" : `checkpoint ${each.checkpoint_id}`, each.reason ?? ""].filter((part) => part !== "").join(": "),
  }));
  return [...points, ...saved].sort((a, b) => Date.parse(b.at ?? "") - Date.parse(a.at ?? "") || a.name.localeCompare(b.name));
}

/** A deployment with the point before it; null if neither the job nor a savepoint has that point any more. */
export interface Before {
  deployment: Deployment;
  target: string | null;
}

/** The points before the job file changed, the newest first. */
export function beforeDeployments({ checkpoints, runs }: Pick<TimelinePage, "checkpoints" | "runs">, { savepoints }: Pick<SavepointPage, "savepoints">): Before[] {
  const kept = new Set(checkpoints.filter((each) => each.retained).map((each) => each.checkpoint_id));
  return deploymentsOf(runs).map((deployment) => {
    const { checkpoint } = deployment;
    if (checkpoint !== null && kept.has(checkpoint)) return { deployment, target: String(checkpoint) };
    return { deployment, target: savepoints.find((each) => checkpoint !== null && each.checkpoint_id === checkpoint)?.name ?? null };
  });
}
