// What the pages read and do in Airflow: its public REST API, with the user's session and rights. Paths and shapes are
// those of Airflow 3.2 and 3.3 (airflow/api_fastapi/core_api/routes/public).
import { airflowAddress, isStandalone, NO_ANSWER, type FamilyDag, type JobFamily, type OpenQuestion, type Problem, problemOf, type Resource, useAddress, useResource } from "./api";

/** A DAG, with the fields that the pages show. */
export interface Dag {
  dag_id: string;
  is_paused: boolean;
  next_dagrun_run_after: string | null;
}

export interface DagRun {
  dag_run_id: string;
  dag_id: string;
  state: "queued" | "running" | "success" | "failed";
  start_date: string | null;
  end_date: string | null;
  triggering_user_name: string | null;
  conf: Record<string, unknown> | null;
}

export interface TaskInstance {
  task_id: string;
  dag_id: string;
  dag_run_id: string;
  map_index: number;
  /** Null before the scheduler has looked at it. */
  state: string | null;
  try_number: number;
  start_date: string | null;
  end_date: string | null;
}

export interface AirflowUser {
  id: string;
  name: string;
}

/** A question of a task, with its answer. */
export interface Question {
  options: string[];
  subject: string;
  body: string | null;
  params: Record<string, { value?: unknown }>;
  assigned_users: AirflowUser[];
  created_at: string;
  responded_by_user: AirflowUser | null;
  responded_at: string | null;
  chosen_options: string[] | null;
  params_input: Record<string, unknown>;
  response_received: boolean;
  task_instance: TaskInstance;
}

interface Questions {
  hitl_details: Question[];
  total_entries: number;
}

/** States of a task that waits for an answer: Airflow 3.3 has a state of its own for it. */
const WAITING = new Set(["deferred", "awaiting_input"]);

export function isWaiting({ response_received: answered, task_instance: task }: Question): boolean {
  return !answered && task.state !== null && WAITING.has(task.state);
}

function segment(text: string): string {
  return encodeURIComponent(text);
}

function runPath(dag: string, run: string): string {
  return `api/v2/dags/${segment(dag)}/dagRuns/${segment(run)}`;
}

/** Keeps an answer of Airflow current; asks nothing for null, and nothing without Airflow. */
function useAirflow<T>(path: string | null, everyMs: number): Resource<T> {
  return useAddress(path === null || isStandalone ? null : airflowAddress(path), everyMs);
}

export function useDag(dag: string | null): Resource<Dag> {
  return useAirflow(dag === null ? null : `api/v2/dags/${segment(dag)}`, 10_000);
}

/** The fields of a DAG's form by name, with their defaults. */
export type DagParams = Readonly<Record<string, { value?: unknown }>>;

export function useDagDetails(dag: string | null): Resource<{ params: DagParams | null }> {
  return useAirflow(dag === null ? null : `api/v2/dags/${segment(dag)}/details`, 300_000);
}

/** The DAG runs that have not ended. */
export function useActiveRuns(dag: string | null): Resource<{ dag_runs: DagRun[] }> {
  const query = "state=running&state=queued&order_by=-run_after&limit=5";
  return useAirflow(dag === null ? null : `api/v2/dags/${segment(dag)}/dagRuns?${query}`, 10_000);
}

export function useDagRun(dag: string | null, run: string): Resource<DagRun> {
  return useAirflow(dag === null ? null : runPath(dag, run), 5_000);
}

export function useTasks(dag: string | null, run: string): Resource<{ task_instances: TaskInstance[] }> {
  return useAirflow(dag === null ? null : `${runPath(dag, run)}/taskInstances`, 5_000);
}

/** The questions of a DAG run, answered or not. */
export function useQuestions(dag: string | null, run: string): Resource<Questions> {
  return useAirflow(dag === null ? null : `${runPath(dag, run)}/hitlDetails?order_by=-created_at`, 5_000);
}

