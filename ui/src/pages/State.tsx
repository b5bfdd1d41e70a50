import { Box, Flex, Heading, SimpleGrid, Stack, Table, Text } from "@chakra-ui/react";
import type { ReactNode } from "react";
import { type Family, useDag } from "../airflow";
import { type FamilyDag, type JobState, type OperatorStatus, type PendingRestore, type PointPage, type Resource, type SourceStatus, type TimelinePage, useResource } from "../api";
import { formatBytes, formatCount, formatDuration } from "../format";
import { CheckpointCharts } from "../parts/CheckpointCharts";
import { CopyButton } from "../parts/Command";
import { JobActions } from "../parts/JobActions";
import { CheckpointLink, PageLink, RunLink } from "../parts/links";
import { FreshnessNotice, Loaded, Notice } from "../parts/Loaded";
import { People } from "../parts/People";
import { offsetText } from "../parts/PlanChanges";
import { Points } from "../parts/Points";
import { SavepointRecord } from "../parts/SavepointRecord";
import { ScrollingTable } from "../parts/ScrollingTable";
import { Time } from "../parts/Time";
import { DurationBar } from "../pictures/DurationBar";
import { TrendLine } from "../pictures/TrendLine";
import { restoredTables } from "../recovery";
import { earlierEnd, triesOf } from "../runs";
import { LastSavepoint, Waiting } from "./Jobs";

/** Where a job stands: its newest checkpoint, state, input, savepoint and points. */
export function State({ state, base, address, family }: { state: Resource<JobState>; base: string; address: string; family: Family }) {
  const history = useResource<TimelinePage>(`${address}/timeline?limit=500`, 30_000);
  return (
    <Loaded resource={state}>
      {(job) => (
        <Stack gap={5}>
          <FreshnessNotice of={job} />
          <Sentence job={job} address={address} base={base} family={family} />
          <Flex gap={2} align="center" wrap="wrap" fontSize="sm" color="fg.muted">
            <Text fontFamily="mono" overflowWrap="anywhere">
              {job.job_root}
            </Text>
            <CopyButton text={job.job_root} what="path of the job root" />
          </Flex>
          <Problems job={job} />
          <JobActions family={family} base={base} jobRoot={job.job_root} />
          <Tiles job={job} history={history} base={base} />
          <Operators operators={job.operators} />
          <Sources sources={job.sources} />
          <CheckpointCharts address={address} newest={history.value} />
          <Points address={address} base={base} newest={job.checkpoint_id} runs={job.runs} />
        </Stack>
      )}
    </Loaded>
  );
}

function Sentence({ job, address, base, family }: { job: JobState; address: string; base: string; family: Family }) {
  if (job.checkpoint_id === null) {
    return <Text fontSize="lg">{job.job === null ? "Nothing is known of this job." : `${job.job} has no checkpoint yet.`}</Text>;
  }
  return (
    <Text fontSize="lg" overflowWrap="anywhere">
      <strong>{job.job}</strong> stands at <CheckpointLink id={job.checkpoint_id}>{job.label ?? `checkpoint ${job.checkpoint_id}`}</CheckpointLink>
      {job.committed_at !== null && (
        <>
          , committed <Time at={job.committed_at} />
        </>
      )}
      <ByRun job={job} />. Input waiting: <Waiting backlog={job.backlog} unknown={job.backlog_unknown} />. <Undone job={job} address={address} base={base} />{" "}
      <NextRun job={job} dag={family.dag("run")} />
    </Text>
  );
}

/** " by run 11 (try 2; try 1 failed: storage)". */
function ByRun({ job: { newest, runs, run, generation } }: { job: JobState }) {
  const made = newest?.generation ?? generation;
  if (run === null || made === null) return null;
  const own = runs.find((each) => each.generation === made);
  const tries = own === undefined ? [] : triesOf(own, runs).filter(([, each]) => each.generation <= made);
  const [attempt] = tries.at(-1) ?? [];
  const earlier = tries.slice(0, -1).map(([{ number }, each]) => `try ${number} ${earlierEnd(each)}`);
  return (
    <>
      {" by "}
      <RunLink generation={made} run={run} />
      {attempt !== undefined && attempt.number > 1 && ` (${[`try ${attempt.number}`, ...earlier].join("; ")})`}
    </>
  );
}

/** Since when nothing is undone: the newest restore. */
function Undone({ job, address, base }: { job: JobState; address: string; base: string }) {
  const restore = useResource<PointPage>(job.undone_count === 0 ? null : `${address}/points?kind=restore&limit=1`, 60_000).value?.points[0];
  if (job.undone_count === 0) return "Nothing is undone.";
  const count = `${formatCount(job.undone_count)} ${job.undone_count === 1 ? "checkpoint" : "checkpoints"}`;
  return (
    <>
      {restore?.ended_at != null && (
        <>
          Nothing undone since <Time at={restore.ended_at} full />; before that,{" "}
        </>
      )}
      <PageLink to={`${base}/timeline`}>{count}</PageLink> of its history {job.undone_count === 1 ? "is" : "are"} undone.
    </>
  );
}

