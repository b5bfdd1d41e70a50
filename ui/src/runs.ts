// What the records of runs say about each other: DAG runs and their tries, and job files that changed.
import type { RunSummary } from "./api";

/** Kinds of actions whose number is the generation of their run. */
export const KINDS_OF_RUNS: ReadonlySet<string> = new Set(["run", "failure", "background"]);

/** A try of a task that runs a job; the task writes it into the reason of its run. */
export interface Attempt {
  dag: string;
  dagRun: string;
  /** Task, with its map index if it has one. */
  task: string;
  number: number;
}

/** DAG, DAG run, task, map index, try, and how often the launch restarted. The id of a DAG run can have slashes. */
// A reason can be any text of any length: each part between slashes is read a fixed number of times.
const REASON = /^([^/]+)\/(.+)\/((?=[^/]*[A-Za-z_])[^/]+(?:\/\d+)?)\/(\d+)(?:; restart \d+)?$/;

/** The try of a task in the reason of a run; null if no task of Airflow has started it. */
export function attemptOf(reason: string | null): Attempt | null {
  const [, dag, dagRun, task, number] = REASON.exec(reason ?? "") ?? [];
  if (dag === undefined || dagRun === undefined || task === undefined) return null;
  return { dag, dagRun, task, number: Number(number) };
}

/** The runs of the same task of the same DAG run, the newest of each try, in the order of tries. */
export function triesOf(run: RunSummary, runs: readonly RunSummary[]): [Attempt, RunSummary][] {
  // A reason that anybody may have written can look like that of a task.
  const own = run.try_number === null ? null : attemptOf(run.reason);
  if (own === null) return [];
  const byNumber = new Map<number, [Attempt, RunSummary]>();
  for (const each of [...runs, run].sort((a, b) => a.generation - b.generation)) {
    const found = each.try_number === null ? null : attemptOf(each.reason);
    const isSame = found !== null && found.dag === own.dag && found.dagRun === own.dagRun && found.task === own.task;
    if (isSame) byNumber.set(found.number, [found, each]);
  }
  return [...byNumber.values()].sort(([a], [b]) => a.number - b.number);
}

/** How a try ended before a later one: a run that was killed has no record of its end. */
export function earlierEnd({ failure }: RunSummary): string {
  return failure === null ? "recorded no error: it was killed, or a person cleared it" : `failed: ${failure.code}`;
}

/** The first run of a job file, and the last checkpoint of the runs before it. */
export interface Deployment {
  at: string;
  jobFile: string | null;
  generation: number;
  run: number | null;
  /** The checkpoint that the first run with the job file continued from. */
  checkpoint: number | null;
}

/** Runs whose job file differs from the job file of the run before them, the newest first. */
export function deploymentsOf(runs: readonly RunSummary[]): Deployment[] {
  const known = runs.filter((run) => run.job_file_sha256 !== null).sort((a, b) => a.generation - b.generation);
  const found: Deployment[] = [];
  known.forEach((run, index) => {
    const before = known[index - 1];
    const at = run.started_at ?? run.first_triggered_at;
    if (before === undefined || before.job_file_sha256 === run.job_file_sha256 || at === null) return;
    found.push({ at, jobFile: run.job_file, generation: run.generation, run: run.run, checkpoint: run.base_checkpoint_id });
  });
  return found.reverse();
}