/** What a task has returned, or has pushed with another key; null as long as there is nothing. */
export function useReturned<T>(dag: string | null, run: string, task: string, key = "return_value"): Resource<T> {
  const path = dag === null ? null : `${runPath(dag, run)}/taskInstances/${segment(task)}/xcomEntries/${key}`;
  const found = useAirflow<{ value: unknown }>(path, 10_000);
  return { ...found, value: found.value === null ? null : (returnedValue(found.value.value) as T | null) };
}

/** A returned value: Airflow stores it as an object, or as the text of one. */
function returnedValue(value: unknown): unknown {
  if (typeof value !== "string") return value;
  try {
    return JSON.parse(value);
  } catch {
    return null;
  }
}

/** The last error in the log of a try of a task; null as long as it is not known. */
export function useTaskError(task: TaskInstance | null): string | null {
  const path = task === null ? null : `${runPath(task.dag_id, task.dag_run_id)}/taskInstances/${segment(task.task_id)}/logs/${task.try_number}?map_index=${task.map_index}`;
  const { value } = useAirflow<{ content: (string | { event: string; level?: string })[] }>(path, 60_000);
  const errors = value?.content.filter((line) => typeof line !== "string" && ["error", "critical"].includes((line.level ?? "").toLowerCase())) ?? [];
  // The first error has the reason; Airflow then logs that the task failed.
  const [first] = errors;
  return first === undefined || typeof first === "string" ? null : first.event;
}

/**
 * Who is logged in; null as long as it is not known. Only the API of Airflow's own pages says it: without an answer,
 * Airflow still refuses what the user may not do.
 */
export function useMe(): AirflowUser | null {
  const { value } = useAirflow<{ id: string | number; username: string }>("ui/auth/me", 300_000);
  return value === null ? null : { id: String(value.id), name: value.username };
}

/** The DAGs of a job; none on the pages' own server, and none for a job that no DAG runs. */
export interface Family {
  /** Whether they are known, so that a missing one does not exist. */
  isKnown: boolean;
  problem: Problem | null;
  /** The job's name, as far as the page knows it: the name of the folder of its job root. */
  name: string;
  /** The DAG with this role whose name is nearest to the job's. */
  dag: (role: FamilyDag["role"]) => FamilyDag | null;
  dags: readonly FamilyDag[];
  /** The questions about the job that wait for an answer, newest first. */
  questions: readonly OpenQuestion[];
  reload: () => void;
}

const NO_DAGS: readonly FamilyDag[] = [];
const NO_QUESTIONS: readonly OpenQuestion[] = [];

/**
 * The DAG with a role whose id is nearest to one of several names, the first of which counts most: NAME_ROLE, or NAME
 * itself for a run, then another id that begins with NAME_, then the shortest id. One that begins with an underscore,
 * as hidden ones do, is the last.
 */
export function nearestDag(dags: readonly FamilyDag[], role: FamilyDag["role"], names: readonly string[]): FamilyDag | null {
  const known = names.filter((name) => name !== "");
  const rank = ({ dag_id: id }: FamilyDag) => [
    ...known.flatMap((name) => [id === (role === "run" ? name : `${name}_${role}`), id.startsWith(`${name}_`)]).map((fits) => (fits ? 0 : 1)),
    id.startsWith("_") ? 1 : 0,
    id.length,
  ];
  const order = (one: FamilyDag, other: FamilyDag) => {
    const [left, right] = [rank(one), rank(other)];
    const differs = left.findIndex((value, index) => value !== right[index]);
    return differs === -1 ? one.dag_id.localeCompare(other.dag_id) : (left[differs] ?? 0) - (right[differs] ?? 0);
  };
  return dags.filter((each) => each.role === role).sort(order)[0] ?? null;
}

/** The id of a job root is the name of its folder and a hash. */
const HASH = /-[0-9a-f]{16}$/;

