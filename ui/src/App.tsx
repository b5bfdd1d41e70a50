import { Box, Link as ChakraLink, Heading, Stack, Text } from "@chakra-ui/react";
import { Link, Navigate, Route, Routes, useParams, useSearchParams } from "react-router-dom";
import { type JobList, useResource } from "./api";
import { JobPages } from "./pages/JobPages";
import { Jobs } from "./pages/Jobs";
import { Journal } from "./pages/Journal";
import { UnknownAddress } from "./pages/UnknownAddress";
import { PageLink, PagesAt, restorePath } from "./parts/links";
import { Loaded, Notice } from "./parts/Loaded";
import { STILL } from "./parts/motion";

/** All pages: the jobs, and the pages of each. `base` is the path below which they are, without a slash at its end. */
export function App({ base }: { base: string }) {
  return (
    <Box className="stateflow" css={STILL} p={{ base: 3, md: 6 }} maxW="2400px" mx="auto" width="full">
      <PagesAt value={base}>
        <Routes>
          <Route index element={<Jobs base={base} />} />
          <Route path="journal" element={<AllActions base={base} />} />
          <Route path="restore" element={<RestoreOfJob base={base} />} />
          <Route path="jobs/:job/*" element={<OneJob base={base} />} />
          <Route path="*" element={<UnknownPage base={base} />} />
        </Routes>
      </PagesAt>
    </Box>
  );
}

function OneJob({ base }: { base: string }) {
  const { job = "" } = useParams();
  return <JobPages id={job} base={`${base}/jobs/${encodeURIComponent(job)}`} jobs={base} />;
}

/**
 * A link to the restore wizard of a job, such as in a message: `restore?job=JOB&to=TARGET`, with the job's id or name. Of
 * several jobs with the name, the reader chooses one.
 */
function RestoreOfJob({ base }: { base: string }) {
  const [query] = useSearchParams();
  const wanted = query.get("job") ?? "";
  const jobs = useResource<JobList>("jobs");
  return (
    <Loaded resource={jobs}>
      {({ jobs: found }) => {
        const pathOf = (id: string) => restorePath(`${base}/jobs/${encodeURIComponent(id)}`, query.get("to"));
        if (found.some(({ id }) => id === wanted)) return <Navigate replace to={pathOf(wanted)} />;
        const [job, ...others] = found.filter(({ job: name }) => name === wanted);
        if (job === undefined) return <Notice status="error" title={`There is no job ${wanted} that you may read`} />;
        if (others.length === 0) return <Navigate replace to={pathOf(job.id)} />;
        return (
          <Notice status="error" title={`Several jobs have the name ${wanted}`}>
            {[job, ...others].map(({ id, job_root: root }) => (
              <Text key={id} overflowWrap="anywhere">
                <PageLink to={pathOf(id)}>{root}</PageLink>
              </Text>
            ))}
          </Notice>
        );
      }}
    </Loaded>
  );
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
