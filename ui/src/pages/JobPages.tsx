import { Box, Link as ChakraLink, Flex, Heading, Stack } from "@chakra-ui/react";
import { NavLink, Route, Routes } from "react-router-dom";
import { useFamily } from "../airflow";
import { type JobState, useResource } from "../api";
import { isMissing } from "../jobs";
import { Boundary } from "../parts/Boundary";
import { CheckpointDrawer } from "../parts/CheckpointDrawer";
import { CopiedPath } from "../parts/Command";
import { HealthWord } from "../parts/HealthWord";
import { WaitingApprovals } from "../parts/JobActions";
import { PageLink, PagesAt } from "../parts/links";
import { Notice } from "../parts/Loaded";
import { Approval } from "./Approval";
import { Graph } from "./Graph";
import { Journal } from "./Journal";
import { Recovery } from "./Recovery";
import { Restore } from "./Restore";
import { Run } from "./Run";
import { Savepoints } from "./Savepoints";
import { State } from "./State";
import { Timeline } from "./Timeline";
import { UnknownAddress } from "./UnknownAddress";

const PAGES = [
  ["", "State"],
  ["/timeline", "Timeline"],
  ["/journal", "Journal"],
  ["/savepoints", "Savepoints"],
  ["/graph", "Graph"],
] as const;

/** The pages of one job. `jobs` is the path of the list of jobs, null where there is none; `base` is the path of these pages. */
export function JobPages({ id, base, jobs }: { id: string; base: string; jobs: string | null }) {
  const address = `jobs/${encodeURIComponent(id)}`;
  const state = useResource<JobState>(address);
  const family = useFamily(id);
  if (state.value !== null && isMissing(state.value)) return <NoJobRoot state={state.value} jobs={jobs} />;
  const name = state.value === null ? "" : (state.value.job ?? state.value.id);
  return (
    <PagesAt value={base}>
      <Stack gap={4}>
        <title>{name === "" ? "stateflow" : `${name} · stateflow`}</title>
        <Flex align="center" gap={3} wrap="wrap">
          {jobs !== null && <PageLink to={jobs || "/"}>Jobs</PageLink>}
          <Heading as="h1" size="xl" overflowWrap="anywhere">
            {name || "Job"}
          </Heading>
          {state.value !== null && <HealthWord health={state.value.health} backlog={state.value.backlog} />}
        </Flex>
        {state.value !== null && (
          // Two jobs can have the same name.
          <Box fontSize="sm" color="fg.muted" mt={-3}>
            <CopiedPath text={state.value.job_root} what="path of the job root" />
          </Box>
        )}
        <Tabs base={base} />
        <Routes>
          <Route path="approval/*" element={null} />
          <Route path="*" element={<WaitingApprovals family={family} base={base} />} />
        </Routes>
        <Boundary>
          <Routes>
            <Route index element={<State state={state} base={base} address={address} family={family} />} />
            <Route path="timeline" element={<Timeline address={address} base={base} jobRoot={state.value?.job_root ?? null} />} />
            <Route path="journal" element={<Journal address={`${address}/journal`} job={id} />} />
            <Route path="savepoints" element={<Savepoints address={address} base={base} state={state} family={family} />} />
            <Route path="approval/:dagRun" element={<Approval state={state} address={address} base={base} family={family} />} />
            <Route path="recovery/:dagRun" element={<Recovery state={state} base={base} family={family} />} />
            <Route path="runs/:generation" element={<Run address={address} base={base} family={family} />} />
            <Route path="graph" element={<Graph address={address} />} />
            <Route path="restore" element={<Restore state={state} base={base} address={address} family={family} />} />
            <Route path="*" element={<UnknownAddress base={base} />} />
          </Routes>
        </Boundary>
        <Boundary>
          <CheckpointDrawer address={address} base={base} job={state.value} />
        </Boundary>
      </Stack>
    </PagesAt>
  );
}

/** The job appears here as soon as its job root exists: the state is asked for again. */
function NoJobRoot({ state: { job_root: root, problem }, jobs }: { state: JobState; jobs: string | null }) {
  return (
    <Stack gap={4}>
      <title>No job root · stateflow</title>
      {jobs !== null && <PageLink to={jobs || "/"}>Jobs</PageLink>}
      <Notice status="error" title={problem?.message ?? root}>
        {problem?.hint}
      </Notice>
    </Stack>
  );
}

function Tabs({ base }: { base: string }) {
  return (
    <Box as="nav" aria-label="Pages of the job" borderBottomWidth="1px">
      <Flex gap={1} wrap="wrap">
        {PAGES.map(([path, title]) => (
          <ChakraLink key={path} asChild px={3} py={2} _currentPage={{ fontWeight: "bold", borderBottomWidth: "2px" }}>
            <NavLink to={base + path} end>
              {title}
            </NavLink>
          </ChakraLink>
        ))}
      </Flex>
    </Box>
  );
}