export function useFamily(job: string | null): Family {
  const { value, problem, reload } = useResource<JobFamily>(isStandalone || job === null ? null : `jobs/${segment(job)}/family`, 15_000);
  const dags = value?.dags ?? NO_DAGS;
  const isMissing = isStandalone || problem?.status === 404;
  const name = (job ?? "").replace(HASH, "");
  return {
    isKnown: isMissing || value !== null,
    problem: isMissing || value !== null ? null : problem,
    name,
    dag: (role) => nearestDag(dags, role, [name]),
    dags,
    questions: value?.questions ?? NO_QUESTIONS,
    reload,
  };
}

/** Sends a change to Airflow. Returns its answer, or why there is none. */
async function send(method: "POST" | "PATCH", path: string, body: object): Promise<{ done: unknown } | { problem: Problem }> {
  let response: Response;
  try {
    const headers = new Headers({ "Content-Type": "application/json", Accept: "application/json" });
    response = await fetch(airflowAddress(path), { method, headers, body: JSON.stringify(body), credentials: "same-origin" });
  } catch {
    return { problem: NO_ANSWER };
  }
  if (!response.ok) return { problem: sentenceOf(await problemOf(response)) };
  try {
    return { done: await response.json() };
  } catch {
    return { problem: { status: response.status, message: "the answer is not JSON: another server answers here", hint: null } };
  }
}

/** What an error of Airflow means for the user. */
function sentenceOf(problem: Problem): Problem {
  const told = problem.message.replace(/\.$/, "");
  if (problem.status === 401) return { ...problem, message: "You are not logged in any more", hint: "Log in again; nothing was changed." };
  if (problem.status === 403) return { ...problem, message: `Airflow refuses this: ${told}`, hint: "Your user does not have the right. Nothing was changed." };
  if (problem.status === 404) return { ...problem, message: `Airflow does not find it: ${told}`, hint: "Nothing was changed." };
  if (problem.status === 409) return { ...problem, message: `Somebody was faster: ${told}`, hint: "Load the page again. Your change was not made." };
  if (problem.status === 400 || problem.status === 422) return { ...problem, message: `Airflow refuses the values: ${told}`, hint: "Nothing was changed." };
  return { ...problem, message: `Airflow did not do this: ${told}`, hint: problem.hint };
}

/** Triggers a DAG with a configuration. Returns the id of the DAG run, or why there is none. */
export async function trigger(dag: string, conf: Record<string, unknown>): Promise<{ run: string } | { problem: Problem }> {
  // Airflow requires the field; null lets several DAG runs have no logical date.
  const sent = await send("POST", `api/v2/dags/${segment(dag)}/dagRuns`, { logical_date: null, conf });
  return "problem" in sent ? sent : { run: (sent.done as DagRun).dag_run_id };
}

/** Pauses or unpauses a DAG. Returns why it could not; null if it could. */
export async function setPaused(dag: string, isPaused: boolean): Promise<Problem | null> {
  const sent = await send("PATCH", `api/v2/dags/${segment(dag)}`, { is_paused: isPaused });
  return "problem" in sent ? sent.problem : null;
}

/** Answers a question of a task. Returns why it could not; null if it could. */
export async function answer(question: Question, option: string, note: string): Promise<Problem | null> {
  const { dag_id: dag, dag_run_id: run, task_id: task, map_index: index } = question.task_instance;
  // The operator refuses an answer without all of its params.
  const given = Object.entries(question.params).map(([name, param]): [string, unknown] => [name, name === "note" ? note.trim() || null : (param.value ?? null)]);
  const body = { chosen_options: [option], params_input: Object.fromEntries(given) };
  const sent = await send("PATCH", `${runPath(dag, run)}/taskInstances/${segment(task)}/${index}/hitlDetails`, body);
  return "problem" in sent ? sent.problem : null;
}

/** The path of a DAG run's page in Airflow. */
export function dagRunPage(dag: string, run: string): string {
  return `/dags/${segment(dag)}/runs/${segment(run)}`;
}
