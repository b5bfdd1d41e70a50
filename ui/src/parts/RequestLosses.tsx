import { Text } from "@chakra-ui/react";
import type { JobState, SavepointPage } from "../api";
import { type Asked, deletedAlready, isOvertaken } from "../approval";
import { formatCount } from "../format";
import type { LossNumber } from "../losses";
import { Notice } from "./Loaded";
import { LossNumbers } from "./Losses";

interface Props {
  asked: Asked;
  /** Whether the question still waits: otherwise what it is about may be deleted by now. */
  waits: boolean;
  job: JobState | null;
  saved: SavepointPage | null;
}

/** What a retention or a deletion deletes, or what a stop does to the run, and whether that is still so. */
export function RequestLosses({ asked, waits, job, saved }: Props) {
  const { checkpoints = [], savepoints = [] } = asked;
  if (checkpoints.length + savepoints.length === 0) return asked.generation == null ? null : <Stop {...{ asked, waits, job }} />;
  const numbers = [numberOf("checkpoint", checkpoints.map(String)), numberOf("savepoint", savepoints)];
  return (
    <>
      <LossNumbers numbers={numbers} />
      {waits && (
        <>
          <Text color="red.fg" fontWeight="semibold">
            They are deleted for ever, with all that the configuration does not keep anyway.
          </Text>
          <StillThere gone={deletedAlready(asked, job, saved)} />
        </>
      )}
    </>
  );
}

function numberOf(what: string, names: readonly string[]): LossNumber {
  const label = names.length === 1 ? `${what} is deleted that would be kept` : `${what}s are deleted that would be kept`;
  return { value: formatCount(names.length), label, note: names.join(", "), isLoss: names.length > 0 };
}

function StillThere({ gone }: { gone: string[] | null }) {
  if (gone === null) return <Notice status="warning" title="It is not known whether all of them still exist" />;
  if (gone.length > 0) return <Notice status="info" title={`Deleted already: ${gone.join(", ")}`} />;
  return (
    <Text color="green.fg" role="status">
      ✓ The request is still valid: all of them exist. The task deletes nothing if it would delete another one that the configuration keeps.
    </Text>
  );
}

function Stop({ asked, waits, job }: Omit<Props, "saved">) {
  return (
    <>
      {asked.drain === true ? (
        <Notice status="warning" title="Every event-time timer fires first">
          Windows and sessions that are open are closed, and their output is written: a run after this one does not continue them.
        </Notice>
      ) : (
        <Text>Nothing is lost: the job keeps its state in a savepoint.</Text>
      )}
      {waits && job?.generation != null && isOvertaken(asked, job) === null && (
        <Text color="green.fg" role="status">
          ✓ The request is still valid: no later run has begun.
        </Text>
      )}
      {waits && job?.generation == null && <Notice status="warning" title="It is not known whether the request is still valid: the job cannot be read now" />}
    </>
  );
}
