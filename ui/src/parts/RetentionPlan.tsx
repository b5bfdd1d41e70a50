import { Heading, SimpleGrid, Stack, Text } from "@chakra-ui/react";
import { useState } from "react";
import { trigger } from "../airflow";
import { type FamilyDag, type JobState, type RetentionPreview, type Savepoint, useResource } from "../api";
import { retentionCommands } from "../commands";
import { counted, formatBytes } from "../format";
import { Command } from "./Command";
import { ConfirmedAction } from "./ConfirmedAction";
import { triggerRefusal } from "./DagChoice";
import { RangeField } from "./Fields";
import { approvalPath, PageLink } from "./links";
import { FreshnessNotice, Loaded } from "./Loaded";
import { TriggeredRun } from "./TriggeredRun";
import { useDebounced } from "./useDebounced";

interface Props {
  address: string;
  base: string;
  job: JobState;
  savepoints: readonly Savepoint[];
  dag: FamilyDag | null;
  /** Whether a DAG that is missing does not exist. */
  isKnown: boolean;
}

/** How many checkpoints and periodic savepoints to keep, and what that deletes: a dry run at each change. */
export function RetentionPlan({ address, base, job, savepoints, dag, isKnown }: Props) {
  const kept = Math.max(1, job.description?.retained_checkpoint_ids.length ?? 1);
  const periodic = savepoints.filter((each) => each.origin === "periodic").length;
  const [retain, setRetain] = useState<number | null>(null);
  const [keep, setKeep] = useState<number | null>(null);
  const query = new URLSearchParams({ ...(retain === null ? {} : { retain: String(retain) }), ...(keep === null ? {} : { savepoints: String(keep) }) }).toString();
  const settled = useDebounced(query);
  const preview = useResource<RetentionPreview>(`${address}/retention-preview${settled === "" ? "" : `?${settled}`}`, 30_000);
  const isCurrent = settled === query && preview.problem === null && preview.value !== null;
  return (
    <Stack as="section" gap={3} aria-label="Retention">
      <Heading as="h2" size="md">
        Retention
      </Heading>
      <SimpleGrid columns={{ base: 1, md: 2 }} gap={4} maxW="3xl">
        <RangeField
          label="Checkpoints to keep"
          value={retain ?? kept}
          least={1}
          most={kept}
          onChange={setRetain}
          help={retain === null ? "Without a choice, as the job keeps them." : undefined}
        />
        {periodic > 0 && (
          <RangeField
            label="Periodic savepoints to keep"
            value={keep ?? periodic}
            least={1}
            most={periodic}
            onChange={setKeep}
            help={keep === null ? "Without a choice, all." : undefined}
          />
        )}
      </SimpleGrid>
      <Loaded resource={preview}>{(found) => <Preview preview={found} />}</Loaded>
      {dag !== null && <Apply key={dag.dag_id} dag={dag} base={base} retain={retain} keep={keep} preview={isCurrent ? preview.value : null} />}
      {dag === null && isKnown && retentionCommands(job.job_root, retain, keep).map((text) => <Command key={text} text={text} />)}
    </Stack>
  );
}

function Preview({ preview }: { preview: RetentionPreview }) {
  const { checkpoints, savepoints, freed_bytes: freed } = preview;
  return (
    <div role="status">
      <FreshnessNotice of={preview} />
      {savepoints === null && <Text>The job has too many savepoints to say which ones this deletes.</Text>}
      {checkpoints.length === 0 && (savepoints ?? []).length === 0 ? (
        <Text>This deletes no checkpoint{savepoints === null ? "" : " and no savepoint"}.</Text>
      ) : (
        <Text color="red.fg" fontWeight="semibold" overflowWrap="anywhere">
          This deletes {counted(checkpoints.length, "checkpoint")}
          {checkpoints.length > 0 && ` (${checkpoints.join(", ")})`}
          {savepoints !== null && ` and ${counted(savepoints.length, "savepoint")}`}
          {savepoints !== null && savepoints.length > 0 && ` (${savepoints.join(", ")})`}.{" "}
          {freed === null ? "It is not known how much it frees." : `It frees ${formatBytes(freed)}.`}
        </Text>
      )}
    </div>
  );
}

function Apply({ dag, base, retain, keep, preview }: { dag: FamilyDag; base: string; retain: number | null; keep: number | null; preview: RetentionPreview | null }) {
  const [run, setRun] = useState<string | null>(null);
  const refused = () => {
    const because = triggerRefusal(dag);
    if (because !== null) return because;
    if (retain === null && keep === null) return "Choose a number first.";
    return preview === null ? "It is not known yet what this deletes." : null;
  };
  return (
    <Stack gap={2}>
      <ConfirmedAction
        label="Apply this retention"
        colour="red"
        refused={refused()}
        question={
          <Text>
            This triggers {dag.dag_id}. It first takes a savepoint, which is kept until a person deletes it. What the configured numbers keep is deleted only after the approval
            of a person who may answer its question.
          </Text>
        }
        act={async () => {
          // Both, as the preview assumed them: null is the setting of the last run, or all savepoints.
          const answer = await trigger(dag.dag_id, { retain, savepoints: keep, preview: false });
          if ("problem" in answer) return answer.problem;
          setRun(answer.run);
          return null;
        }}
      />
      {run !== null && (
        <TriggeredRun dag={dag.dag_id} run={run}>
          <PageLink to={approvalPath(base, dag.dag_id, run)}>Its question, if it has one</PageLink>
        </TriggeredRun>
      )}
    </Stack>
  );
}
