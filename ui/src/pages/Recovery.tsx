import { Badge, Box, Flex, Heading, Stack, Text } from "@chakra-ui/react";
import type { ReactNode } from "react";
import { useParams, useSearchParams } from "react-router-dom";
import { type Family, isWaiting, type Question, useDagRun, useQuestions, useReturned, useTaskError, useTasks } from "../airflow";
import type { FamilyDag, JobState, Resource } from "../api";
import type { PlanOutput } from "../approval";
import { counted, formatCount } from "../format";
import { nounOf } from "../losses";
import { Answered } from "../parts/Answered";
import { ProblemNotice } from "../parts/ConfirmedAction";
import { useDagChoice } from "../parts/DagChoice";
import { PauseAction, RunAction } from "../parts/JobActions";
import { approvalPath, CheckpointLink, DagRunLink, PageLink, PersonLink, RestoreLink } from "../parts/links";
import { Loaded, Notice } from "../parts/Loaded";
import { LongText } from "../parts/LongText";
import { PlanTarget } from "../parts/PlanChanges";
import { Time } from "../parts/Time";
import { filesRead, isEnded, type Part, plannedTables, restoredTables, type Step, type StepStatus, stepsOf, undoTarget } from "../recovery";

/** Where a DAG run of a recovery DAG is: plan, approval, restore, verification, run; without `dag` in the address, of the first. */
export function Recovery({ state, base, family }: { state: Resource<JobState>; base: string; family: Family }) {
  const { dagRun = "" } = useParams();
  const wanted = useSearchParams()[0].get("dag");
  const dag = wanted === null ? family.dag("recovery") : (family.dags.find((each) => each.dag_id === wanted && each.role === "recovery") ?? null);
  if (dag !== null) return <Steps state={state} base={base} family={family} dag={dag} run={dagRun} />;
  if (family.isKnown) return <Notice status="error" title="This job has no such recovery DAG" />;
  return family.problem === null ? <Text role="status">Loading</Text> : <ProblemNotice problem={family.problem} />;
}

interface Props {
  state: Resource<JobState>;
  base: string;
  family: Family;
  dag: FamilyDag;
  run: string;
}

function Steps({ state, base, family, dag, run }: Props) {
  const dagRun = useDagRun(dag.dag_id, run);
  const tasks = useTasks(dag.dag_id, run);
  const question = useQuestions(dag.dag_id, run).value?.hitl_details[0] ?? null;
  const isPlanned = tasks.value?.task_instances.some((task) => task.task_id === "plan" && task.state === "success") === true;
  const output = useReturned<PlanOutput>(isPlanned ? dag.dag_id : null, run, "plan").value;
  return (
    <Loaded resource={dagRun}>
      {(found) => (
        <Stack gap={5}>
          <Stack gap={1}>
            <Heading as="h2" size="lg">
              Recovery
            </Heading>
            <Text overflowWrap="anywhere">
              Requested by {found.triggering_user_name === null ? "a program" : <PersonLink name={found.triggering_user_name} />}
              {typeof found.conf?.reason === "string" && `: ${found.conf.reason}`}
            </Text>
            {output !== null && <PlanTarget plan={output.plan} />}
            <DagRunLink dag={dag.dag_id} run={run} />
          </Stack>
          <Loaded resource={tasks}>
            {({ task_instances: instances }) => {
              const steps = stepsOf(instances, question);
              return (
                <Stack gap={5}>
                  <Stepper steps={steps} base={base} question={question} job={state.value} output={output} />
                  {isEnded(found) && <Afterwards steps={steps} base={base} family={family} output={output} job={state.value} />}
                </Stack>
              );
            }}
          </Loaded>
        </Stack>
      )}
    </Loaded>
  );
}

const COLOURS: Record<StepStatus, string> = {
  "to do": "gray",
  "in progress": "blue",
  waits: "purple",
  done: "green",
  failed: "red",
  rejected: "orange",
  skipped: "gray",
};

interface StepperProps {
  steps: readonly Step[];
  base: string;
  question: Question | null;
  job: JobState | null;
  output: PlanOutput | null;
}

function Stepper({ steps, base, question, job, output }: StepperProps) {
  const isCurrent = ({ status }: Step) => status === "in progress" || status === "waits";
  return (
    <Stack as="ol" listStyleType="none" gap={0} aria-label="Steps of the recovery" aria-live="polite">
      {steps.map((step, index) => (
        <Box as="li" key={step.task} borderStartWidth="3px" borderColor={COLOURS[step.status] === "gray" ? "border" : `${COLOURS[step.status]}.solid`} ps={4} py={3} aria-current={isCurrent(step) ? "step" : undefined}>
          <Flex gap={3} align="center" wrap="wrap">
            <Text fontWeight="semibold">
              {index + 1}. {titleOf(step, question)}
            </Text>
            <Badge colorPalette={COLOURS[step.status]}>{step.status}</Badge>
            {step.instance?.end_date != null && (
              <Text fontSize="sm" color="fg.muted">
                <Time at={step.instance.end_date} />
              </Text>
            )}
          </Flex>
          <Box mt={1}>
            <StepDetails step={step} base={base} question={question} job={job} output={output} />
          </Box>
        </Box>
      ))}
    </Stack>
  );
}

