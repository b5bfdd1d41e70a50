// Who may answer a question, and whether the plan that it is about is still valid.
import type { AirflowUser, DagRun, Question } from "./airflow";
import type { FamilyDag, JobState, Caution, RestorePlan, SavepointPage } from "./api";
import { isBelow, isSameLocation } from "./targets";

/** What the task `plan` of a recovery DAG returns. */
export interface PlanOutput {
  plan: RestorePlan;
  markdown: string;
  cautions?: Caution[];
  replay?: string;
  dag: { paused: boolean; active_runs: unknown } | null;
}

/** What the task of a question has pushed about a retention, a deletion or a stop. Of versions before, parts are missing. */
export interface Asked {
  /** Checkpoints that are deleted although the configuration keeps them. */
  checkpoints?: number[];
  /** Savepoints that are deleted although the configuration keeps them, or because a person wants it. */
  savepoints?: string[];
  /** The run that ends; null if none does. */
  generation?: number | null;
  /** Whether the run fires every event-time timer before it ends. */
  drain?: boolean;
}

/** Whether a request says in numbers what it deletes. */
export function hasNumbers({ checkpoints = [], savepoints = [] }: Asked): boolean {
  return checkpoints.length + savepoints.length > 0;
}

/** Why a person cannot give an answer; null for each that they can. */
export interface Refusals {
  approve: string | null;
  reject: string | null;
}

/** The line that the task appends to each question. The reason is quoted, so it cannot begin a line in this way. */
const EXCLUDES_REQUESTER = /^\*\*Requested by\*\*: .*, who cannot approve it\s*$/m;
const UNTIL = /^\*\*Answer by\*\* (\d{4}-\d\d-\d\d) (\d\d:\d\d) UTC\./m;

/** Until when a question can be answered; null if it does not say so. */
export function answerUntil({ body }: Question): string | null {
  const [, day, time] = UNTIL.exec(body ?? "") ?? [];
  return day === undefined || time === undefined ? null : `${day}T${time}:00Z`;
}

function isSame(user: AirflowUser, name: string): boolean {
  return user.id === name || user.name === name;
}

/** Why what was asked cannot be executed any more, as a sentence without its end. */
export interface Outdated {
  sentence: string;
  /** Whether the target of a plan is gone, so that another point has to be chosen. */
  isGone: boolean;
}

/** Whether the checkpoint or savepoint to which a plan goes still exists; null if that is not known. */
export function hasTarget({ savepoint_path: path, target_checkpoint_id: id }: RestorePlan, job: JobState | null, saved: SavepointPage | null): boolean | null {
  if (job === null || job.problem !== null) return null;
  if (path === null) return job.description?.retained_checkpoint_ids.includes(id) ?? null;
  if (saved?.savepoints.some((each) => isSameLocation(each.path, path)) === true) return true;
  // Of savepoints elsewhere, the history does not always know whether they are deleted.
  const isKnown = saved !== null && saved.problem === null && !saved.older && isBelow(path, job.job_root);
  return isKnown ? false : null;
}

/** Why the plan cannot be executed any more; null if it can, or nothing else is known. */
export function outdatedBecause(plan: RestorePlan, job: JobState | null, saved: SavepointPage | null): Outdated | null {
  if (hasTarget(plan, job, saved) === false) {
    const gone = plan.savepoint_path === null ? `the job no longer keeps checkpoint ${plan.target_checkpoint_id}` : "its savepoint is deleted";
    return { sentence: `The plan is outdated: ${gone}`, isGone: true };
  }
  const change = changeOf(plan, job);
  return change === null ? null : { sentence: `The plan is outdated by ${change}: plan again`, isGone: false };
}

/** Why a stop cannot be executed any more; null if it can, or if that is not known. */
export function isOvertaken({ generation }: Asked, job: JobState | null): Outdated | null {
  if (generation == null || job?.generation == null || job.generation === generation) return null;
  return { sentence: `The request is outdated by ${beginningOf(job)}: ask again`, isGone: false };
}

/** The checkpoints and savepoints of a request that are deleted already; null if that is not known. */
export function deletedAlready({ checkpoints = [], savepoints = [] }: Asked, job: JobState | null, saved: SavepointPage | null): string[] | null {
  const retained = job?.problem === null ? job.description?.retained_checkpoint_ids : undefined;
  const names = saved?.problem === null && !saved.older ? saved.savepoints.map(({ name }) => name) : undefined;
  if ((checkpoints.length > 0 && retained === undefined) || (savepoints.length > 0 && names === undefined)) return null;
  const gone = checkpoints.filter((id) => retained?.includes(id) === false).map((id) => `checkpoint ${id}`);
  return [...gone, ...savepoints.filter((name) => names?.includes(name) === false).map((name) => `savepoint ${name}`)];
}

/** What has changed the job since the plan was made; null if nothing has. */
function changeOf(plan: RestorePlan, job: JobState | null): string | null {
  if (job?.generation == null) return null;
  if (job.generation !== plan.generation) return beginningOf(job);
  const newest = job.newest;
  const isLater = newest !== null && newest.generation === plan.generation && newest.checkpoint_id === job.checkpoint_id && newest.ordinal !== plan.ordinal;
  if (job.checkpoint_id !== plan.checkpoint_id || isLater) return `checkpoint ${job.checkpoint_id ?? "none"} of run ${job.run ?? job.generation}`;
  return null;
}

/** What has begun the newest generation: a run, or a restore, which the history has as an action only. */
function beginningOf({ generation, newest, runs }: JobState): string {
  const run = [...runs, ...(newest === null ? [] : [newest])].find((each) => each.generation === generation)?.run;
  return run == null ? "a later run or restore" : `run ${run}`;
}

/** Whether a person may approve and reject, as far as the page knows; Airflow decides. */
export function refusals(question: Question, run: DagRun | null, me: AirflowUser | null, dag: FamilyDag, outdated: Outdated | null): Refusals {
  const assigned = question.assigned_users;
  if (!dag.may_answer) return both(`You do not have the right to answer questions of ${dag.dag_id}.`);
  if (me !== null && assigned.length > 0 && !assigned.some((user) => isSame(me, user.id) || isSame(me, user.name))) {
    return both(`Only ${assigned.map((user) => user.name).join(", ")} may answer this question.`);
  }
  const requester = run?.triggering_user_name ?? null;
  const isRequester = me !== null && requester !== null && isSame(me, requester);
  if (isRequester && EXCLUDES_REQUESTER.test(question.body ?? "")) {
    return { approve: "You have asked for this, so another person has to approve it. You can reject it.", reject: null };
  }
  return { approve: outdated === null ? null : `${outdated.sentence}.`, reject: null };
}

function both(reason: string): Refusals {
  return { approve: reason, reject: reason };
}
