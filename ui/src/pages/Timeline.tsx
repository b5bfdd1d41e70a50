import { Box, Button, Heading, Stack, Text } from "@chakra-ui/react";
import { useMemo, useState } from "react";
import { useSearchParams } from "react-router-dom";
import type { ActionEntry, CheckpointSummary, TimelinePage } from "../api";
import { formatBytes, formatCount, formatDuration } from "../format";
import { useHistoryPart, useNewest } from "../history";
import { type Fact, Facts, factsText } from "../parts/Facts";
import { HistoryButtons } from "../parts/HistoryButtons";
import { CheckpointLink, RestoreLink, RunLink } from "../parts/links";
import { FreshnessNotice, Loaded, Notice } from "../parts/Loaded";
import { People } from "../parts/People";
import { Moment } from "../parts/Time";
import { inOrder, isCheckpoint, layOut, type Mark } from "../pictures/timelineLayout";
import { TimelineLegend, titleOf } from "../pictures/TimelineMarks";
import { TimelinePicture } from "../pictures/TimelinePicture";
import { KINDS_OF_RUNS } from "../runs";
import { targetOf } from "../targets";

/** Marks in a row from which runs are collapsed. */
const MOST_SLOTS = 150;

/** The history of a job as a picture, and facts about the selected point. */
export function Timeline({ address, base, jobRoot }: { address: string; base: string; jobRoot: string | null }) {
  const newest = useNewest(address);
  const part = useHistoryPart(address, newest);
  return (
    <Stack gap={4}>
      <Loaded resource={part.resource}>
        {(page) => (
          <Stack gap={4}>
            <FreshnessNotice of={page} history />
            {page.checkpoints.length > 0 || page.actions.length > 0 ? (
              <Picture page={page} isNewest={part.isNewest} actions={newest.value?.actions ?? []} base={base} jobRoot={jobRoot} />
            ) : (
              page.history_complete && (
                <Notice status="info" title="The job has no history yet">
                  Its first checkpoint appears here.
                </Notice>
              )
            )}
          </Stack>
        )}
      </Loaded>
      <HistoryButtons part={part} />
    </Stack>
  );
}

/** Lays out a page; collapses runs if the reader has chosen that, or has chosen nothing and there are many. */
function layOutToFit(page: TimelinePage, isNewest: boolean, expanded: ReadonlySet<string>, chosen: boolean | null) {
  const records = inOrder(page);
  const layout = layOut(records, { expanded, acrossRuns: chosen === true, isNewest });
  const acrossRuns = chosen ?? layout.slots > MOST_SLOTS;
  return { layout: acrossRuns && chosen === null ? layOut(records, { expanded, acrossRuns, isNewest }) : layout, acrossRuns };
}

interface PictureProps {
  page: TimelinePage;
  isNewest: boolean;
  /** The newest actions, which say which savepoints are deleted. */
  actions: readonly ActionEntry[];
  base: string;
  jobRoot: string | null;
}

function Picture({ page, isNewest, actions, base, jobRoot }: PictureProps) {
  const [expanded, setExpanded] = useState<ReadonlySet<string>>(new Set());
  // In the address, so that a person can send what they see.
  const [query, setQuery] = useSearchParams();
  const selected = query.get("mark");
  const [chosen, setChosen] = useState<boolean | null>(null);
  const { layout, acrossRuns } = useMemo(() => layOutToFit(page, isNewest, expanded, chosen), [page, isNewest, expanded, chosen]);
  const mark = layout.marks.find((each) => each.key === selected) ?? layout.marks.find((each) => each.newest) ?? layout.marks.at(-1);
  return (
    <Stack gap={4}>
      <TimelinePicture
        layout={layout}
        selected={mark?.key ?? null}
        onSelect={({ key }) => {
          setQuery((before) => ({ ...Object.fromEntries(before), mark: key }), { replace: true });
        }}
        base={base}
        buttons={
          <>
            <Button
              size="sm"
              variant={acrossRuns ? "solid" : "outline"}
              aria-pressed={acrossRuns}
              onClick={() => {
                setChosen(!acrossRuns);
              }}
            >
              Collapse runs
            </Button>
            {expanded.size > 0 && (
              <Button
                size="sm"
                variant="outline"
                onClick={() => {
                  setExpanded(new Set());
                }}
              >
                Collapse checkpoints
              </Button>
            )}
          </>
        }
      />
      <TimelineLegend />
      {mark !== undefined && (
        <Details
          mark={mark}
          target={targetOf(mark, [...page.actions, ...actions], jobRoot)}
          base={base}
          onExpand={() => {
            setExpanded(new Set([...expanded, mark.key]));
          }}
        />
      )}
    </Stack>
  );
}