/** The title of a step; of the approval, who has given it. */
function titleOf({ task, title, status }: Step, question: Question | null): string {
  const person = question?.responded_by_user?.name;
  if (task !== "approve" || person === undefined) return title;
  if (status === "done") return `Approved by ${person}`;
  return status === "rejected" ? `Rejected by ${person}` : title;
}

function StepDetails({ step, base, question, job, output }: Omit<StepperProps, "steps"> & { step: Step }): ReactNode {
  if (step.status === "failed" && step.instance !== null) return <Failure step={step} />;
  if (step.instance?.state === "up_for_retry") return <Text>It failed, and is tried again.</Text>;
  if (step.task === "approve" && question !== null) {
    const { dag_id: dag, dag_run_id: run } = question.task_instance;
    if (isWaiting(question)) return <PageLink to={approvalPath(base, dag, run)}>Answer the question</PageLink>;
    return question.response_received ? <Answered question={question} /> : null;
  }
  if (step.task === "restore" && output !== null && step.status !== "skipped") return <Tables step={step} output={output} job={job} />;
  if (step.task === "run" && step.status === "in progress" && job !== null) return <Progress job={job} output={output} />;
  return null;
}

/** Where the run after the restore is; a run reports its progress only while a batch takes long. */
function Progress({ job, output }: { job: JobState; output: PlanOutput | null }) {
  const progress = job.description?.progress ?? null;
  const files = output === null ? null : filesRead(output.plan, job);
  return (
    <Stack gap={1}>
      {files !== null && <Meter label={`${formatCount(files.done)} of ${formatCount(files.all)} files read again`} part={files} />}
      <Text>
        The job is at checkpoint {job.checkpoint_id === null ? (job.description === null ? "not known" : "none") : <CheckpointLink id={job.checkpoint_id} />}.
        {progress !== null &&
          ` The run has completed ${counted(progress.batches, "batch", "batches")} with ${formatCount(progress.rows_in)} rows, and is in batch ${progress.ordinal}.`}
      </Text>
    </Stack>
  );
}

/** A part of a whole as a bar with its text. */
function Meter({ label, part: { done, all } }: { label: string; part: Part }) {
  return (
    <Box maxW="sm">
      <Text>{label}</Text>
      <Box height="8px" bg="bg.muted" borderRadius="sm" aria-hidden="true">
        <Box height="full" bg="blue.solid" borderRadius="sm" width={`${all === 0 ? 100 : (100 * done) / all}%`} />
      </Box>
    </Box>
  );
}

/** How many tables the restore changes, and which one it is at. */
function Tables({ step, output, job }: { step: Step; output: PlanOutput; job: JobState | null }) {
  const restoring = job?.description?.restoring ?? null;
  const sinks = plannedTables(output.plan);
  const noun = nounOf(sinks);
  const planned = counted(sinks.length, noun);
  if (step.status === "done") return <Text>{planned} restored.</Text>;
  if (restoring === null) return <Text>{planned} to restore.</Text>;
  const part = restoredTables(restoring);
  const label = part.done < part.all ? `${noun === "table" ? "Table" : "Sink"} ${formatCount(part.done + 1)} of ${formatCount(part.all)}` : `${counted(part.all, noun)} restored`;
  return (
    <Stack gap={1}>
      <Meter label={label} part={part} />
      <Text color="fg.muted">If the restore is interrupted, the next try or run completes it.</Text>
    </Stack>
  );
}

function Failure({ step: { instance } }: { step: Step }) {
  const message = useTaskError(instance);
  return (
    <Notice status="error" title="This step failed">
      <LongText text={message ?? "The log of the task has the reason."} />
    </Notice>
  );
}

interface AfterwardsProps {
  steps: readonly Step[];
  base: string;
  family: Family;
  output: PlanOutput | null;
  job: JobState | null;
}

/** What a person does once a recovery has ended. */
function Afterwards({ steps, base, family, output, job }: AfterwardsProps) {
  const isRestored = steps.some(({ task, status }) => task === "restore" && status === "done");
  const { dag: run, field } = useDagChoice(family, "run");
  if (!isRestored) {
    return (
      <Stack as="section" gap={2} aria-label="Afterwards">
        <Text>The job was not restored by this DAG run.</Text>
        {output !== null && <RestoreLink base={base} target={output.plan.target} label="Plan again" />}
        {field}
        {run !== null && <PauseAction dag={run} onDone={family.reload} />}
      </Stack>
    );
  }
  const target = output === null ? null : undoTarget(output.plan, job?.description?.retained_checkpoint_ids ?? null);
  return (
    <Stack as="section" gap={3} aria-label="Afterwards">
      <Heading as="h2" size="md">
        What comes next
      </Heading>
      {field}
      {run !== null && (
        <Flex gap={3} wrap="wrap">
          <PauseAction dag={run} onDone={family.reload} />
          <RunAction dag={run} />
        </Flex>
      )}
      {target !== null && <RestoreLink base={base} target={target} label="Undo this restore" />}
      {output !== null && target === null && <Text>This restore cannot be undone: neither the job nor a savepoint keeps checkpoint {output.plan.checkpoint_id}.</Text>}
    </Stack>
  );
}
