import { Box, Heading, Stack, Text } from "@chakra-ui/react";
import { useParams } from "react-router-dom";
import { type Family } from "../airflow";
import { type RunPage, type RunSummary, useResource } from "../api";
import { formatBytes, formatCount, formatDuration, sizeText } from "../format";
import { CopyButton } from "../parts/Command";
import { DiffText } from "../parts/DiffText";
import { type Fact, Facts } from "../parts/Facts";
import { CheckpointLink, DagRunLink, PageLink, RunLink } from "../parts/links";
import { FreshnessNotice, Loaded, Notice } from "../parts/Loaded";
import { headOf, LongText, WholeText } from "../parts/LongText";
import { PersonName } from "../parts/People";
import { Progress } from "../parts/Progress";
import { ScrollingTable } from "../parts/ScrollingTable";
import { Moment, Time } from "../parts/Time";
import { earlierEnd } from "../runs";

/** A run of a job: who started it and with which job file, how long its start took, and what it made. */
export function Run({ address, base, family }: { address: string; base: string; family: Family }) {
  const { generation = "" } = useParams();
  const resource = useResource<RunPage>(/^\d+$/.test(generation) ? `${address}/runs/${generation}` : null);
  if (!/^\d+$/.test(generation)) return <Notice status="error" title="This address names no run" />;
  return (
    <Loaded resource={resource}>
      {(page) => (
        <Stack gap={5}>
          <FreshnessNotice of={page} history />
          <Heading as="h2" size="lg">
            {page.run.run === null ? `Run of generation ${page.run.generation}` : `Run ${page.run.run}`}
          </Heading>
          <Failure run={page.run} />
          <Facts facts={[...startOf(page.run, family), ...workOf(page.run)]} />
          {page.progress !== null && <Progress progress={page.progress} tryNumber={null} />}
          <Tries run={page.run} tries={page.tries} />
          <FailedStarts failures={page.failed_starts} />
          <Checkpoints page={page} base={base} />
          <JobFile page={page} />
        </Stack>
      )}
    </Loaded>
  );
}

function Failure({ run: { failure } }: { run: RunSummary }) {
  if (failure === null) return null;
  return (
    <Notice status="error" title={`The run failed: ${failure.code}`}>
      <LongText text={failure.message} />
      {failure.failed_at !== null && <Time at={failure.failed_at} full />}
    </Notice>
  );
}

/** Who started the run, where, and with what. */
function startOf(run: RunSummary, family: Family): Fact[] {
  const { attempt } = run;
  const hasPage = attempt !== null && family.dags.some((dag) => dag.dag_id === attempt.dag_id);
  return [
    ["Requested by", run.requested_by === null ? "not recorded" : <PersonName person={run.requested_by} />],
    ["Reason", hasPage ? <DagRunLink dag={attempt.dag_id} run={attempt.dag_run_id} /> : (run.reason ?? "none")],
    ...(attempt === null ? [] : [["Try", formatCount(attempt.try_number)] as const]),
    ["State", run.is_open ? "it has not ended: it is active, or was killed" : "it has ended"],
    ["Driver", run.driver ?? "not recorded"],
    ["Version of stateflow", run.stateflow ?? "not recorded"],
    ["Parallelism", run.parallelism === null ? "not recorded" : formatCount(run.parallelism)],
    ["Continued from", run.base_checkpoint_id === null ? "no checkpoint, or not recorded" : <CheckpointLink id={run.base_checkpoint_id}>checkpoint {run.base_checkpoint_id}</CheckpointLink>],
    ["Generation", `${run.generation}: the number of its start in the job's log, which addresses of these pages have`],
    ["Start-up", run.startup_ms === null ? "not recorded" : formatDuration(run.startup_ms)],
    ["Ready for its first batch", run.started_at === null ? "not recorded" : <Moment at={run.started_at} />],
  ];
}

/** What the run did after its start. The start-up is not part of its duration. */
function workOf(run: RunSummary): Fact[] {
  const { first_checkpoint_id: first, last_checkpoint_id: last, last_ended_at: end } = run;
  const begin = run.started_at ?? run.first_triggered_at;
  return [
    ["Last record", end === null ? "none" : <Moment at={end} />],
    ["Duration after the start-up", begin === null || end === null ? "not known" : formatDuration(Math.max(0, Date.parse(end) - Date.parse(begin)))],
    [
      "Checkpoints",
      first === null || last === null ? (
        formatCount(run.checkpoints)
      ) : (
        <>
          {formatCount(run.checkpoints)}: <CheckpointLink id={first} />
          {last !== first && (
            <>
              {" to "}
              <CheckpointLink id={last} />
            </>
          )}
        </>
      ),
    ],
    ["Aborted checkpoints", formatCount(run.aborted)],
    ["Rows read", formatCount(run.rows_in)],
  ];
}

