import { Text } from "@chakra-ui/react";
import { type JobState, type Resource, type SavepointPage, useResource } from "../api";
import { formatCount } from "../format";
import { FurtherFacts } from "./Facts";
import { SavepointLink } from "./links";
import { PersonName } from "./People";
import { Section } from "./Section";
import { Time } from "./Time";

/** Why it is not known whether anything else needs a checkpoint; null if all who could need it are known. */
function unknownNeeds(job: JobState | null, { value, problem }: Resource<SavepointPage>): string | null {
  if (job?.description == null) return "It is not known whether the job keeps it.";
  if (value === null) return problem === null ? "Its savepoints are being read." : "It is not known whether a savepoint has its state: the savepoints cannot be read now.";
  if (value.problem !== null) return "It is not known whether another savepoint has its state: the savepoints cannot be read now.";
  return value.older ? "It is not known whether an older savepoint has its state: only the newest ones are read." : null;
}

/** Who needs the checkpoint, so that nothing deletes it. */
export function CheckpointNeeds({ address, job, id }: { address: string; job: JobState | null; id: number }) {
  const saved = useResource<SavepointPage>(`${address}/savepoints`, 60_000);
  const description = job?.description ?? null;
  const pins = (description?.pins ?? []).filter((pin) => pin.checkpoint_id === id);
  const savepoints = (saved.value?.savepoints ?? []).filter((each) => each.checkpoint_id === id);
  const elsewhere = (saved.value?.elsewhere ?? []).filter((each) => each.checkpoint_id === id);
  const kept = description?.retained_checkpoint_ids ?? [];
  const isNeeded = kept.includes(id) || pins.length > 0 || savepoints.length > 0 || elsewhere.length > 0;
  const unknown = unknownNeeds(job, saved);
  return (
    <Section title="Who needs it">
      {unknown !== null && <Text color="fg.muted">{unknown}</Text>}
      {unknown === null && !isNeeded && <Text>Not needed: the job does not keep this checkpoint, and it has no savepoint.</Text>}
      {isNeeded && (
        <ul>
          {id === job?.checkpoint_id && <li>The next run continues from it.</li>}
          {kept.includes(id) && <li>The job keeps it: it is one of {formatCount(kept.length)} retained checkpoints.</li>}
          {pins.map((pin) => (
            <Text as="li" key={pin.id} overflowWrap="anywhere">
              {pin.owner === null ? "A reader" : <PersonName person={pin.owner} />} reads it: {pin.reason || "no reason is given"}
              {pin.expires_at !== null && (
                <>
                  ; until <Time at={pin.expires_at} full />
                </>
              )}
            </Text>
          ))}
          {savepoints.map(({ name }) => (
            <li key={name}>
              Savepoint <SavepointLink name={name} /> has its state.
            </li>
          ))}
          {elsewhere.map(({ seq, facts }) => (
            <Text as="li" key={seq} overflowWrap="anywhere">
              A savepoint outside of the job root has its state: <FurtherFacts facts={{ savepoint: facts.savepoint, path: facts.path }} />
            </Text>
          ))}
        </ul>
      )}
    </Section>
  );
}
