import { Box, Stack, Text } from "@chakra-ui/react";
import { type JobList, useResource } from "../api";
import { Boundary } from "../parts/Boundary";
import { TabOf } from "../parts/DagChoice";
import { Loaded, Notice } from "../parts/Loaded";
import { STILL } from "../parts/motion";
import { JobPages } from "./JobPages";

/** The pages of the job that a DAG runs; Airflow shows the tab on every DAG. */
export function JobOfDag({ dagId, base }: { dagId: string; base: string }) {
  const jobs = useResource<JobList>(`dags/${encodeURIComponent(dagId)}/jobs`);
  return (
    <Box className="stateflow" css={STILL} p={{ base: 3, md: 4 }}>
      <Boundary>
        <Loaded resource={jobs}>
          {({ jobs: [job, ...others], searches }) => (job === undefined ? <NoJob dagId={dagId} searches={searches} /> : (
            <Stack gap={4}>
              {others.length > 0 && <Text>This DAG runs {others.length + 1} jobs; the others are under Stateflow.</Text>}
              <TabOf value={dagId}>
                <JobPages id={job.id} base={base} jobs={null} />
              </TabOf>
            </Stack>
          ))}
        </Loaded>
      </Boundary>
    </Box>
  );
}

function NoJob({ dagId, searches }: { dagId: string; searches: JobList["searches"] }) {
  const unknown = searches.filter(({ problem }) => problem !== null);
  if (unknown.length > 0) {
    return unknown.map(({ location, problem }) => (
      <Notice key={location} status="info" title="The job of this DAG cannot be shown">
        <Text overflowWrap="anywhere">
          {problem?.message}: {location}
        </Text>
        {problem?.hint && <Text overflowWrap="anywhere">{problem.hint}</Text>}
      </Notice>
    ));
  }
  return (
    <Notice status="info" title="This is not a DAG of a stateflow job">
      No task of {dagId} runs a job, or its job has not run yet.
    </Notice>
  );
}
