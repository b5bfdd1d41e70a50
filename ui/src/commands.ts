// Commands of the terminal that do what a page does in Airflow.
import { givenNames, givenPositions, type RestoreOptions } from "./restoreOptions";

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

/** Stands for the path of the job file in a command. */
export const JOB_FILE = "JOB.py";

/** The commands that write the plan of a restore and execute it. */
export function restoreCommands(jobRoot: string, options: RestoreOptions, reason: string, jobFile: string): [string, string] {
  const restore = ["restore", jobFile, "--job-root", jobRoot];
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
  return [command(...restore, ...plan), command(...restore, "--execute", "plan.json", ...option("--reason", reason.trim() === "" ? [] : [reason]))];
}

export function runCommand(jobRoot: string, jobFile = JOB_FILE): string {
  return command("run", jobFile, "--job-root", jobRoot);
}

/** The command that takes a savepoint; with `stops`, at the end of the run, which it ends. */
export function savepointCommand(jobRoot: string, stops: boolean, name: string, reason: string): string {
  const given = [...option("--name", name === "" ? [] : [name]), ...option("--reason", reason.trim() === "" ? [] : [reason])];
  return stops ? command("stop", "--job-root", jobRoot, "--savepoint", ...given) : command("savepoint", "create", "--job-root", jobRoot, ...given);
}

/** The commands that delete checkpoints and periodic savepoints beyond a number; with `--dry-run`, they only list them. */
export function retentionCommands(jobRoot: string, retain: number | null, savepoints: number | null): string[] {
  const gc = command("gc", "--job-root", jobRoot, ...option("--retain", retain === null ? [] : [String(retain)]), "--dry-run");
  return savepoints === null ? [gc] : [gc, command("savepoint", "prune", "--job-root", jobRoot, "--keep", String(savepoints), "--dry-run")];
}

/** The command that reads the files of a savepoint, and compares them with their hashes. */
export function verifyCommand(jobRoot: string, name: string): string {
  return command("savepoint", "verify", name, "--job-root", jobRoot);
}

/** The command that deletes a savepoint; with `claimed`, also one that a job has claimed. */
export function disposeCommand(jobRoot: string, name: string, claimed: boolean): string {
  return command("savepoint", "dispose", name, "--job-root", jobRoot, "--reason", "REASON", ...(claimed ? ["--claimed"] : []));
}