/** When Airflow runs the job next. */
function NextRun({ job, dag }: { job: JobState; dag: FamilyDag | null }) {
  const { value } = useDag(dag?.dag_id ?? null);
  const isPaused = value?.is_paused ?? dag?.is_paused ?? false;
  const next = value?.next_dagrun_run_after ?? job.next_run_at;
  if (isPaused) return "No run is planned: its DAG is paused.";
  if (next === null) return dag === null ? null : "No run is planned.";
  return (
    <>
      The next run is planned <Time at={next} />.
    </>
  );
}

function Problems({ job }: { job: JobState }) {
  const failure = job.failed_start ?? job.failure;
  const { restoring = null, background = [], quarantined_count: skipped = 0 } = job.description ?? {};
  return (
    <>
      {restoring !== null && (
        <Notice status="warning" title={`A restore to ${restoring.target_label} is not completed`}>
          The next start completes it. <People by={restoring.by} requestedBy={restoring.requested_by} />
          {restoring.reason !== null && `: ${restoring.reason}`}
          <Text>{restoredText(restoring)}</Text>
        </Notice>
      )}
      {failure !== null && (
        <Notice status="error" title={`${job.failed_start === null ? "The newest run" : "The newest start"} failed: ${failure.code}`}>
          <Text overflowWrap="anywhere">{failure.message}</Text>
          {failure.failed_at !== null && <Time at={failure.failed_at} />}
          {job.failed_start === null && (
            <>
              {" in "}
              <RunLink generation={failure.generation} run={null} />
            </>
          )}
        </Notice>
      )}
      {job.history_changed !== null && (
        <Notice status="error" title="Records of the history are not as they were recorded">
          {job.history_changed.message}
        </Notice>
      )}
      {background.map((each) => (
        <Notice key={each.work} status="warning" title={`Background work failed: ${each.work.replaceAll("_", " ")}`}>
          <Text overflowWrap="anywhere">{each.message}</Text>
        </Notice>
      ))}
      {skipped > 0 && <Notice status="warning" title={`${formatCount(skipped)} corrupt input ${skipped === 1 ? "file was" : "files were"} skipped`} />}
    </>
  );
}

/** "1 of 2 tables restored." */
function restoredText(restoring: PendingRestore): string {
  const { done, all } = restoredTables(restoring);
  return all === 0 ? "It restores no table." : `${formatCount(done)} of ${formatCount(all)} ${all === 1 ? "table" : "tables"} restored.`;
}

function Tile({ title, children }: { title: string; children: ReactNode }) {
  return (
    <Box as="section" aria-label={title} borderWidth="1px" borderRadius="md" p={4} minW={0}>
      <Text color="fg.muted" fontSize="sm">
        {title}
      </Text>
      <Box fontSize="lg" overflowWrap="anywhere">
        {children}
      </Box>
    </Box>
  );
}

function Muted({ children }: { children: ReactNode }) {
  return (
    <Text fontSize="sm" color="fg.muted">
      {children}
    </Text>
  );
}

function Tiles({ job, history, base }: { job: JobState; history: Resource<TimelinePage>; base: string }) {
  return (
    <SimpleGrid columns={{ base: 1, sm: 2, xl: 4 }} gap={4}>
      <NewestTile job={job} />
      <Tile title="State">
        {job.full_bytes === null ? "none" : formatBytes(job.full_bytes)}
        <div>
          <TrendLine sizes={job.state_sizes.map((size) => size.full_bytes)} />
        </div>
        <Shares operators={job.operators} />
      </Tile>
      <Tile title="Input waiting">
        <Waiting backlog={job.backlog} unknown={job.backlog_unknown} />
        {job.backlog_unknown !== null && <Muted>{job.backlog_unknown}</Muted>}
        {job.sources.slice(0, MOST_IN_TILE).map(({ uid, offset }) => (
          <Muted key={uid}>
            {uid} is at <code>{offsetText(offset)}</code>
          </Muted>
        ))}
        <More count={job.sources.length} what="source" />
      </Tile>
      <SavepointTile savepoint={job.savepoint} history={history} base={base} />
    </SimpleGrid>
  );
}

/** As many names fit into a tile; the tables below it have all. */
const MOST_IN_TILE = 4;

function More({ count, what }: { count: number; what: string }) {
  const more = count - MOST_IN_TILE;
  return more > 0 && <Muted>{`${formatCount(more)} more ${what}${more === 1 ? "" : "s"}`}</Muted>;
}

function NewestTile({ job: { newest, checkpoint_id: id } }: { job: JobState }) {
  return (
    <Tile title="Newest checkpoint">
      {id === null ? "none" : <CheckpointLink id={id} />}
      {newest !== null && (
        <>
          <Muted>
            {formatCount(newest.rows_in)} {newest.rows_in === 1 ? "row" : "rows"} in {formatDuration(newest.duration_ms)}
          </Muted>
          <DurationBar entry={newest} />
        </>
      )}
    </Tile>
  );
}

