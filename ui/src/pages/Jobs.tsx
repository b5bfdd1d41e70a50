import { Box, Flex, Link as ChakraLink, Heading, Input, Stack, Table, Text } from "@chakra-ui/react";
import { useState } from "react";
import { Link } from "react-router-dom";
import { type Backlog, type Health, type JobList, type JobRow as Row, useResource } from "../api";
import { formatBytes, formatCount, formatDuration } from "../format";
import { HealthWord } from "../parts/HealthWord";
import { FoldedActions, WaitingApprovalsOf } from "../parts/JobActions";
import { PageLink } from "../parts/links";
import { Loaded, Notice } from "../parts/Loaded";
import { ScrollingTable } from "../parts/ScrollingTable";
import { Time } from "../parts/Time";
import { TrendLine } from "../pictures/TrendLine";
import { waitingFiles } from "../recovery";

/** All jobs that the reader may see. `base` is the path of the pages. */
export function Jobs({ base }: { base: string }) {
  const resource = useResource<JobList>("jobs");
  return (
    <Stack gap={4}>
      <title>Jobs · stateflow</title>
      <Flex align="center" justify="space-between" wrap="wrap" gap={3}>
        <Heading as="h1" size="xl">
          Jobs
        </Heading>
        <ChakraLink asChild textDecoration="underline">
          <Link to={`${base}/journal`}>Journal of all jobs</Link>
        </ChakraLink>
      </Flex>
      <Loaded resource={resource}>
        {({ jobs, searches }) => (
          <Stack gap={4}>
            <Searches searches={searches} />
            {jobs.length === 0 ? <NoJobs /> : <FilteredJobs jobs={jobs} base={base} />}
          </Stack>
        )}
      </Loaded>
    </Stack>
  );
}

/** The jobs on a page of others; nothing as long as there are none. */
export function JobsCard({ base }: { base: string }) {
  const { value } = useResource<JobList>("jobs", 60_000);
  if (value === null || value.jobs.length === 0) return null;
  const worst = bySeverity(value.jobs).slice(0, MOST_ON_CARD);
  return (
    <Stack as="section" gap={2} aria-label="Jobs of stateflow">
      <Flex align="center" justify="space-between" wrap="wrap" gap={3}>
        <Heading as="h2" size="sm">
          Jobs of stateflow
        </Heading>
        <ChakraLink asChild textDecoration="underline">
          <Link to={base}>{worst.length === value.jobs.length ? "Open" : `All ${formatCount(value.jobs.length)}`}</Link>
        </ChakraLink>
      </Flex>
      <JobTable jobs={worst} base={base} hasActions={false} />
    </Stack>
  );
}

const MOST_ON_CARD = 5;
/** Fewer jobs are found without a filter. */
const FEWEST_FILTERED = 10;
/** What a person should look at comes first. */
const SEVERITY: Health["word"][] = [
  "failing",
  "waits-for-approval",
  "retrying",
  "late",
  "restoring",
  "starting",
  "running",
  "idle",
  "caught-up",
  "stopped",
];

function bySeverity(jobs: readonly Row[]): Row[] {
  const rank = ({ health }: Row) => (health === null ? -1 : SEVERITY.indexOf(health.word));
  const name = (job: Row) => job.job ?? job.id;
  return [...jobs].sort((a, b) => rank(a) - rank(b) || name(a).localeCompare(name(b)));
}

/** Jobs with a field that filters them by name and job root. */
function FilteredJobs({ jobs, base }: { jobs: readonly Row[]; base: string }) {
  const [wanted, setWanted] = useState("");
  const words = wanted.toLowerCase().split(/\s+/);
  const found = jobs.filter((job) => words.every((word) => `${job.job ?? ""} ${job.job_root}`.toLowerCase().includes(word)));
  return (
    <Stack gap={4}>
      {jobs.length >= FEWEST_FILTERED && (
        <Input
          aria-label="Name or job root"
          placeholder="Name or job root"
          maxW="md"
          value={wanted}
          onChange={(event) => {
            setWanted(event.target.value);
          }}
        />
      )}
      {found.length === 0 ? <Notice status="info" title="No job has this name or job root" /> : <JobTable jobs={bySeverity(found)} base={base} hasActions />}
    </Stack>
  );
}

/** Folders whose search for job roots failed, or found more than are shown. */
function Searches({ searches }: { searches: JobList["searches"] }) {
  return searches.map(({ location, truncated, problem }) => {
    if (problem !== null) {
      return (
        <Notice key={location} status="warning" title={`Job roots below ${location} cannot be found now`}>
          {problem.message}
        </Notice>
      );
    }
    return truncated && <Notice key={location} status="info" title={`Not all folders below ${location} were searched`} />;
  });
}

function NoJobs() {
  return (
    <Notice status="info" title="There are no jobs here">
      A job appears once its job root exists, if you may read it.
    </Notice>
  );
}

