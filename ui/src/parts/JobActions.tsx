import { Flex, Stack, Text } from "@chakra-ui/react";
import { useState } from "react";
import { type Family, setPaused, trigger, useActiveRuns, useDag, useFamily } from "../airflow";
import { type FamilyDag, isStandalone } from "../api";
import { runCommand, savepointCommand, stopCommand } from "../commands";
import { CommandsWithFiles } from "./Command";
import { ConfirmedAction, ProblemNotice } from "./ConfirmedAction";
import { triggerRefusal, useDagChoice } from "./DagChoice";
import { TextField } from "./Fields";
import { approvalPath, DagRunLink, PageLink, RestoreLink } from "./links";
import { Notice } from "./Loaded";
import { Time } from "./Time";
import { TriggeredRun } from "./TriggeredRun";

interface DagProps {
  dag: FamilyDag;
  size?: "xs" | "sm";
}

/** Starts a run of the job. */
export function RunAction({ dag, size = "sm" }: DagProps) {
  const [run, setRun] = useState<string | null>(null);
  const isPaused = useDag(dag.dag_id).value?.is_paused ?? dag.is_paused;
  return (
    <Stack gap={2}>
      <ConfirmedAction
        label="Run now"
        size={size}
        colour="blue"
        refused={triggerRefusal(dag, isPaused)}
        question={<Text>This triggers {dag.dag_id}: the job reads its new input from the newest checkpoint on.</Text>}
        act={async () => {
          const answer = await trigger(dag.dag_id, {});
          if ("problem" in answer) return answer.problem;
          setRun(answer.run);
          return null;
        }}
      />
      {run !== null && (
        <TriggeredRun dag={dag.dag_id} run={run}>
          The run starts as soon as no other run of the DAG is active. Its first checkpoint appears here.
        </TriggeredRun>
      )}
    </Stack>
  );
}

/** Pauses or unpauses a DAG. */
export function PauseAction({ dag, onDone, size = "sm" }: DagProps & { onDone: () => void }) {
  const { value, reload } = useDag(dag.dag_id);
  const isPaused = value?.is_paused ?? dag.is_paused;
  const next = value?.next_dagrun_run_after ?? null;
  return (
    <Stack gap={2}>
      <ConfirmedAction
        key={String(isPaused)}
        label={isPaused ? "Unpause" : "Pause"}
        size={size}
        refused={dag.may_pause ? null : `You do not have the right to pause or unpause ${dag.dag_id}.`}
        question={
          <Text>
            {isPaused ? `Airflow starts runs of ${dag.dag_id} again, by its schedule.` : `Airflow starts no run of ${dag.dag_id} until a person unpauses it. A run that is active continues.`}
          </Text>
        }
        act={async () => {
          const problem = await setPaused(dag.dag_id, !isPaused);
          reload();
          onDone();
          return problem;
        }}
      />
      <Text fontSize="xs" color="fg.muted" maxW="16rem" role="status">
        {dag.dag_id} is {isPaused ? "paused" : "not paused"}
        {!isPaused && next !== null && (
          <>
            ; next run <Time at={next} full />
          </>
        )}
      </Text>
    </Stack>
  );
}

interface SavepointProps {
  dag: FamilyDag;
  /** Whether the run ends with the savepoint. */
  stops: boolean;
  /** The DAG that runs the job. */
  run?: FamilyDag | null;
  base: string;
  size?: "xs" | "sm";
}

/** Takes a savepoint; with `stops`, at the end of the run, after an approval. */
export function SavepointAction({ dag, stops, run: runDag = null, base, size = "sm" }: SavepointProps) {
  const [name, setName] = useState("");
  const [reason, setReason] = useState("");
  const [run, setRun] = useState<string | null>(null);
  const question = stops
    ? `This triggers ${dag.dag_id}: once a person who may answer its question has approved it, the run ends after its next checkpoint, with a savepoint of it.`
    : `This triggers ${dag.dag_id}: it takes a savepoint at the next barrier of the run, or of the newest checkpoint.`;
  const act = async () => {
    const text = (value: string) => (value.trim() === "" ? null : value.trim());
    // The form of the DAG has the rule for names, and its answer says it.
    const answer = await trigger(dag.dag_id, { name: text(name), reason: text(reason), origin: "manual", format: "default", stop: stops, drain: false });
    if ("problem" in answer) return answer.problem;
    setRun(answer.run);
    return null;
  };
  return (
    <Stack gap={2}>
      <ConfirmedAction
        label={stops ? "Stop with savepoint" : "Savepoint"}
        size={size}
        colour={stops ? "red" : "gray"}
        refused={triggerRefusal(dag)}
        question={<Text>{question}</Text>}
        fields={
          <>
            {stops && runDag !== null && <Text color="fg.muted">For a continuous job, pause {runDag.dag_id} first: otherwise it would start the job again, and the stop is refused.</Text>}
            <TextField label="Name of the savepoint" value={name} onChange={setName} help="By default, its origin and time." />
            <TextField label="Reason for the savepoint" value={reason} onChange={setReason} help="Stored with the savepoint." />
          </>
        }
        act={act}
      />
      {run !== null && (
        <TriggeredRun dag={dag.dag_id} run={run}>
          {stops ? (
            <PageLink to={approvalPath(base, dag.dag_id, run)}>A person who may answer its question has to approve the stop.</PageLink>
          ) : (
            <PageLink to={`${base}/savepoints`}>The savepoint appears on the page Savepoints.</PageLink>
          )}
        </TriggeredRun>
      )}
    </Stack>
  );
}