/** The largest states as bars. */
function Shares({ operators }: { operators: readonly OperatorStatus[] }) {
  const largest = [...operators].sort((a, b) => b.size_bytes - a.size_bytes);
  const most = largest[0]?.size_bytes ?? 0;
  return (
    <>
      {largest.slice(0, MOST_IN_TILE).map(({ uid, size_bytes: bytes }) => (
        <Flex key={uid} align="center" gap={2} fontSize="xs" color="fg.muted">
          <Text width="6rem" flexShrink={0} truncate title={uid}>
            {uid}
          </Text>
          <Box flex="1" height="8px" bg="bg.muted" borderRadius="sm" aria-hidden="true">
            <Box height="full" borderRadius="sm" bg="blue.solid" width={`${most === 0 ? 0 : (100 * bytes) / most}%`} />
          </Box>
          <Text whiteSpace="nowrap">{formatBytes(bytes)}</Text>
        </Flex>
      ))}
      <More count={operators.length} what="operator" />
    </>
  );
}

function SavepointTile({ savepoint, history, base }: { savepoint: JobState["savepoint"]; history: Resource<TimelinePage>; base: string }) {
  return (
    <Tile title="Last savepoint">
      <LastSavepoint savepoint={savepoint} base={base} />
      {savepoint?.size_bytes != null && <Muted>{formatBytes(savepoint.size_bytes)}</Muted>}
      {savepoint?.by != null && (
        <Muted>
          <People by={savepoint.by} requestedBy={savepoint.requested_by} />
        </Muted>
      )}
      {savepoint !== null && (
        <Box fontSize="sm">
          <SavepointRecord history={history} name={savepoint.name} id={null} />
        </Box>
      )}
    </Tile>
  );
}

/** A heading, and a table below it. */
function TableSection({ title, columns, children }: { title: string; columns: readonly string[]; children: ReactNode }) {
  return (
    <Stack as="section" gap={2}>
      <Heading as="h2" size="md">
        {title}
      </Heading>
      <ScrollingTable label={title}>
        <Table.Header>
          <Table.Row>
            {columns.map((column) => (
              <Table.ColumnHeader key={column}>{column}</Table.ColumnHeader>
            ))}
          </Table.Row>
        </Table.Header>
        <Table.Body>{children}</Table.Body>
      </ScrollingTable>
    </Stack>
  );
}

const OPERATOR_COLUMNS = ["Operator", "State", "Entries", "Rows in", "Rows out", "Late rows", "Subtasks", "Skew", "Watermark"];

function Operators({ operators }: { operators: readonly OperatorStatus[] }) {
  if (operators.length === 0) return null;
  return (
    <TableSection title="Operators at the newest checkpoint" columns={OPERATOR_COLUMNS}>
      {operators.map((operator) => (
        <OperatorRow key={operator.uid} operator={operator} />
      ))}
    </TableSection>
  );
}

function OperatorRow({ operator: { uid, size_bytes: bytes, subtasks, metrics } }: { operator: OperatorStatus }) {
  const entries = metrics?.state_entries ?? null;
  const counts = metrics === null ? ["", "", ""] : [metrics.rows_in, metrics.rows_out, metrics.rows_late].map(formatCount);
  return (
    <Table.Row>
      <Table.Cell fontWeight="semibold">{uid}</Table.Cell>
      <Table.Cell whiteSpace="nowrap">{formatBytes(bytes)}</Table.Cell>
      <Table.Cell whiteSpace="nowrap">{entries === null ? "not known" : `${metrics?.state_entries_exact ? "" : "about "}${formatCount(entries)}`}</Table.Cell>
      {counts.map((count, index) => (
        <Table.Cell key={index}>{count}</Table.Cell>
      ))}
      <Table.Cell>{formatCount(subtasks)}</Table.Cell>
      <Table.Cell>{metrics === null ? "" : formatCount(metrics.skew_ratio)}</Table.Cell>
      <Table.Cell whiteSpace="nowrap">{metrics?.watermark_at == null ? "none" : <Time at={metrics.watermark_at} full />}</Table.Cell>
    </Table.Row>
  );
}

function Sources({ sources }: { sources: readonly SourceStatus[] }) {
  if (sources.length === 0) return null;
  return (
    <TableSection title="Sources at the newest checkpoint" columns={["Source", "Position", "Watermark", "Idle"]}>
      {sources.map((source) => (
        <Table.Row key={source.uid}>
          <Table.Cell fontWeight="semibold" title={source.description ?? undefined}>
            {source.uid}
          </Table.Cell>
          <Table.Cell fontFamily="mono" overflowWrap="anywhere">
            {offsetText(source.offset)}
          </Table.Cell>
          <Table.Cell whiteSpace="nowrap">{source.watermark_at === null ? "none" : <Time at={source.watermark_at} full />}</Table.Cell>
          <Table.Cell>{source.idle === true ? "idle" : ""}</Table.Cell>
        </Table.Row>
      ))}
    </TableSection>
  );
}