function JobTable({ jobs, base, hasActions }: { jobs: readonly Row[]; base: string; hasActions: boolean }) {
  const hasNamesake = (job: Row) => jobs.some((other) => other !== job && other.job !== null && other.job === job.job);
  return (
    <ScrollingTable label="Jobs">
      <Table.Header>
        <Table.Row>
          <Table.ColumnHeader>Job</Table.ColumnHeader>
          <Table.ColumnHeader>Health</Table.ColumnHeader>
          <Table.ColumnHeader>Newest point</Table.ColumnHeader>
          <Table.ColumnHeader>State</Table.ColumnHeader>
          <Table.ColumnHeader>Input waiting</Table.ColumnHeader>
          <Table.ColumnHeader>Last savepoint</Table.ColumnHeader>
          <Table.ColumnHeader>Next run</Table.ColumnHeader>
          {hasActions && <Table.ColumnHeader>Actions</Table.ColumnHeader>}
        </Table.Row>
      </Table.Header>
      <Table.Body>
        {jobs.map((job) => (
          <JobRow key={job.id} job={job} base={base} hasActions={hasActions} showsRoot={hasNamesake(job)} />
        ))}
      </Table.Body>
    </ScrollingTable>
  );
}

interface RowProps {
  job: Row;
  base: string;
  hasActions: boolean;
  /** Whether another job has the same name. */
  showsRoot: boolean;
}

function JobRow({ job, base, hasActions, showsRoot }: RowProps) {
  const path = `${base}/jobs/${encodeURIComponent(job.id)}`;
  const name = (
    <Table.Cell>
      <ChakraLink asChild fontWeight="semibold" textDecoration="underline">
        <Link to={path} title={job.job_root}>
          {job.job ?? job.id}
        </Link>
      </ChakraLink>
      {showsRoot && (
        <Text fontSize="xs" color="fg.muted" overflowWrap="anywhere">
          {job.job_root}
        </Text>
      )}
    </Table.Cell>
  );
  if (job.job === null) {
    return (
      <Table.Row>
        {name}
        <Table.Cell colSpan={hasActions ? 7 : 6} color="red.fg">
          {job.job_root} cannot be read: {job.problem?.message ?? "it was not read yet"}
        </Table.Cell>
      </Table.Row>
    );
  }
  const failure = job.failed_start ?? job.failure;
  return (
    <Table.Row>
      {name}
      <Table.Cell title={failure?.message}>
        <HealthWord health={job.health} backlog={job.backlog} />
        {job.problem !== null && (
          <Text fontSize="xs" color="orange.fg" title={job.problem.message}>
            not reachable now
          </Text>
        )}
        {job.health?.word === "waits-for-approval" && <WaitingApprovalsOf id={job.id} base={path} />}
      </Table.Cell>
      <Table.Cell whiteSpace="nowrap">
        {job.checkpoint_id === null ? "none" : <PageLink to={`${path}?point=${job.checkpoint_id}`}>{job.checkpoint_id}</PageLink>}
        {job.committed_at !== null && (
          <Text as="span" color="fg.muted" ml={2}>
            <Time at={job.committed_at} />
          </Text>
        )}
      </Table.Cell>
      <Table.Cell whiteSpace="nowrap">
        {job.full_bytes === null ? "none" : formatBytes(job.full_bytes)}
        <Box as="span" display={{ base: "none", md: "inline-block" }} verticalAlign="middle" ml={2}>
          <TrendLine sizes={job.state_sizes.map((size) => size.full_bytes)} />
        </Box>
      </Table.Cell>
      <Table.Cell whiteSpace="nowrap">
        <Waiting backlog={job.backlog} unknown={job.backlog_unknown} />
      </Table.Cell>
      <Table.Cell whiteSpace="nowrap">
        <LastSavepoint savepoint={job.savepoint} base={path} />
      </Table.Cell>
      <Table.Cell whiteSpace="nowrap">{job.next_run_at === null ? <Unknown text="none planned" /> : <Time at={job.next_run_at} />}</Table.Cell>
      {hasActions && (
        <Table.Cell>
          <FoldedActions id={job.id} base={path} jobRoot={job.job_root} />
        </Table.Cell>
      )}
    </Table.Row>
  );
}

/** The newest savepoint; `base` is the path of the job's pages. */
export function LastSavepoint({ savepoint, base }: { savepoint: Row["savepoint"]; base: string }) {
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

function Unknown({ text, title }: { text: string; title?: string }) {
  return (
    <Text as="span" color="fg.muted" title={title}>
      {text}
    </Text>
  );
}

/** How much input waits: "2 files", "1,234 rows, about 3 min". */
export function Waiting({ backlog, unknown }: { backlog: Backlog | null; unknown: string | null }) {
  if (backlog === null) return <Unknown text="not known" title={unknown ?? undefined} />;
  return (
    <>
      {waitingText(backlog)}
      {backlog.measured_at !== null && (
        <Text as="span" color="fg.muted" fontSize="sm">
          {" "}
          (measured <Time at={backlog.measured_at} />)
        </Text>
      )}
    </>
  );
}

/** The same without its time. Only the totals count: a report does not name all sources of a job with many. */
export function waitingText(backlog: Backlog): string {
  const { rows, exact, catch_up_ms: ms, size_bytes: bytes = null } = backlog;
  const files = waitingFiles(backlog);
  const catchUp = ms === null || ms === 0 ? "" : `, ${formatDuration(ms)} to read`;
  if ((rows ?? files ?? bytes) === 0) return "none";
  if (rows !== null) return `${exact ? "" : "about "}${formatCount(rows)} ${rows === 1 ? "row" : "rows"}${catchUp}`;
  if (files !== null) return `${formatCount(files)} ${files === 1 ? "file" : "files"}${catchUp}`;
  return bytes === null ? "not known" : `${formatBytes(bytes)}${catchUp}`;
}
