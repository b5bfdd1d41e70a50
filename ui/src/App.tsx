import { Box, Link as ChakraLink, Heading, Stack, Text } from "@chakra-ui/react";
import { Link, Navigate, Route, Routes, useParams, useSearchParams } from "react-router-dom";
import type { JobRow } from "./api";
import { type AllJobs, isMissing, useJobs } from "./jobs";
import { JobPages } from "./pages/JobPages";
import { Jobs } from "./pages/Jobs";
import { Journal } from "./pages/Journal";
import { UnknownAddress } from "./pages/UnknownAddress";
import { Boundary } from "./parts/Boundary";
import { PageLink, PagesAt, restorePath } from "./parts/links";
import { Loaded, Notice } from "./parts/Loaded";
import { STILL } from "./parts/motion";

/** All pages: the jobs, and the pages of each. `base` is the path below which they are, without a slash at its end. */
export function App({ base }: { base: string }) {
  return (
    <Box className="stateflow" css={STILL} p={{ base: 3, md: 6 }} maxW="2400px" mx="auto" width="full">
      <PagesAt value={base}>
        <Boundary>
          <Routes>
            <Route index element={<Jobs base={base} />} />
            <Route path="journal" element={<AllActions base={base} />} />
            <Route path="restore" element={<PageOfJob base={base} pathIn={restoreIn} />} />
            <Route path="approval" element={<PageOfJob base={base} pathIn={approvalIn} />} />
            <Route path="jobs/:job/*" element={<OneJob base={base} />} />
            <Route path="*" element={<UnknownPage base={base} />} />
          </Routes>
        </Boundary>
      </PagesAt>
    </Box>
  );
}

function OneJob({ base }: { base: string }) {
  const { job = "" } = useParams();
  return <JobPages id={job} base={`${base}/jobs/${encodeURIComponent(job)}`} jobs={base} />;
}

/** `restore?job=JOB&to=TARGET`: the restore wizard. */
function restoreIn(job: string, query: URLSearchParams): string {
  return restorePath(job, query.get("to"));
}

/** `approval?job=JOB&dag=DAG&run=DAG_RUN`: the question of a DAG run. */
function approvalIn(job: string, query: URLSearchParams): string {
  const dag = query.get("dag");
  const path = `${job}/approval/${encodeURIComponent(query.get("run") ?? "")}`;
  return dag === null ? path : `${path}?${new URLSearchParams({ dag }).toString()}`;
}

interface PageOfJobProps {
  base: string;
  /** The address of the page, below that of its job. */
  pathIn: (job: string, query: URLSearchParams) => string;
}

/**
 * A link in a message to a page of a job, with the job's id or name. Of several jobs that may have the name, the reader
 * chooses one.
 */
function PageOfJob({ base, pathIn }: PageOfJobProps) {
  const [query] = useSearchParams();
  const wanted = query.get("job") ?? "";
  const pathOf = (id: string) => pathIn(`${base}/jobs/${encodeURIComponent(id)}`, query);
  return (
    <Loaded resource={useJobs(2_000)}>
      {(all) => {
        if (all.jobs.some(({ id }) => id === wanted)) return <Navigate replace to={pathOf(wanted)} />;
        const { named, isReading, unreadable } = candidatesOf(wanted, all);
        if (isReading) return <Notice status="info" title={`Looking for the job ${wanted}: not all job roots have been read yet`} />;
        const [job, ...others] = named;
        if (job !== undefined && others.length === 0 && unreadable.length === 0) return <Navigate replace to={pathOf(job.id)} />;
        return (
          <Notice status={job === undefined ? "error" : "warning"} title={titleOf(wanted, named.length)}>
            <JobLinks jobs={named} pathOf={pathOf} />
            {unreadable.length > 0 && <Text>These job roots cannot be read now. One of them may be the job:</Text>}
            <JobLinks jobs={unreadable} pathOf={pathOf} />
          </Notice>
        );
      }}
    </Loaded>
  );
}

/** The jobs that have a name, and those that may have it: the name of a job is in its job root. */
function candidatesOf(name: string, { jobs, isWhole }: AllJobs) {
  const unread = jobs.filter(({ job }) => job === null);
  return {
    named: jobs.filter(({ job }) => job === name),
    isReading: !isWhole || unread.some(({ problem }) => problem === null),
    unreadable: unread.filter((each) => !isMissing(each)),
  };
}

function titleOf(name: string, count: number): string {
  if (count === 0) return `There is no job ${name} that you may read`;
  return count === 1 ? `One job has the name ${name}` : `Several jobs have the name ${name}`;
}

function JobLinks({ jobs, pathOf }: { jobs: readonly JobRow[]; pathOf: (id: string) => string }) {
  return jobs.map(({ id, job_root: root }) => (
    <Text key={id} overflowWrap="anywhere">
      <PageLink to={pathOf(id)}>{root}</PageLink>
    </Text>
  ));
}

function AllActions({ base }: { base: string }) {
  return (
    <Stack gap={4}>
      <title>Journal · stateflow</title>
      <ChakraLink asChild textDecoration="underline" alignSelf="start">
        <Link to={base || "/"}>Jobs</Link>
      </ChakraLink>
      <Heading as="h1" size="xl">
        Journal
      </Heading>
      <Journal address="journal" job={null} />
    </Stack>
  );
}

function UnknownPage({ base }: { base: string }) {
  return (
    <Stack gap={4}>
      <title>Unknown address · stateflow</title>
      <Heading as="h1" size="xl">
        Unknown address
      </Heading>
      <UnknownAddress base={base} />
    </Stack>
  );
}
