import { Button, Flex, Heading, SimpleGrid, Stack, Text } from "@chakra-ui/react";
import { type FormEvent, type ReactNode, useMemo, useState } from "react";
import { type ActionEntry, type JobState, type PointPage, type SavepointPage, type TimelinePage, useResource } from "../api";
import { formatBytes, formatCount, instantOf, zoneName } from "../format";
import { useHistoryPart, useNewest } from "../history";
import { inOrder, layOut, type Mark } from "../pictures/timelineLayout";
import { describeMark } from "../pictures/TimelineMarks";
import { TimelinePicture } from "../pictures/TimelinePicture";
import { type Before, beforeDeployments, keptPoints, type Point, rowsAfterEach, savedPoints, targetOf } from "../targets";
import { MomentField, SelectField, TextField } from "./Fields";
import { HistoryButtons } from "./HistoryButtons";
import { RestoreLink, RunLink } from "./links";
import { FreshnessNotice, Loaded } from "./Loaded";
import { Pager, usePages } from "./Pager";
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
  const newest = useNewest(address);
  const part = useHistoryPart(address, newest);
  const saved = useResource<SavepointPage>(`${address}/savepoints`);
  const after = useMemo(() => rowsAfterEach(newest.value?.checkpoints ?? []), [newest.value]);
  const kept = job.description?.retained_checkpoint_ids ?? [];
  return (
    <Stack gap={5}>
      <Heading as="h2" size="lg">
        1. Choose the point
      </Heading>
      <Loaded resource={part.resource}>
        {(page) => (
          <Stack gap={5}>
            <FreshnessNotice of={page} history />
            <InTimeline page={page} isNewest={part.isNewest} actions={newest.value?.actions ?? []} base={base} jobRoot={job.job_root} onChoose={onChoose} />
          </Stack>
        )}
      </Loaded>
      <HistoryButtons part={part} />
      {saved.value !== null && <Deployments found={beforeDeployments(newest.value?.runs ?? [], kept, saved.value.savepoints)} isWhole={!saved.value.older} base={base} />}
      <OtherPoints job={job} onChoose={onChoose} />
      <KeptPoints address={address} base={base} job={job} after={after} />
      <Loaded resource={saved}>
        {({ savepoints, older }) => (
          <Stack gap={2}>
            <PointTable label="Savepoints to restore" points={savedPoints(savepoints, after)} empty="The job has no savepoint." base={base} />
            {older && <Text color="fg.muted">The job root has older savepoints, which are not shown.</Text>}
          </Stack>
        )}
      </Loaded>
    </Stack>
  );
}

/** The checkpoints to which a restore can return, the newest first. */
function KeptPoints({ address, base, job, after }: { address: string; base: string; job: JobState; after: ReadonlyMap<number | null, number> }) {
  const pages = usePages(KEPT);
  const resource = useResource<PointPage>(`${address}/points${pages.query}`);
  return (
    <Loaded resource={resource}>
      {(page) => (
        <Stack gap={2}>
          <FreshnessNotice of={page} />
          <PointTable label="Points to restore" points={keptPoints(page.points, job.checkpoint_id, after)} empty="The job keeps no checkpoint before the newest one." base={base} />
          <Pager pages={pages} next={page.next_cursor} />
        </Stack>
      )}
    </Loaded>
  );
}

const KEPT = new URLSearchParams({ retained: "true", undone: "false" });

interface TimelineProps {
  page: TimelinePage;
  isNewest: boolean;
  /** The newest actions, which say which savepoints are deleted. */
  actions: readonly ActionEntry[];
  base: string;
  jobRoot: string;
  onChoose: (target: string) => void;
}

/** The timeline: a click on a point that can be restored chooses it. */
function InTimeline({ page, isNewest, actions, base, jobRoot, onChoose }: TimelineProps) {
  const [expanded, setExpanded] = useState<ReadonlySet<string>>(new Set());
  const layout = useMemo(() => layOut(inOrder(page), { expanded, isNewest }), [page, isNewest, expanded]);
  const [refused, setRefused] = useState<string | null>(null);
  if (layout.slots === 0) return null;
  const choose = (mark: Mark) => {
    const target = targetOf(mark, [...page.actions, ...actions], jobRoot);
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

function Deployments({ found, isWhole, base }: { found: readonly Before[]; isWhole: boolean; base: string }) {
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
          {target === null ? <Text color="fg.muted">{isWhole ? "The point before it is not kept." : "The job does not keep the point before it; an older savepoint may have it."}</Text> : <RestoreLink base={base} target={target} size="xs" />}
        </Flex>
      ))}
    </Stack>
  );
}

const MOST_DEPLOYMENTS = 5;

function PointTable({ label, points, empty, base }: { label: string; points: readonly Point[]; empty: string; base: string }) {
  if (points.length === 0) return <Text color="fg.muted">{empty}</Text>;
  return (
    <ScrollingTable label={label} columns={["Point", "Made", "State", "Rows after it"]}>
      {points.map((point) => (
        <tr key={point.name}>
          <td className="text">
            {/* All in one cell: a phone shows the others only once the table is scrolled sideways. */}
            <Stack gap={1} alignItems="start">
              <strong>{point.name}</strong>
              {point.remark !== "" && <span>{point.remark}</span>}
              <RestoreLink base={base} target={point.target} size="cell" />
            </Stack>
          </td>
          <td className="line">{point.at === null ? "not known" : <Time at={point.at} />}</td>
          <td className="line">{point.bytes === null ? "not known" : formatBytes(point.bytes)}</td>
          <td>{point.rowsAfter === null ? "not known" : formatCount(point.rowsAfter)}</td>
        </tr>
      ))}
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
        target={instant === null ? null : `before:${instant.slice(0, 19)}Z`}
        onChoose={onChoose}
      >
        <MomentField label="Before a time" value={moment} onChange={setMoment} help={`In the time zone ${zoneName()}. The target has it in UTC.`} />
      </Choice>
      <BeforePosition sources={job.sources.map(({ uid }) => uid)} onChoose={onChoose} />
      <Choice label="Use this point" target={path.trim() === "" ? null : path.trim()} onChoose={onChoose}>
        <TextField label="Another point" value={path} onChange={setPath} help="The path of a savepoint, latest, or a time such as before:2026-01-31T03:00+01:00. A time without an offset is in UTC." />
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
