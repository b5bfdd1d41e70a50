import { expect, it } from "vitest";
import { nearestDag } from "./airflow";
import type { FamilyDag } from "./api";

const dag = (id: string, role: FamilyDag["role"] = "recovery"): FamilyDag => ({ dag_id: id, role, may_trigger: true, may_pause: true, may_answer: true, is_paused: false });

it.each([
  [["flights_eu_recovery", "flights_recovery"], ["flights"], "flights_recovery"],
  [["_flights_recovery", "flights_eu_recovery"], ["flights"], "flights_eu_recovery"],
  [["_a_recovery", "z_recovery", "other_recovery"], [""], "z_recovery"],
  [["flights_recovery", "flights_eu_recovery"], ["flights_eu", "flights"], "flights_eu_recovery"],
  [["b_recovery", "a_recovery"], ["flights"], "a_recovery"],
  [["_only"], ["flights"], "_only"],
])("takes of %j for %j the nearest", (ids, names, wanted) => {
  expect(nearestDag(ids.map((id) => dag(id)), "recovery", names)?.dag_id).toBe(wanted);
});

it("takes the DAG of the job's name for a run, and none of another role", () => {
  const dags = [dag("flights_eu", "run"), dag("flights", "run"), dag("flights_recovery")];
  expect(nearestDag(dags, "run", ["flights"])?.dag_id).toBe("flights");
  expect(nearestDag(dags, "savepoint", ["flights"])).toBeNull();
});
