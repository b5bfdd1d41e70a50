import { Box, Flex, Heading, Input, Stack, Text } from "@chakra-ui/react";
import { useState } from "react";
import { isStandalone, type JobList, type JobRow as Row } from "../api";
import { formatCount, sizeOf, stateText } from "../format";
import { isMissing, useJobs } from "../jobs";
import { Boundary } from "../parts/Boundary";
import { HealthWord, severityOf } from "../parts/HealthWord";
import { FoldedActions, WaitingApprovalsOf } from "../parts/JobActions";
import { LastSavepoint } from "../parts/LastSavepoint";
import { PageLink } from "../parts/links";
import { Loaded, Notice } from "../parts/Loaded";
import { headOf } from "../parts/LongText";
import { STILL } from "../parts/motion";
import { ScrollingTable } from "../parts/ScrollingTable";
import { ShowMore } from "../parts/ShowMore";
import { Time } from "../parts/Time";
import { Muted, Waiting } from "../parts/Waiting";
import { TrendLine } from "../pictures/TrendLine";

/** All jobs that the reader may see. `base` is the path of the pages. */
export function Jobs({ base }: { base: string }) {
  const resource = useJobs();
  return (
    <Stack gap={4}>
      <title>Jobs · stateflow</title>
      <Flex align="center" justify="space-between" wrap="wrap" gap={3}>
        <Heading as="h1" size="xl">
          Jobs
        </Heading>
        <PageLink to={`${base}/journal`}>Journal of all jobs</PageLink>
      </Flex>
      <Loaded resource={resource}>
        {({ jobs, searches, isWhole }) => (
          <Stack gap={4}>
            <Searches searches={searches} />
            {!isWhole && <Notice status="info" title={`Further jobs are being read, after the first ${formatCount(jobs.length)}`} />}
            {jobs.length === 0 ? <NoJobs searches={searches} /> : <FilteredJobs jobs={jobs} base={base} />}
          </Stack>
        )}
      </Loaded>
    </Stack>
  );
}

/** The jobs on a page of others; nothing as long as there are none. */
export function JobsCard({ base }: { base: string }) {
  return (
    <Boundary>
      <Card base={base} />
    </Boundary>
  );
}

function Card({ base }: { base: string }) {
  const { value, checkedAt, problem } = useJobs(60_000);
  const jobs = value?.jobs ?? [];
  if (jobs.length === 0 && problem === null) return null;
  const worst = bySeverity(jobs).slice(0, MOST_ON_CARD);
  return (
    <Stack as="section" css={STILL} gap={2} aria-label="Stateflow jobs">
      <Flex align="center" justify="space-between" wrap="wrap" gap={3}>
        <Heading as="h2" size="sm">
          Stateflow jobs
        </Heading>
        <Flex gap={3}>
          <PageLink to={`${base}/journal`}>Journal</PageLink>
          <PageLink to={base}>{worst.length === jobs.length ? "Open" : `All ${formatCount(jobs.length)}`}</PageLink>
        </Flex>
      </Flex>
      {problem !== null && (
        <Text role="status" fontSize="sm" color="orange.fg" overflowWrap="anywhere">
          {value === null || checkedAt === null ? "The jobs cannot be read now" : <>This may be outdated. It was read <Time at={new Date(checkedAt).toISOString()} /></>}: {headOf(problem.message)}
        </Text>
      )}
      {worst.length > 0 && <JobTable jobs={worst} all={jobs} base={base} hasActions={false} />}
    </Stack>
  );
}

const MOST_ON_CARD = 5;
/** Fewer jobs are found without a filter. */
const FEWEST_FILTERED = 10;
const MOST_ROWS = 50;

