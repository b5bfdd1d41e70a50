import { createContext, type ReactNode, useContext, useState } from "react";
import { type Family, nearestDag } from "../airflow";
import type { FamilyDag } from "../api";
import { SelectField } from "./Fields";

const LABELS: Record<FamilyDag["role"], string> = {
  run: "DAG that runs the job",
  savepoint: "DAG that takes savepoints",
  retention: "DAG of the retention",
  recovery: "DAG that restores the job",
  partitions: "DAG of the partitions",
};

const Shown = createContext("");

/** Says to the choices inside in the tab of which DAG they are. */
export const TabOf = Shown.Provider;

/** The name that the DAGs of a family begin with, by the id of one of them. */
function nameOfFamily(dags: readonly FamilyDag[], id: string): string {
  const role = dags.find((each) => each.dag_id === id)?.role;
  return role !== undefined && id.endsWith(`_${role}`) ? id.slice(0, -role.length - 1) : id;
}

/**
 * The DAG with a role that a page triggers, and a field that chooses it where there are several: at first the
 * DAG of the family of the tab, then the one that is named as the job.
 */
export function useDagChoice(family: Family, role: FamilyDag["role"]): { dag: FamilyDag | null; field: ReactNode } {
  const shown = useContext(Shown);
  const [chosen, setChosen] = useState<string | null>(null);
  const dags = family.dags.filter((each) => each.role === role);
  const own = dags.find(({ dag_id: id }) => id === shown) ?? nearestDag(dags, role, [nameOfFamily(family.dags, shown), family.name]);
  const dag = dags.find((each) => each.dag_id === chosen) ?? own;
  if (dag === null || dags.length === 1) return { dag, field: null };
  return { dag, field: <SelectField label={LABELS[role]} value={dag.dag_id} choices={dags.map(({ dag_id: id }) => [id, id] as const)} onChange={setChosen} /> };
}

/** Why a person cannot trigger a DAG now; null if they can. */
export function triggerRefusal(dag: FamilyDag, isPaused = dag.is_paused): string | null {
  if (!dag.may_trigger) return `You do not have the right to run ${dag.dag_id}.`;
  return isPaused ? `${dag.dag_id} is paused: its DAG run would wait. Unpause it first.` : null;
}
