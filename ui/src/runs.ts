// What the records of runs say about each other: DAG runs and their tries, and job files that changed.
import type { RunSummary } from "./api";

/** Kinds of actions whose number is the generation of their run. */
export const KINDS_OF_RUNS: ReadonlySet<string> = new Set(["run", "failure", "background"]);

/** A try of a task of Airflow that has started a run. */
export type Attempt = NonNullable<RunSummary["attempt"]>;

/** The runs of the same task of the same DAG run, the newest of each try, in the order of tries. */
export function triesOf({ attempt: own }: RunSummary, runs: readonly RunSummary[]): [Attempt, RunSummary][] {
  if (own === null) return [];
  const byNumber = new Map<number, [Attempt, RunSummary]>();
  for (const each of [...runs].sort((a, b) => a.generation - b.generation)) {
    const found = each.attempt;
    const isSame = found !== null && found.dag_id === own.dag_id && found.dag_run_id === own.dag_run_id && found.task_id === own.task_id;
    if (isSame) byNumber.set(found.try_number, [found, each]);
  }
  return [...byNumber.values()].sort(([a], [b]) => a.try_number - b.try_number);
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
