// Commands of the terminal that do what a page does in Airflow.
import { givenNames, givenPositions, isBlank, type RestoreOptions } from "./restoreOptions";
import type { Limits } from "./retention";

/** The files on a person's machine with which a job runs. */
export interface JobFiles {
  job: string;
  /** The TOML file with the job's settings; empty for none. */
  settings: string;
}

export const UNKNOWN_FILES: JobFiles = { job: "JOB.py", settings: "" };

/** A word of a shell's command. */
export function quoted(word: string): string {
  return /^[\w@%+=:,./-]+$/.test(word) ? word : `'${word.replaceAll("'", `'"'"'`)}'`;
}

function command(...words: string[]): string {
  return ["stateflow", ...words.map(quoted)].join(" ");
}

function option(name: string, values: readonly string[]): string[] {
  return values.flatMap((value) => [name, value]);
}

/** A reason, unless a reader would see none. */
function because(reason: string): string[] {
  return isBlank(reason) ? [] : ["--reason", reason.trim()];
}

/** A command that reads the job file, with the settings of the job: with other ones, it would run another job. */
function withFiles(name: string, { job, settings }: JobFiles, jobRoot: string): string[] {
  const file = job.trim() === "" ? UNKNOWN_FILES.job : job.trim();
  return [name, file, "--job-root", jobRoot, ...(settings.trim() === "" ? [] : ["--config", settings.trim()])];
}

/** The commands that write the plan of a restore and execute it. */
export function restoreCommands(jobRoot: string, options: RestoreOptions, reason: string, files: JobFiles = UNKNOWN_FILES): [string, string] {
  const restore = withFiles("restore", files, jobRoot);
  const plan = [
    ...option("--plan", [options.target]),
    ...option("--sinks", options.sinks === "keep" ? ["keep"] : []),
    ...option("--keep-table", options.sinks === "keep" ? [] : options.keepTables),
    ...option("--drop", options.drop),
    ...option("--map", givenNames(options)),
    ...option("--source", givenPositions(options)),
    ...(options.fromOtherJob ? ["--from-other-job"] : []),
    ...option("--claim-mode", options.claimMode === "claim" ? ["claim"] : []),
    ...option("--out", ["plan.json"]),
  ];
  return [command(...restore, ...plan), command(...restore, "--execute", "plan.json", ...because(reason))];
}

export function runCommand(jobRoot: string, files: JobFiles = UNKNOWN_FILES): string {
  return command(...withFiles("run", files, jobRoot));
}

/** The command that takes a savepoint of the run or of its newest checkpoint. */
export function savepointCommand(jobRoot: string): string {
  return command("savepoint", "create", "--job-root", jobRoot);
}

/** The command that ends the run with a savepoint. */
export function stopCommand(jobRoot: string): string {
  return command("stop", "--job-root", jobRoot, "--savepoint");
}

/** The commands that delete periodic savepoints and checkpoints beyond limits, or only list them. */
export function retentionCommands(jobRoot: string, { retain, savepoints, max_age: age }: Limits, listsOnly: boolean): string[] {
  const given = (name: string, value: number | string | null) => option(name, value === null ? [] : [String(value)]);
  const last = listsOnly ? ["--dry-run"] : [];
  const gc = command("gc", "--job-root", jobRoot, ...given("--retain", retain), ...last);
  if (savepoints === null && age === null) return [gc];
  return [command("savepoint", "prune", "--job-root", jobRoot, ...given("--keep", savepoints), ...given("--max-age", age), ...last), gc];
}

/** The command that reads the files of a savepoint, and compares them with their hashes. */
export function verifyCommand(jobRoot: string, name: string): string {
  return command("savepoint", "verify", name, "--job-root", jobRoot);
}

/** The command that deletes a savepoint; with `claimed`, also one that a job has claimed. */
export function disposeCommand(jobRoot: string, name: string, reason: string, claimed: boolean): string {
  return command("savepoint", "dispose", name, "--job-root", jobRoot, ...because(reason), ...(claimed ? ["--claimed"] : []));
}
