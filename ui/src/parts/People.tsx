import type { Person } from "../api";
import { PersonLink } from "./links";

/** A person; a claimed name, which nothing has checked, with the account that gave it. */
function personText(person: Person): string {
  return person.name + remarkOf(person);
}

function remarkOf(person: Person): string {
  if (person.source !== "claim") return "";
  return ` (claimed name${person.account === null ? "" : `, account ${person.account}`})`;
}

/** "oscar, requested by uma". */
export function peopleText(by: Person | null, requestedBy: Person | null): string {
  if (by === null) return "";
  return personText(by) + (requestedBy === null ? "" : `, requested by ${personText(requestedBy)}`);
}

/** A person with a link to what they did. */
export function PersonName({ person }: { person: Person }) {
  return (
    <>
      <PersonLink name={person.name} />
      {remarkOf(person)}
    </>
  );
}

/** The same as `peopleText`, with links. */
export function People({ by, requestedBy }: { by: Person | null; requestedBy: Person | null }) {
  if (by === null) return null;
  return (
    <>
      <PersonName person={by} />
      {requestedBy !== null && (
        <>
          , requested by <PersonName person={requestedBy} />
        </>
      )}
    </>
  );
}
