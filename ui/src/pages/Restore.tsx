import { Box, Heading, Stack, Text } from "@chakra-ui/react";
import { useState } from "react";
import { useSearchParams } from "react-router-dom";
import type { Family } from "../airflow";
import { type JobState, type Problem, type Resource, type RestorePlan, type RestorePlanPage, useResource } from "../api";
import { counted, formatDuration } from "../format";
import { useDagChoice } from "../parts/DagChoice";
import { SavepointAction } from "../parts/JobActions";
import { PageLink, restorePath } from "../parts/links";
import { FreshnessNotice, Loaded, Notice } from "../parts/Loaded";
import { LongText } from "../parts/LongText";
import { Cautions, Losses } from "../parts/Losses";
import { PlanChanges, PlanTarget } from "../parts/PlanChanges";
import { namesOf, RestoreForm } from "../parts/RestoreForm";
import { RestorePoints } from "../parts/RestorePoints";
import { RestoreRequest } from "../parts/RestoreRequest";
import { useDebounced } from "../parts/useDebounced";
import { undoTarget } from "../recovery";
import { optionsFor, planQuery } from "../restoreOptions";
import { targetText } from "../targets";

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

function Wizard({ target, job, base, address, family }: WizardProps) {
  const [options, setOptions] = useState(() => optionsFor(target));
  const [reason, setReason] = useState("");
  const query = planQuery(options);
  const settled = useDebounced(query);
  const found = useResource<RestorePlanPage>(`${address}/restore-plan?${settled}`, 15_000);
  const isCurrent = query === settled && found.problem === null && found.value !== null;
  const plan = found.value?.plan ?? null;
  // A number is a checkpoint; for other targets the plan knows it.
  const isSavepoint = plan === null ? !/^(\d+|latest|before:.*)$/.test(target) : plan.savepoint_path !== null;
  return (
    <Stack gap={5}>
      <Stack gap={1}>
        <Heading as="h2" size="lg" overflowWrap="anywhere">
          Restore {job.job} to {targetText(target)}
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
      <RestoreRequest {...{ job, options, setOptions, reason, setReason, base, family }} page={isCurrent ? found.value : null} />
    </Stack>
  );
}

/** Says that a restore cannot be undone: it drops the checkpoint before it, which only a savepoint would keep. */
function Undo({ plan, family, base }: { plan: RestorePlan; family: Family; base: string }) {
  const { dag: savepoint, field } = useDagChoice(family, "savepoint");
  if (undoTarget(plan, null) !== null) return null;
  return (
    <Notice status="warning" title="This restore cannot be undone">
      <Stack gap={2}>
        <Text>No savepoint keeps checkpoint {plan.checkpoint_id}, where the job is now. Take a savepoint first if you may want to come back to it.</Text>
        {field}
        {savepoint !== null && <SavepointAction key={savepoint.dag_id} dag={savepoint} stops={false} base={base} size="xs" />}
      </Stack>
    </Notice>
  );
}

/** The plan is refused: a value is wrong, or there is no such point. */
function Refused({ problem }: { problem: Problem }) {
  return (
    <Notice status="error" title="There is no plan with these values">
      <LongText text={problem.message} />
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
          <Losses plan={plan} />
          <Text>
            {page.replay}
            {plan.rows_again !== null && plan.checkpoints_after !== null && plan.checkpoints_after > 0 && (
              <> These are the rows of {counted(plan.checkpoints_after, "checkpoint")}.</>
            )}
            {page.replay_ms !== null && page.replay_ms > 0 && <> They took {formatDuration(page.replay_ms)}: so it takes about {formatDuration(page.replay_ms)} to read again.</>}
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