interface DetailsProps {
  mark: Mark;
  /** What a restore returns to; null for none. */
  target: string | null;
  /** The path of the job's pages. */
  base: string;
  onExpand: () => void;
}

function Details({ mark, target, base, onExpand }: DetailsProps) {
  const entry = mark.entries.at(-1);
  if (entry === undefined) return null;
  const isGroup = mark.kind === "group";
  return (
    <Stack as="section" aria-label="Selected point" aria-live="polite" borderWidth="1px" borderRadius="md" p={4} gap={3}>
      <Heading as="h2" size="md">
        {titleOf(mark)}
        {mark.newest && " · the present state"}
        {mark.undone && " · undone"}
      </Heading>
      {target !== null && <RestoreLink base={base} target={target} />}
      {isGroup && (
        <Box>
          <Button size="sm" variant="outline" onClick={onExpand}>
            Show them one by one
          </Button>
        </Box>
      )}
      {isCheckpoint(entry) ? <CheckpointFacts points={mark.entries.filter((each) => isCheckpoint(each))} /> : <ActionFacts entry={entry} />}
      {isCheckpoint(entry) && !isGroup && entry.checkpoint_id !== null && (
        <Text>
          <CheckpointLink id={entry.checkpoint_id}>Operators, subtasks, files and who needs it</CheckpointLink>
        </Text>
      )}
    </Stack>
  );
}

function sum(points: readonly CheckpointSummary[], value: (point: CheckpointSummary) => number): number {
  return points.reduce((total, point) => total + value(point), 0);
}

function CheckpointFacts({ points }: { points: readonly CheckpointSummary[] }) {
  const newest = points.at(-1);
  if (newest === undefined) return null;
  return (
    <Facts
      facts={[
        ["Ended", newest.ended_at === null ? "not known" : <Moment at={newest.ended_at} />],
        ["Run", <RunLink key="run" generation={newest.generation} run={newest.run} />],
        ["Rows read", formatCount(sum(points, (point) => point.rows_in))],
        ["State", formatBytes(newest.full_bytes)],
        ["Written for it", formatBytes(sum(points, (point) => point.increment_bytes))],
        ["Duration", formatDuration(sum(points, (point) => point.duration_ms))],
        ["Kept", newest.retained ? "yes" : "no; a savepoint of it can be restored, if there is one"],
      ]}
    />
  );
}

function ActionFacts({ entry }: { entry: ActionEntry }) {
  const facts: Fact[] = [
    ["Time", entry.ended_at === null ? "not known" : <Moment at={entry.ended_at} />],
    ["Person", entry.by === null ? "none" : <People key="people" by={entry.by} requestedBy={entry.requested_by} />],
    ["Reason", entry.reason ?? "none"],
  ];
  if (entry.note !== null) facts.push(["Note", entry.note]);
  const { previous_checkpoint_id: from } = entry.facts;
  if (typeof from === "number") facts.push(["From checkpoint", <CheckpointLink key="from" id={from} />]);
  if (entry.restored_checkpoint_id !== null) facts.push(["Restored checkpoint", <CheckpointLink key="restored" id={entry.restored_checkpoint_id} />]);
  if (KINDS_OF_RUNS.has(entry.kind)) facts.push(["Run", <RunLink key="run" generation={entry.seq} run={typeof entry.facts.run === "number" ? entry.facts.run : null} />]);
  if (entry.size_bytes !== null) facts.push(["Size", formatBytes(entry.size_bytes)]);
  const further = factsText(entry.facts);
  if (further !== "") facts.push(["Facts", further]);
  return <Facts facts={facts} />;
}
