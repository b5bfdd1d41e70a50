import { Button, Flex, Heading, SimpleGrid, Stack, Table, Text } from "@chakra-ui/react";
import { type FormEvent, type ReactNode, useMemo, useState } from "react";
import { type JobState, type SavepointPage, type TimelinePage, useResource } from "../api";
import { formatBytes, formatCount, instantOf } from "../format";
import { inOrder, layOut, type Mark } from "../pictures/timelineLayout";
import { describeMark } from "../pictures/TimelineMarks";
import { TimelinePicture } from "../pictures/TimelinePicture";
import { type Before, beforeDeployments, type Point, pointsOf, targetOf } from "../targets";
import { MomentField, SelectField, TextField } from "./Fields";
import { RestoreLink, RunLink } from "./links";
import { FreshnessNotice, Loaded, Notice } from "./Loaded";
import { ScrollingTable } from "./ScrollingTable";
import { Time } from "./Time";

interface Props {
  address: string;
  base: string;
  job: JobState;
  onChoose: (target: string) => void;
}

/** Points to choose from: in the timeline, before a deployment, before a time or a position, or in a list. */
export function RestorePoints({ address, base, job, onChoose }: Props) {
  const timeline = useResource<TimelinePage>(`${address}/timeline?limit=500`);
  const saved = useResource<SavepointPage>(`${address}/savepoints`);
  return (
    <Stack gap={5}>
      <Heading as="h2" size="lg">
        1. Choose the point
      </Heading>
      <Loaded resource={timeline}>
        {(page) => (
          <Loaded resource={saved}>
            {(savepoints) => (
              <Stack gap={5}>
                <FreshnessNotice of={page} history />
                <InTimeline page={page} base={base} jobRoot={job.job_root} onChoose={onChoose} />
                <Deployments found={beforeDeployments(page, savepoints)} base={base} />
                <OtherPoints job={job} onChoose={onChoose} />
                <PointTable points={pointsOf(page, savepoints)} base={base} />
              </Stack>
            )}
          </Loaded>
        )}
      </Loaded>
    </Stack>
  );
}

/** The timeline: a click on a point that can be restored chooses it. */
function InTimeline({ page, base, jobRoot, onChoose }: { page: TimelinePage; base: string; jobRoot: string; onChoose: (target: string) => void }) {
  const [expanded, setExpanded] = useState<ReadonlySet<string>>(new Set());
  const layout = useMemo(() => layOut(inOrder(page), { expanded }), [page, expanded]);
  const [refused, setRefused] = useState<string | null>(null);
  if (layout.slots === 0) return null;
  const choose = (mark: Mark) => {
    const target = targetOf(mark, page, jobRoot);
    if (target !== null) onChoose(target);
    else if (mark.kind === "group") setExpanded(new Set([...expanded, mark.key]));
    else setRefused(mark.newest ? "The job is at this point." : `This cannot be restored: ${describeMark(mark)}.`);
  };
  return (
    <Stack gap={1}>
      <TimelinePicture layout={layout} selected={null} onSelect={choose} base={base} buttons={null} />
      <Text fontSize="sm" color="fg.muted" role="status">
        {refused ?? "Choose a filled point or a savepoint. Several checkpoints in one mark are first shown one by one."}
      </Text>
    </Stack>
  );
}

function Deployments({ found, base }: { found: readonly Before[]; base: string }) {
  if (found.length === 0) return null;
  return (
    <Stack as="section" gap={2} aria-label="Before a deployment">
      <Heading as="h3" size="sm">
        Before a deployment
      </Heading>
      {found.slice(0, MOST_DEPLOYMENTS).map(({ deployment, target }) => (
        <Flex key={deployment.generation} gap={3} align="center" wrap="wrap">
          <Text overflowWrap="anywhere">
            Before the deployment of <Time at={deployment.at} full />: {deployment.jobFile ?? "the job file"} changed with <RunLink generation={deployment.generation} run={deployment.run} />
          </Text>
          {target === null ? <Text color="fg.muted">The point before it is not kept.</Text> : <RestoreLink base={base} target={target} size="xs" />}
        </Flex>
      ))}
    </Stack>
  );
}