/** The tries of the same task of Airflow. */
function Tries({ run, tries }: { run: RunSummary; tries: readonly RunSummary[] }) {
  if (tries.length < 2) return null;
  const last = tries.at(-1)?.generation;
  return (
    <Stack as="section" gap={1} aria-label="Tries">
      <Heading as="h3" size="sm">
        Tries of the same DAG run
      </Heading>
      <ul>
        {tries.map((each) => (
          <Text as="li" key={each.generation} overflowWrap="anywhere">
            Try {each.attempt?.try_number}: {each.generation === run.generation ? "this run" : <RunLink generation={each.generation} run={each.run} />}
            {each.generation !== last && `; it ${earlierEnd(each)}`}
            {each.startup_ms !== null && `; start-up ${formatDuration(each.startup_ms)}`}
          </Text>
        ))}
      </ul>
    </Stack>
  );
}

/** Starts that failed before the run, and had not claimed the job. */
function FailedStarts({ failures }: { failures: NonNullable<RunPage["failed_starts"]> }) {
  if (failures.length === 0) return null;
  return (
    <Stack as="section" gap={1} aria-label="Failed starts">
      <Heading as="h3" size="sm">
        Starts that failed before this run
      </Heading>
      <ul>
        {failures.map((failure, index) => (
          <Text as="li" key={index} overflowWrap="anywhere">
            {failure.failed_at !== null && <Time at={failure.failed_at} full />} <strong>{failure.code}</strong>: {headOf(failure.message)} <WholeText text={failure.message} />
          </Text>
        ))}
      </ul>
    </Stack>
  );
}

/** The newest checkpoints of the run. */
function Checkpoints({ page: { checkpoints, older, run }, base }: { page: RunPage; base: string }) {
  if (checkpoints.length === 0) return null;
  return (
    <Stack as="section" gap={2} aria-label="Checkpoints of the run">
      <Heading as="h3" size="md">
        Checkpoints
      </Heading>
      <ScrollingTable label="Table of the checkpoints of the run" columns={["Checkpoint", "Ended", "Rows", "Increment", "State", "Duration", "Failure"]}>
        {checkpoints.map((each, index) => (
          <tr key={index} className={each.undone === true ? "muted" : undefined}>
            <td>{each.checkpoint_id === null ? "aborted" : <CheckpointLink id={each.checkpoint_id} />}</td>
            <td className="line">{each.ended_at !== null && <Time at={each.ended_at} />}</td>
            <td>{formatCount(each.rows_in)}</td>
            <td className="line">{formatBytes(each.increment_bytes)}</td>
            <td className="line">{sizeText(each)}</td>
            <td className="line">{formatDuration(each.duration_ms)}</td>
            <td className="bad">{headOf(each.failure ?? "")}</td>
          </tr>
        ))}
      </ScrollingTable>
      {older && <PageLink to={`${base}?generation=${run.generation}`}>All checkpoints of the run</PageLink>}
    </Stack>
  );
}

function Hash({ name, value }: { name: string; value: string | null }) {
  if (value === null) return <>not recorded</>;
  return (
    <>
      <code title={value}>{value.slice(0, 12)}</code> <CopyButton text={value} what={`hash of the ${name}`} />
    </>
  );
}

/** The job file that the run had, and how it differs from the job file of the run before. */
function JobFile({ page: { run, may_read_code: mayRead, job_file: text, job_file_difference: difference, previous_job_file_sha256: before } }: { page: RunPage }) {
  return (
    <Stack as="section" gap={3} aria-label="Job file">
      <Heading as="h3" size="md">
        Job file
      </Heading>
      <Facts
        facts={[
          ["Name", run.job_file ?? "not recorded"],
          ["Changed", run.job_file_modified_at === null ? "not recorded" : <Moment key="changed" at={run.job_file_modified_at} />],
          ["SHA-256", <Hash key="file" name="job file" value={run.job_file_sha256} />],
          ["SHA-256 in the run before", <Hash key="before" name="job file before" value={before} />],
          ["SHA-256 of the graph", <Hash key="graph" name="graph" value={run.graph_sha256} />],
        ]}
      />
      {!mayRead && <Text color="fg.muted">You do not have the right to read the code of the job&apos;s DAGs.</Text>}
      {mayRead && difference === null && <Text color="fg.muted">The difference from the run before is not known: one of the two job files is not stored.</Text>}
      {difference === "" && <Text>The run before had the same job file.</Text>}
      {difference !== null && difference !== "" && <DiffText label="Difference from the job file of the run before" text={difference} />}
      {text !== null && (
        <Box as="details">
          <Box as="summary" cursor="pointer">
            The whole job file
          </Box>
          <Box as="pre" tabIndex={0} role="region" aria-label="The whole job file" overflow="auto" maxH="32rem" fontFamily="mono" fontSize="xs" borderWidth="1px" borderRadius="md" p={3} mt={2}>
            {text}
          </Box>
        </Box>
      )}
    </Stack>
  );
}
