import { Heading, SimpleGrid, Stack, Text } from "@chakra-ui/react";
import { type ReactNode, useState } from "react";
import { type DagParams, trigger, useDagDetails } from "../airflow";
import { type FamilyDag, type JobState, type RetentionPreview, type Savepoint, useResource } from "../api";
import { retentionCommands } from "../commands";
import { counted, formatBytes } from "../format";
import { type Limits, limitsOf, missingField, NO_LIMITS, previewQuery, retentionConf } from "../retention";
import { Command } from "./Command";
import { ConfirmedAction } from "./ConfirmedAction";
import { triggerRefusal } from "./DagChoice";
import { RangeField, TextField } from "./Fields";
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

/** How many checkpoints and periodic savepoints to keep and how long, and what that deletes: a dry run at each change. */
export function RetentionPlan({ address, base, job, savepoints, dag, isKnown }: Props) {
  const params = useDagDetails(dag?.dag_id ?? null).value?.params ?? null;
  return (
    <Stack as="section" gap={3} aria-label="Retention">
      <Heading as="h2" size="md">
        Retention
      </Heading>
      {dag !== null && params === null && <Text role="status">The limits of {dag.dag_id} are being read.</Text>}
      {dag !== null && params !== null && (
        <Choice key={dag.dag_id} address={address} job={job} savepoints={savepoints} defaults={limitsOf(params)} by={dag.dag_id}>
          {(limits, preview) => <Apply dag={dag} params={params} base={base} limits={limits} preview={preview} />}
        </Choice>
      )}
      {dag === null && isKnown && (
        <Choice address={address} job={job} savepoints={savepoints} defaults={NO_LIMITS} by={null}>
          {(limits) => <Commands jobRoot={job.job_root} limits={limits} />}
        </Choice>
      )}
    </Stack>
  );
}

interface ChoiceProps {
  address: string;
  job: JobState;
  savepoints: readonly Savepoint[];
  /** The limits without a choice. */
  defaults: Limits;
  /** The DAG that has these defaults; null for a person at a terminal. */
  by: string | null;
  /** Applies the chosen limits; the preview is null until it is the one of these limits. */
  children: (limits: Limits, preview: RetentionPreview | null) => ReactNode;
}

function Choice({ address, job, savepoints, defaults, by, children }: ChoiceProps) {
  const [chosen, setChosen] = useState<Partial<Limits>>({});
  const limits = { ...defaults, ...chosen };
  const query = previewQuery(limits);
  const settled = useDebounced(query);
  const preview = useResource<RetentionPreview>(`${address}/retention-preview${settled === "" ? "" : `?${settled}`}`, 30_000);
  const isCurrent = settled === query && preview.problem === null && preview.value !== null;
  const kept = Math.max(1, job.description?.retained_checkpoint_ids.length ?? 1);
  const periodic = savepoints.filter((each) => each.origin === "periodic").length;
  const help = (name: keyof Limits, otherwise: string) => {
    if (name in chosen) return undefined;
    return by !== null && defaults[name] !== null ? `The default of ${by}: ${defaults[name]}.` : `Without a choice, ${otherwise}.`;
  };
  const choose = (part: Partial<Limits>) => {
    setChosen((before) => ({ ...before, ...part }));
  };
  return (
    <>
      <SimpleGrid columns={{ base: 1, md: 2 }} gap={4} maxW="3xl">
        <RangeField
          label="Checkpoints to keep"
          value={Math.min(limits.retain ?? kept, kept)}
          least={1}
          most={kept}
          onChange={(retain) => {
            choose({ retain });
          }}
          help={help("retain", "as the job keeps them")}
        />
        {periodic > 0 && (
          <RangeField
            label="Periodic savepoints to keep"
            value={Math.min(limits.savepoints ?? periodic, periodic)}
            least={1}
            most={periodic}
            onChange={(number) => {
              choose({ savepoints: number });
            }}
            help={help("savepoints", "all")}
          />
        )}
        {periodic > 0 && (
          <TextField
            label="Largest age of periodic savepoints"
            value={limits.max_age ?? ""}
            onChange={(text) => {
              choose({ max_age: text.trim() === "" ? null : text });
            }}
            help={help("max_age", "of any age") ?? "A duration such as 36h or 30d; empty for any age. The newest one is always kept."}
          />
        )}
      </SimpleGrid>
      <Loaded resource={preview}>{(found) => <Preview preview={found} />}</Loaded>
      {children(limits, isCurrent ? preview.value : null)}
    </>
  );
}

/** The commands that list what the limits delete, and then the commands that delete it. */
function Commands({ jobRoot, limits }: { jobRoot: string; limits: Limits }) {
  return (
    <>
      <Text>These commands only list what would be deleted:</Text>
      {retentionCommands(jobRoot, limits, true).map((text) => (
        <Command key={text} text={text} />
      ))}
      <Text color="red.fg" fontWeight="semibold">
        These commands delete it:
      </Text>
      {retentionCommands(jobRoot, limits, false).map((text) => (
        <Command key={text} text={text} />
      ))}
    </>
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

interface ApplyProps {
  dag: FamilyDag;
  params: DagParams;
  base: string;
  limits: Limits;
  preview: RetentionPreview | null;
}

function Apply({ dag, params, base, limits, preview }: ApplyProps) {
  const [run, setRun] = useState<string | null>(null);
  const refused = () => {
    const because = triggerRefusal(dag) ?? missingField(dag.dag_id, params, Object.keys(NO_LIMITS));
    if (because !== null) return because;
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
            This triggers {dag.dag_id}. It first takes a savepoint, which is kept until a person deletes it. What the configured limits keep is deleted only after the approval of
            a person who may answer its question. It also deletes files that nothing needs any more, and leaves the tables as they are.
          </Text>
        }
        act={async () => {
          // All of them, as the preview assumed them: a limit that is not sent would be the default of the DAG's form.
          const answer = await trigger(dag.dag_id, retentionConf(params, limits, null));
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