interface ActionsProps {
  id: string;
  /** Path of the job's pages. */
  base: string;
  jobRoot: string;
}

/** What a person can do with a job: in Airflow by its DAGs, elsewhere by commands. */
export function JobActions({ family, base, jobRoot }: Omit<ActionsProps, "id"> & { family: Family }) {
  const { dag: run, field: chooseRun } = useDagChoice(family, "run");
  const { dag: savepoint, field: chooseSavepoint } = useDagChoice(family, "savepoint");
  if (family.problem !== null) return <ProblemNotice problem={family.problem} />;
  if (!family.isKnown) return <Text role="status">Loading</Text>;
  return (
    <Stack gap={3}>
      {chooseRun}
      {chooseSavepoint}
      <Flex as="section" aria-label="Actions" gap={3} wrap="wrap" align="start">
        {run !== null && <RunAction key={`run ${run.dag_id}`} dag={run} />}
        {savepoint !== null && <SavepointAction key={`savepoint ${savepoint.dag_id}`} dag={savepoint} stops={false} base={base} />}
        {savepoint !== null && <SavepointAction key={`stop ${savepoint.dag_id}`} dag={savepoint} stops run={run} base={base} />}
        <RestoreLink base={base} target={null} label="Restore…" />
        {/* The last one: its text is wider than its button, and would move a button after it out of line. */}
        {run !== null && <PauseAction key={`pause ${run.dag_id}`} dag={run} onDone={family.reload} />}
      </Flex>
      {family.dags
        .filter((each) => each.role === "run")
        .map(({ dag_id: id }) => (
          <ActiveRuns key={id} dag={id} />
        ))}
      {run === null && savepoint === null && <Commands jobRoot={jobRoot} />}
    </Stack>
  );
}

/** The runs of a DAG that have not ended. */
function ActiveRuns({ dag }: { dag: string }) {
  const runs = useActiveRuns(dag).value?.dag_runs ?? [];
  return runs.map(({ dag_run_id: run, state }) => (
    <Text key={run} fontSize="sm" overflowWrap="anywhere">
      {state === "queued" ? "Queued" : "Running"}: <DagRunLink dag={dag} run={run} />
    </Text>
  ));
}

function Commands({ jobRoot }: { jobRoot: string }) {
  return (
    <details>
      <summary>Commands for a run, a savepoint and a stop</summary>
      <Stack gap={2} mt={2}>
        <Text color="fg.muted">{isStandalone ? "This server does not know Airflow: a DAG may run the job." : "No DAG that you may read runs this job."}</Text>
        <CommandsWithFiles jobFile={null} commands={(files) => [runCommand(jobRoot, files), savepointCommand(jobRoot), stopCommand(jobRoot)]} />
      </Stack>
    </details>
  );
}

/** The actions of a job in a list of jobs. Its DAGs are asked for once a person opens them. */
export function FoldedActions({ id, base, jobRoot }: ActionsProps) {
  const [isOpen, setOpen] = useState(false);
  const family = useFamily(isOpen ? id : null);
  return (
    <details
      onToggle={(event) => {
        setOpen(event.currentTarget.open);
      }}
    >
      <summary>Actions</summary>
      {isOpen && <JobActions family={family} base={base} jobRoot={jobRoot} />}
    </details>
  );
}

/** Links to the questions of a job's DAGs that wait for an answer. */
export function WaitingApprovals({ family, base }: { family: Family; base: string }) {
  return family.questions.map(({ subject, asked_at: at, dag_id: dag, dag_run_id: run }, index) => (
    <Notice key={index} status="warning" title="A question waits for an answer">
      <PageLink to={approvalPath(base, dag, run)}>{subject}</PageLink> {at !== null && <Time at={at} />}
    </Notice>
  ));
}

/** The same in a list of jobs, where the DAGs of a job are asked for. */
export function WaitingApprovalsOf({ id, base }: { id: string; base: string }) {
  const family = useFamily(id);
  return <WaitingApprovals family={family} base={base} />;
}