/** The jobs that a person should look at come first. */
function bySeverity(jobs: readonly Row[]): Row[] {
  const name = (job: Row) => job.job ?? job.id;
  return [...jobs].sort((a, b) => severityOf(a.health) - severityOf(b.health) || name(a).localeCompare(name(b)));
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
      {found.length === 0 ? (
        <Notice status="info" title="No job has this name or job root" />
      ) : (
        <ShowMore all={bySeverity(found)} step={MOST_ROWS} what="jobs">
          {(shown) => <JobTable jobs={shown} all={jobs} base={base} hasActions />}
        </ShowMore>
      )}
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
          {problem.hint !== null && <Text>{problem.hint}</Text>}
        </Notice>
      );
    }
    return truncated && <Notice key={location} status="info" title={`Not all folders below ${location} were searched`} />;
  });
}

function NoJobs({ searches }: { searches: JobList["searches"] }) {
  return (
    <Notice status="info" title="There are no jobs here">
      A job appears once its job root exists, if you may read it.
      {searches.map(({ location }) => (
        <Text key={location} overflowWrap="anywhere">
          Job roots are looked for below {location}.
        </Text>
      ))}
    </Notice>
  );
}

/** Some of all jobs: a job with a namesake that is not shown has its job root, too. */
function JobTable({ jobs, all, base, hasActions }: { jobs: readonly Row[]; all: readonly Row[]; base: string; hasActions: boolean }) {
  const seen = new Set<string | null>();
  const shared = new Set(all.map(({ job }) => job).filter((job) => job !== null && seen.size === seen.add(job).size));
  return (
    <ScrollingTable label="Jobs" columns={hasActions ? [...COLUMNS, "Actions"] : COLUMNS}>
      {jobs.map((job) => (
        <JobRow key={job.id} job={job} base={base} hasActions={hasActions} showsRoot={shared.has(job.job)} />
      ))}
    </ScrollingTable>
  );
}

/** Only Airflow knows the next run. */
const COLUMNS = ["Job", "Health", "Newest point", "State", "Input waiting", "Last savepoint", ...(isStandalone ? [] : ["Next run"])];

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
    <td className="name" title={job.job_root}>
      {isMissing(job) ? job.job_root : <PageLink to={path}>{job.job ?? job.id}</PageLink>}
      {showsRoot && (
        <Text fontSize="xs" color="fg.muted" overflowWrap="anywhere">
          {job.job_root}
        </Text>
      )}
    </td>
  );
  if (job.job === null) {
    return (
      <tr>
        {name}
        <td className="bad" colSpan={COLUMNS.length - 1 + Number(hasActions)}>
          {isMissing(job) ? `${job.problem?.message}: ${job.problem?.hint}` : `${job.job_root} cannot be read: ${headOf(job.problem?.message ?? "it was not read yet")}`}
        </td>
      </tr>
    );
  }
  const failure = job.failed_start ?? job.failure;
  return (
    <tr>
      {name}
      <td title={failure?.message}>
        <HealthWord health={job.health} backlog={job.backlog} />
        {job.problem !== null && (
          <Text fontSize="xs" color="orange.fg" title={job.problem.message}>
            not reachable now
          </Text>
        )}
        {job.health?.word === "waits-for-approval" && <WaitingApprovalsOf id={job.id} base={path} />}
      </td>
      <td className="line">
        {job.checkpoint_id === null ? "none" : <PageLink to={`${path}?point=${job.checkpoint_id}`}>{job.checkpoint_id}</PageLink>}
        {job.committed_at !== null && (
          <Text as="span" color="fg.muted" ml={2}>
            <Time at={job.committed_at} />
          </Text>
        )}
      </td>
      <td className="line">
        {stateText(job)}
        <Box as="span" display={{ base: "none", md: "inline-block" }} verticalAlign="middle" ml={2}>
          <TrendLine sizes={job.state_sizes.map(sizeOf)} />
        </Box>
      </td>
      <td className="line">
        <Waiting backlog={job.backlog} unknown={job.backlog_unknown} />
      </td>
      <td className="line">
        <LastSavepoint job={job} base={path} />
      </td>
      {!isStandalone && <td className="line">{job.next_run_at === null ? <Muted text="none planned" /> : <Time at={job.next_run_at} />}</td>}
      {hasActions && (
        <td>
          <FoldedActions id={job.id} base={path} jobRoot={job.job_root} />
        </td>
      )}
    </tr>
  );
}
