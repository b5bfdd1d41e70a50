import { Box, Heading, Stack, Text } from "@chakra-ui/react";
import { useState } from "react";
import { useNavigate, useSearchParams } from "react-router-dom";
import { type Family, trigger, useDag } from "../airflow";
import { type FamilyDag, type JobState, type Problem, type Resource, type RestorePlan, type RestorePlanPage, useResource } from "../api";
import { restoreCommands, runCommand } from "../commands";
import { formatCount } from "../format";
import { Command } from "../parts/Command";
import { ConfirmedAction } from "../parts/ConfirmedAction";
import { CheckField, TextField } from "../parts/Fields";
import { PauseAction, SavepointAction } from "../parts/JobActions";
import { PageLink, recoveryPath, restorePath } from "../parts/links";
import { FreshnessNotice, Loaded, Notice } from "../parts/Loaded";
import { Cautions, LossNumbers, LossSentences, PlanChanges, PlanTarget } from "../parts/PlanChanges";
import { namesOf, RestoreForm } from "../parts/RestoreForm";
import { RestorePoints } from "../parts/RestorePoints";
import { useDebounced } from "../parts/useDebounced";
import { undoTarget } from "../recovery";
import { isBlank, optionsFor, planQuery, recoveryConf, type RestoreOptions } from "../restoreOptions";

/** A restore step by step: the point, options, the plan, the reason. The point is in the address: `?to=TARGET`. */
export function Restore({ state, base, address, family }: { state: Resource<JobState>; base: string; address: string; family: Family }) {
  const [query, setQuery] = useSearchParams();
  const target = query.get("to") ?? "";
  return (
    <Loaded resource={state}>
      {(job) =>
        target === "" ? (
          <RestorePoints
            address={address}
            base={base}
            job={job}
            onChoose={(chosen) => {
              setQuery({ to: chosen });
            }}
          />
        ) : (
          <Wizard key={target} target={target} job={job} base={base} address={address} family={family} />
        )
      }
    </Loaded>
  );
}

interface WizardProps {
  target: string;
  job: JobState;
  base: string;
  address: string;
  family: Family;
}

/** How long a plan waits for further changes of the options. */
const SETTLED_MS = 400;

function Wizard({ target, job, base, address, family }: WizardProps) {
  const [options, setOptions] = useState(() => optionsFor(target));
  const [reason, setReason] = useState("");
  const query = planQuery(options);
  const settled = useDebounced(query, SETTLED_MS);
  const found = useResource<RestorePlanPage>(`${address}/restore-plan?${settled}`, 15_000);
  const isCurrent = query === settled && found.problem === null && found.value !== null;
  const plan = found.value?.plan ?? null;
  // A number is a checkpoint; for other targets the plan knows it.
  const isSavepoint = plan === null ? !/^(\d+|latest|before:.*)$/.test(target) : plan.savepoint_path !== null;
  return (
    <Stack gap={5}>
      <Stack gap={1}>
        <Heading as="h2" size="lg" overflowWrap="anywhere">
          Restore {job.job} to {target}
        </Heading>
        <PageLink to={restorePath(base)}>Choose another point</PageLink>
      </Stack>
      <RestoreForm options={options} names={namesOf(job, plan)} isSavepoint={isSavepoint} onChange={setOptions} />
      <Stack as="section" gap={4} aria-label="Plan" aria-busy={!isCurrent && found.problem === null}>
        <Heading as="h2" size="md">
          3. Plan
        </Heading>
        {found.problem !== null && found.problem.status === 422 ? <Refused problem={found.problem} /> : <Loaded resource={found}>{(page) => <Plan page={page} />}</Loaded>}
      </Stack>
      {isCurrent && plan !== null && <Undo plan={plan} family={family} base={base} />}
      <Request {...{ job, options, setOptions, reason, setReason, base, family }} page={isCurrent ? found.value : null} />
    </Stack>
  );
}

/** Says that a restore cannot be undone: it drops the checkpoint before it, which only a savepoint would keep. */
function Undo({ plan, family, base }: { plan: RestorePlan; family: Family; base: string }) {
  const savepoint = family.dag("savepoint");
  if (undoTarget(plan) !== null) return null;
  return (
    <Notice status="warning" title="This restore cannot be undone">
      <Stack gap={2}>
        <Text>No savepoint keeps checkpoint {plan.checkpoint_id}, where the job is now. Take a savepoint first if you may want to come back to it.</Text>
        {savepoint !== null && <SavepointAction dag={savepoint} stops={false} base={base} size="xs" />}
      </Stack>
    </Notice>
  );
}

