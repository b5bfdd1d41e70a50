import type { Person } from "../api";

/** A person; a claimed name, which nothing has checked, with the account that gave it. */
export function personText(person: Person): string {
  if (person.source !== "claim") return person.name;
  return `${person.name} (claimed name${person.account === null ? "" : `, account ${person.account}`})`;
}

/** "oscar, requested by uma". */
export function peopleText(by: Person | null, requestedBy: Person | null): string {
  if (by === null) return "";
  return personText(by) + (requestedBy === null ? "" : `, requested by ${personText(requestedBy)}`);
}
