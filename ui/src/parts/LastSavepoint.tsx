import { Text } from "@chakra-ui/react";
import { isWhole, type JobRow } from "../api";
import { PageLink } from "./links";
import { Time } from "./Time";
import { Muted } from "./Waiting";

/** The newest savepoint of a job; `base` is the path of the job's pages. A history of which a part is missing may have one. */
export function LastSavepoint({ job, base }: { job: JobRow; base: string }) {
  const { savepoint } = job;
  if (savepoint === null && (job.savepoint_unknown ?? !isWhole(job))) return <Muted text="not known" title="Not all records of the history are known: one may be that of a savepoint." />;
  if (savepoint === null) {
    return (
      <Text as="span" color="red.fg" fontWeight="semibold">
        never
      </Text>
    );
  }
  return (
    <>
      <PageLink to={`${base}/savepoints?savepoint=${encodeURIComponent(savepoint.name)}`}>{savepoint.name}</PageLink>
      {savepoint.made_at !== null && (
        <Text as="span" color="fg.muted" ml={2}>
          <Time at={savepoint.made_at} />
        </Text>
      )}
    </>
  );
}