/** The plan is refused: a value is wrong, or there is no such point. */
function Refused({ problem }: { problem: Problem }) {
  return (
    <Notice status="error" title="There is no plan with these values">
      <Text overflowWrap="anywhere">{problem.message}</Text>
      {problem.hint !== null && <Text overflowWrap="anywhere">{problem.hint}</Text>}
    </Notice>
  );
}

const CHECKED = new Map<boolean | null, readonly [string, string]>([
  [true, ["✓ Met", "green.fg"]],
  [false, ["✗ Not met", "red.fg"]],
  [null, ["? Not known", "fg.muted"]],
]);

function Plan({ page }: { page: RestorePlanPage }) {
  const { plan } = page;
  return (
    <Stack gap={4}>
      <FreshnessNotice of={page} />
      {plan === null ? (
        <Notice status="info" title="There is no plan without the job file">
          No run has stored the graph of the job. The recovery DAG plans with the job file, and shows its plan to the approver.
        </Notice>
      ) : (
        <>
          <PlanTarget plan={plan} />
          <LossNumbers plan={plan} />
          <LossSentences plan={plan} />
          <Text>
            {page.replay}
            {plan.rows_again !== null && plan.checkpoints_after !== null && (
              <> These are the {plan.checkpoints_after === 1 ? "rows of 1 checkpoint" : `rows of ${formatCount(plan.checkpoints_after)} checkpoints`}.</>
            )}
          </Text>
        </>
      )}
      <Cautions cautions={page.cautions} />
      {plan !== null && <PlanChanges plan={plan} />}
      {page.checks.length > 0 && (
        <Box as="ul" listStyleType="none" aria-label="Conditions">
          {page.checks.map(({ name, ok, text }) => {
            const [word, colour] = CHECKED.get(ok) ?? ["", undefined];
            return (
              <Text key={name} as="li" overflowWrap="anywhere">
                <Text as="span" color={colour} fontWeight="semibold">
                  {word}:
                </Text>{" "}
                {text}
              </Text>
            );
          })}
        </Box>
      )}
    </Stack>
  );
}

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

/** The reason, and the request itself: a DAG run in Airflow, a command elsewhere. */
function Request(props: RequestProps) {
  const { options, setOptions, reason, setReason, family, job } = props;
  const recovery = family.dag("recovery");
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
      {recovery !== null && <Trigger {...props} dag={recovery} />}
      {recovery === null && family.isKnown && <Commands jobRoot={job.job_root} options={options} reason={reason} />}
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
    await navigate(recoveryPath(base, answer.run));
    return null;
  };
  return (
    <Stack gap={3}>
      <RunDag dag={family.dag("run")} onChange={family.reload} />
      <ConfirmedAction
        label="Request the restore"
        colour="red"
        size="md"
        refused={refused}
        question={
          <Stack gap={2}>
            <Text>
              This triggers {dag.dag_id}, which plans the restore of {job.job} to {page?.plan?.target_label ?? options.target} again, and asks the people who may answer its question to approve it.
              Nothing changes before that.
            </Text>
            {page?.plan != null && <LossSentences plan={page.plan} />}
          </Stack>
        }
        act={act}
      />
    </Stack>
  );
}

function refusal(dag: FamilyDag, page: RestorePlanPage | null, reason: string): string | null {
  if (!dag.may_trigger) return `You do not have the right to trigger ${dag.dag_id}.`;
  if (dag.is_paused) return `${dag.dag_id} is paused: its DAG run would wait. Unpause it first.`;
  if (page === null) return "These values are not checked yet, or are refused.";
  if (isBlank(reason)) return "A reason is required.";
  return null;
}

/** Says whether the DAG that runs the job is paused: a run that starts makes the plan outdated. */
function RunDag({ dag, onChange }: { dag: FamilyDag | null; onChange: () => void }) {
  const { value, reload } = useDag(dag?.dag_id ?? null);
  if (dag === null) return null;
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

function Commands({ jobRoot, options, reason }: { jobRoot: string; options: RestoreOptions; reason: string }) {
  const [plan, execute] = restoreCommands(jobRoot, options, reason);
  return (
    <Stack gap={2}>
      <Text>No DAG restores this job. These commands do: the first writes the plan and changes nothing, the second executes exactly that plan. JOB.py is the job file.</Text>
      <Command text={plan} />
      <Command text={execute} />
      {options.run && <Command text={runCommand(jobRoot)} />}
      {isBlank(reason) && <Text color="fg.muted">A reason is stored in the job's history.</Text>}
    </Stack>
  );
}
