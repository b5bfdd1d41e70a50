import { Text } from "@chakra-ui/react";
import type { JobRow } from "../api";
import { PageLink } from "./links";
import { Time } from "./Time";
import { Muted } from "./Waiting";

/** The newest savepoint of a job; `base` is the path of the job's pages. */
export function LastSavepoint({ job, base }: { job: JobRow; base: string }) {
  const { savepoint } = job;
  if (savepoint === null && job.savepoint_unknown) return <Muted text="not known" title="Records of the history are missing: one of them may be of a savepoint." />;
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