const MOST_DEPLOYMENTS = 5;

function PointTable({ points, base }: { points: readonly Point[]; base: string }) {
  if (points.length === 0) {
    return (
      <Notice status="info" title="There is no earlier point">
        The job keeps no checkpoint before the newest one, and has no savepoint.
      </Notice>
    );
  }
  return (
    <ScrollingTable label="Points to restore">
      <Table.Header>
        <Table.Row>
          {["Point", "Made", "State", "Rows after it", "Remarks", "Restore"].map((title) => (
            <Table.ColumnHeader key={title}>{title}</Table.ColumnHeader>
          ))}
        </Table.Row>
      </Table.Header>
      <Table.Body>
        {points.map((point) => (
          <Table.Row key={point.name}>
            <Table.Cell fontWeight="semibold">{point.name}</Table.Cell>
            <Table.Cell whiteSpace="nowrap">{point.at === null ? "not known" : <Time at={point.at} />}</Table.Cell>
            <Table.Cell whiteSpace="nowrap">{formatBytes(point.bytes)}</Table.Cell>
            <Table.Cell>{point.rowsAfter === null ? "not known" : formatCount(point.rowsAfter)}</Table.Cell>
            <Table.Cell overflowWrap="anywhere">{point.remark}</Table.Cell>
            <Table.Cell>
              <RestoreLink base={base} target={point.target} size="xs" />
            </Table.Cell>
          </Table.Row>
        ))}
      </Table.Body>
    </ScrollingTable>
  );
}

/** Points that are given by a condition or a path. */
function OtherPoints({ job, onChoose }: { job: JobState; onChoose: (target: string) => void }) {
  const [moment, setMoment] = useState("");
  const [path, setPath] = useState("");
  const instant = instantOf(moment);
  return (
    <SimpleGrid columns={{ base: 1, lg: 3 }} gap={4}>
      <Choice
        label="Use the last point before this time"
        // The API takes times in UTC.
        target={instant === null ? null : `before:${instant.slice(0, 19)}`}
        onChoose={onChoose}
      >
        <MomentField label="Before a time" value={moment} onChange={setMoment} />
      </Choice>
      <BeforePosition sources={job.sources.map(({ uid }) => uid)} onChoose={onChoose} />
      <Choice label="Use this point" target={path.trim() === "" ? null : path.trim()} onChoose={onChoose}>
        <TextField label="Another point" value={path} onChange={setPath} help="The path of a savepoint, or latest" />
      </Choice>
    </SimpleGrid>
  );
}

function BeforePosition({ sources, onChoose }: { sources: readonly string[]; onChoose: (target: string) => void }) {
  const [chosen, setChosen] = useState<string | null>(null);
  const [number, setNumber] = useState("");
  const source = chosen ?? sources[0];
  if (source === undefined) return null;
  return (
    <Choice label="Use the last point up to this position" target={/^\d+$/.test(number.trim()) ? `before:${source}=${number.trim()}` : null} onChoose={onChoose}>
      <SelectField label="Up to a position of source" value={source} choices={sources.map((uid) => [uid, uid] as const)} onChange={setChosen} />
      <TextField label="Number in its position" value={number} onChange={setNumber} help="No number in the position of the source is above this one." />
    </Choice>
  );
}

function Choice({ label, target, onChoose, children }: { label: string; target: string | null; onChoose: (target: string) => void; children: ReactNode }) {
  const choose = (event: FormEvent) => {
    event.preventDefault();
    if (target !== null) onChoose(target);
  };
  return (
    <form onSubmit={choose}>
      <Stack gap={2} borderWidth="1px" borderRadius="md" p={3} height="full">
        {children}
        <Button type="submit" size="sm" variant="outline" alignSelf="start" mt="auto" disabled={target === null}>
          {label}
        </Button>
      </Stack>
    </form>
  );
}
