// What a person chooses for a restore, and how the API, the recovery DAG and the command line write it.

export interface RestoreOptions {
  target: string;
  sinks: "restore" | "keep";
  /** Uids of sinks whose tables keep their content while others are restored. */
  keepTables: readonly string[];
  /** Uids of operators whose state is dropped. */
  drop: readonly string[];
  /** New name by the uid in the target; empty for the same. */
  newNames: Readonly<Record<string, string>>;
  /** Position by the uid of a source; empty for the target's. */
  positions: Readonly<Record<string, string>>;
  fromOtherJob: boolean;
  claimMode: "no-claim" | "claim";
  /** Whether the job runs after the restore. */
  run: boolean;
}

export function optionsFor(target: string): RestoreOptions {
  return { target, sinks: "restore", keepTables: [], drop: [], newNames: {}, positions: {}, fromOtherJob: false, claimMode: "no-claim", run: false };
}

function assignments(given: Readonly<Record<string, string>>): string[] {
  return Object.entries(given)
    .filter(([, value]) => value.trim() !== "")
    .map(([name, value]) => `${name}=${value.trim()}`);
}

/** "OLD=NEW" for each new name. */
export function givenNames({ newNames }: RestoreOptions): string[] {
  return assignments(newNames);
}

/** "UID=POSITION" for each position. */
export function givenPositions({ positions }: RestoreOptions): string[] {
  return assignments(positions);
}

/** The names and values that the params of the recovery DAG have; null for an empty text. */
function params(options: RestoreOptions) {
  const text = (parts: readonly string[], separator: string) => (parts.length === 0 ? null : parts.join(separator));
  return {
    target: options.target,
    sinks: options.sinks,
    keep_tables: options.sinks === "keep" ? null : text(options.keepTables, ","),
    drop: text(options.drop, ","),
    new_names: text(givenNames(options), ","),
    source_positions: text(givenPositions(options), "\n"),
    from_other_job: options.fromOtherJob,
    claim_mode: options.claimMode,
  };
}

/** The query of `restore-plan`: it has the names of the recovery DAG's form. */
export function planQuery(options: RestoreOptions): string {
  const query = new URLSearchParams();
  for (const [name, value] of Object.entries(params(options))) {
    if (value !== null && value !== false) query.set(name, String(value));
  }
  return query.toString();
}

/** The configuration of the recovery DAG. */
export function recoveryConf(options: RestoreOptions, reason: string, expectedPlan: string | null): Record<string, unknown> {
  return { ...params(options), reason: reason.trim(), run: options.run, expected_plan: expectedPlan };
}

const VISIBLE = /[^\s\p{Cc}\p{Cf}\u034f\u115f\u1160\u3164]/u;

/** Whether a text has no character that a reader sees; the DAG's form refuses such a reason. */
export function isBlank(text: string): boolean {
  return !VISIBLE.test(text);
}
