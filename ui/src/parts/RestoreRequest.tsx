import { Heading, Stack, Text } from "@chakra-ui/react";
import { useNavigate } from "react-router-dom";
import { type Family, trigger, useDag } from "../airflow";
import { type FamilyDag, isStandalone, type JobState, type RestorePlanPage } from "../api";
import { restoreCommands, runCommand } from "../commands";
import { isBlank, recoveryConf, type RestoreOptions } from "../restoreOptions";
import { CommandsWithFiles } from "./Command";
import { ConfirmedAction } from "./ConfirmedAction";
import { triggerRefusal, useDagChoice } from "./DagChoice";
import { CheckField, TextField } from "./Fields";
import { PauseAction } from "./JobActions";
import { recoveryPath } from "./links";
import { Notice } from "./Loaded";
import { changesNothing } from "../losses";
import { LossSentences } from "./Losses";

interface RequestProps {
  job: JobState;
  options: RestoreOptions;
  setOptions: (options: RestoreOptions) => void;
  reason: string;
  setReason: (reason: string) => void;
  base: string;
  family: Family;
  /** The plan of exactly these options; null as long as there is none. */
  page: RestorePlanPage | null;
}

/** The reason of a restore, and the request itself: a DAG run in Airflow, a command elsewhere. */
export function RestoreRequest(props: RequestProps) {
  const { options, setOptions, reason, setReason, family } = props;
  const { dag: recovery, field } = useDagChoice(family, "recovery");
  return (
    <Stack as="section" gap={3} aria-label="Request">
      <Heading as="h2" size="md">
        4. Reason and request
      </Heading>
      <TextField isLong required label="Why is this restore necessary?" value={reason} onChange={setReason} help="It is stored in the job's history, and shown to the approver." />
      <CheckField
        label="Run the job after the restore"
        value={options.run}
        onChange={(run) => {
          setOptions({ ...options, run });
        }}
      />
      {family.problem !== null && <Notice status="warning" title={`The DAGs of the job are not known: ${family.problem.message}`} />}
      {field}
      {recovery !== null && <Trigger key={recovery.dag_id} {...props} dag={recovery} />}
      {recovery === null && family.isKnown && <Commands {...props} />}
    </Stack>
  );
}

function Trigger({ job, options, reason, base, family, page, dag }: RequestProps & { dag: FamilyDag }) {
  const navigate = useNavigate();
  const refused = refusal(dag, page, reason);
  const act = async () => {
    if (page === null) return null;
    const answer = await trigger(dag.dag_id, recoveryConf(options, reason, page.expected_plan));
    if ("problem" in answer) return answer.problem;
    await navigate(recoveryPath(base, dag.dag_id, answer.run));
    return null;
  };
  return (
    <Stack gap={3}>
      {family.dags
        .filter((each) => each.role === "run")
        .map((each) => (
          <RunDag key={each.dag_id} dag={each} onChange={family.reload} />
        ))}
      <ConfirmedAction
        label="Request the restore"
        colour="red"
        size="md"
        refused={refused}
        question={
          <Stack gap={2}>
            <Text>
              This triggers {dag.dag_id}, which plans the restore of {job.job} at {job.job_root} to {page?.plan?.target_label ?? options.target} again, and asks the people who may answer its question to approve it.
              Nothing changes before that.
            </Text>
            {page?.plan != null && (changesNothing(page.plan) ? <Text>Nothing changes: the job is at this point.</Text> : <LossSentences plan={page.plan} />)}
          </Stack>
        }
        act={act}
      />
    </Stack>
  );
}

function refusal(dag: FamilyDag, page: RestorePlanPage | null, reason: string): string | null {
  const refused = triggerRefusal(dag);
  if (refused !== null) return refused;
  return impossibleBecause(page) ?? blankReason(reason);
}

function blankReason(reason: string): string | null {
  return isBlank(reason) ? "A reason is required." : null;
}

/** Says whether a DAG that runs the job is paused: a run that starts makes the plan outdated. */
function RunDag({ dag, onChange }: { dag: FamilyDag; onChange: () => void }) {
  const { value, reload } = useDag(dag.dag_id);
  const isPaused = value?.is_paused ?? dag.is_paused;
  if (isPaused) return <Text>{dag.dag_id} is paused: no scheduled run starts in the meantime.</Text>;
  return (
    <Notice status="warning" title={`${dag.dag_id} is not paused`}>
      <Stack gap={2}>
        <Text>A run that starts in the meantime makes the plan outdated, and the restore is then refused.</Text>
        <PauseAction
          dag={dag}
          size="xs"
          onDone={() => {
            reload();
            onChange();
          }}
        />
      </Stack>
    </Notice>
  );
}

/** Why no restore is possible with these values; null if one may be. */
function impossibleBecause(page: RestorePlanPage | null): string | null {
  if (page === null) return "These values are not checked yet, or are refused.";
  const damaged = page.checks.find(({ name, ok }) => name === "target-files" && ok === false);
  return damaged === undefined ? null : `The point cannot be restored: ${damaged.text}.`;
}

function Commands({ job, options, reason, page }: RequestProps) {
  const refused = impossibleBecause(page);
  if (refused !== null) return <Text color="fg.muted">There are no commands for this restore. {refused}</Text>;
  const known = job.runs.find((run) => run.job_file !== null)?.job_file ?? null;
  const failed = (page?.checks ?? []).filter(({ ok }) => ok === false);
  return (
    <Stack gap={2}>
      <Text>
        {isStandalone ? "These commands restore the job" : "No DAG restores this job. These commands do"}: the first writes the plan and changes nothing, the second executes exactly that plan.
      </Text>
      {failed.length > 0 && <Text overflowWrap="anywhere">A condition is not met: {failed.map(({ text }) => text).join("; ")}.</Text>}
      <CommandsWithFiles jobFile={known} commands={(files) => [...restoreCommands(job.job_root, options, reason, files), ...(options.run ? [runCommand(job.job_root, files)] : [])]} />
      {isBlank(reason) && <Text color="fg.muted">A reason is stored in the job&apos;s history.</Text>}
    </Stack>
  );
}
