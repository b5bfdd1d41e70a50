// What a DAG of the retention deletes: the limits in its form, and nothing that a page has not shown.
import type { DagParams } from "./airflow";

/** The limits in the form of the DAG; null for none. The API's preview of a retention takes the same names. */
export interface Limits {
  /** Checkpoints to keep. */
  retain: number | null;
  /** Periodic savepoints to keep. */
  savepoints: number | null;
  /** Age above which periodic savepoints are deleted, such as "30d". */
  max_age: string | null;
}

export const NO_LIMITS: Limits = { retain: null, savepoints: null, max_age: null };

/** The limits that the DAG applies by default. */
export function limitsOf(params: DagParams): Limits {
  const value = (name: keyof Limits) => params[name]?.value ?? null;
  const [retain, savepoints, age] = [value("retain"), value("savepoints"), value("max_age")];
  return {
    retain: typeof retain === "number" ? retain : null,
    savepoints: typeof savepoints === "number" ? savepoints : null,
    max_age: typeof age === "string" && age.trim() !== "" ? age.trim() : null,
  };
}

/** Why a DAG run would do more than a page asks for: the form of the DAG lacks a field. Null if it has all of them. */
export function missingField(dag: string, params: DagParams, names: readonly string[]): string | null {
  const missing = names.find((name) => !(name in params));
  return missing === undefined ? null : `The form of ${dag} has no field ${missing}: its DAG run would do something else.`;
}

/** The configuration of a DAG run that applies these limits, deletes the named savepoint, and leaves the tables alone. */
export function retentionConf(params: DagParams, limits: Limits, disposal: { dispose: string; reason: string } | null): Record<string, unknown> {
  return { ...limits, preview: false, ...("tables" in params ? { tables: false } : {}), ...disposal };
}

/** The query of the preview of a retention. */
export function previewQuery(limits: Limits): string {
  return new URLSearchParams(Object.entries(limits).flatMap(([name, value]: [string, number | string | null]) => (value === null ? [] : [[name, String(value)]]))).toString();
}
