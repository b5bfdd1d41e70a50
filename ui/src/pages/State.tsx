import { Box, Link as ChakraLink, Heading, SimpleGrid, Stack, Table, Text } from "@chakra-ui/react";
import type { ReactNode } from "react";
import { Link } from "react-router-dom";
import type { Family } from "../airflow";
import { type CheckpointEntry, type Entry, type JobState, type OperatorStatus, type PointPage, type Resource, type SourceStatus, useResource } from "../api";
import { formatBytes, formatCount, formatDuration } from "../format";
import { JobActions } from "../parts/JobActions";
import { RestoreLink } from "../parts/links";
import { FreshnessNotice, Loaded, Notice } from "../parts/Loaded";
import { Pager, usePages } from "../parts/Pager";
import { peopleText } from "../parts/people";
import { ScrollingTable } from "../parts/ScrollingTable";
import { Time } from "../parts/Time";
import { type Bar, BarChart } from "../pictures/BarChart";
import { isCheckpoint } from "../pictures/timelineLayout";
import { TrendLine } from "../pictures/TrendLine";
import { LastSavepoint, Waiting } from "./Jobs";

/** Where a job stands: its newest checkpoint, state, input, savepoint and points. */
export function State({ state, base, address, family }: { state: Resource<JobState>; base: string; address: string; family: Family }) {
  return (
    <Loaded resource={state}>
      {(job) => (
        <Stack gap={5}>
          <FreshnessNotice of={job} />
          <Sentence job={job} base={base} />
          <Problems job={job} />
          <JobActions family={family} base={base} jobRoot={job.job_root} />
          <Tiles job={job} />
          <Operators operators={job.operators} />
          <Sources sources={job.sources} />
          <Points address={address} base={base} newest={job.checkpoint_id} />
        </Stack>
      )}
    </Loaded>
  );
}

function Sentence({ job, base }: { job: JobState; base: string }) {
  if (job.checkpoint_id === null) {
    return <Text fontSize="lg">{job.job === null ? "Nothing is known of this job." : `${job.job} has no checkpoint yet.`}</Text>;
  }
  return (
    <Text fontSize="lg">
      <strong>{job.job}</strong> is at {job.label}
      {job.committed_at !== null && (
        <>
          , committed <Time at={job.committed_at} />
        </>
      )}
      {job.run !== null && <> by run {job.run}</>}.{" "}
      {job.undone_count === 0 ? (
        "No checkpoint of its history is undone."
      ) : (
        <>
          {formatCount(job.undone_count)} {job.undone_count === 1 ? "checkpoint of its history is" : "checkpoints of its history are"} undone:{" "}
          <ChakraLink asChild textDecoration="underline">
            <Link to={`${base}/timeline`}>timeline</Link>
          </ChakraLink>
          .
        </>
      )}
    </Text>
  );
}

function Problems({ job }: { job: JobState }) {
  const failure = job.failed_start ?? job.failure;
  const { restoring = null, background = [], quarantined_count: skipped = 0 } = job.description ?? {};
  return (
    <>
      {restoring !== null && (
        <Notice status="warning" title={`A restore to ${restoring.target_label} is not completed`}>
          The next start completes it. {peopleText(restoring.by, restoring.requested_by)}
          {restoring.reason !== null && `: ${restoring.reason}`}
        </Notice>
      )}
      {failure !== null && (
        <Notice status="error" title={`${job.failed_start === null ? "The newest run" : "The newest start"} failed: ${failure.code}`}>
          <Text overflowWrap="anywhere">{failure.message}</Text>
          {failure.failed_at !== null && <Time at={failure.failed_at} />}
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

function Tiles({ job }: { job: JobState }) {
  const { newest, savepoint } = job;
  return (
    <SimpleGrid columns={{ base: 1, sm: 2, xl: 4 }} gap={4}>
      <Tile title="Newest checkpoint">
        {job.checkpoint_id ?? "none"}
        {newest !== null && (
          <Muted>
            {formatCount(newest.rows_in)} {newest.rows_in === 1 ? "row" : "rows"} in {formatDuration(newest.duration_ms)}
          </Muted>
        )}
      </Tile>
      <Tile title="State">
        {job.full_bytes === null ? "none" : formatBytes(job.full_bytes)}
        <div>
          <TrendLine sizes={job.state_sizes.map((size) => size.full_bytes)} />
        </div>
      </Tile>
      <Tile title="Input waiting">
        <Waiting backlog={job.backlog} unknown={job.backlog_unknown} />
        {job.backlog_unknown !== null && <Muted>{job.backlog_unknown}</Muted>}
      </Tile>
      <Tile title="Last savepoint">
        <LastSavepoint savepoint={savepoint} />
        {savepoint?.size_bytes != null && <Muted>{formatBytes(savepoint.size_bytes)}</Muted>}
      </Tile>
    </SimpleGrid>
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
            {typeof source.offset === "string" ? source.offset : JSON.stringify(source.offset)}
          </Table.Cell>
          <Table.Cell whiteSpace="nowrap">{source.watermark_at === null ? "none" : <Time at={source.watermark_at} full />}</Table.Cell>
          <Table.Cell>{source.idle === true ? "idle" : ""}</Table.Cell>
        </Table.Row>
      ))}
    </TableSection>
  );
}

const POINT_COLUMNS = ["Point", "Run", "Ended", "Rows", "Increment", "State", "Duration", "Remarks", "Restore"];

function Points({ address, base, newest }: { address: string; base: string; newest: number | null }) {
  const pages = usePages();
  const resource = useResource<PointPage>(`${address}/points${pages.query}`);
  return (
    <Loaded resource={resource}>
      {({ points, next_cursor: next }) =>
        points.length > 0 && (
          <>
            <Charts points={points} />
            <TableSection title="Points" columns={POINT_COLUMNS}>
              {points.map((point, index) => (
                <PointRow key={index} point={point} base={base} newest={newest} />
              ))}
            </TableSection>
            <Pager pages={pages} next={next} />
          </>
        )
      }
    </Loaded>
  );
}

/** Sizes, rows and durations of the completed checkpoints of a page, the oldest on the left. */
function Charts({ points }: { points: readonly Entry[] }) {
  const checkpoints = points.filter((point) => isCheckpoint(point)).filter((point) => point.checkpoint_id !== null);
  const bars = (value: (point: CheckpointEntry) => number): Bar[] =>
    checkpoints.toReversed().map((point) => ({
      key: String(point.checkpoint_id),
      name: `checkpoint ${point.checkpoint_id ?? ""}`,
      value: value(point),
      isMuted: point.undone === true,
    }));
  return (
    <SimpleGrid columns={{ base: 1, lg: 3 }} gap={4}>
      <BarChart title="State" bars={bars((point) => point.full_bytes)} format={formatBytes} />
      <BarChart title="Rows read" bars={bars((point) => point.rows_in)} format={formatCount} />
      <BarChart title="Duration" bars={bars((point) => point.duration_ms)} format={formatDuration} />
    </SimpleGrid>
  );
}

function PointRow({ point, base, newest }: { point: Entry; base: string; newest: number | null }) {
  const checkpoint = isCheckpoint(point) ? point : null;
  const people = isCheckpoint(point) ? "" : peopleText(point.by, point.requested_by);
  const parts = [point.undone === true ? "undone" : "", point.retained === true ? "retained" : "", checkpoint?.failure ?? "", people, point.reason ?? ""];
  const sizes = checkpoint === null ? ["", ""] : [checkpoint.increment_bytes, checkpoint.full_bytes].map(formatBytes);
  return (
    <Table.Row color={point.undone === true ? "fg.muted" : undefined}>
      <Table.Cell whiteSpace="nowrap">
        {checkpoint === null ? `${point.kind} ` : ""}
        {point.checkpoint_id ?? "aborted"}
      </Table.Cell>
      <Table.Cell>{checkpoint?.run}</Table.Cell>
      <Table.Cell whiteSpace="nowrap">{point.ended_at !== null && <Time at={point.ended_at} />}</Table.Cell>
      <Table.Cell>{checkpoint === null ? "" : formatCount(checkpoint.rows_in)}</Table.Cell>
      {sizes.map((size, index) => (
        <Table.Cell key={index} whiteSpace="nowrap">
          {size}
        </Table.Cell>
      ))}
      <Table.Cell whiteSpace="nowrap">{point.duration_ms === null ? "" : formatDuration(point.duration_ms)}</Table.Cell>
      <Table.Cell minW="16rem" overflowWrap="anywhere">
        {parts.filter((part) => part !== "").join("; ")}
      </Table.Cell>
      <Table.Cell>
        {checkpoint?.retained === true && checkpoint.checkpoint_id !== null && checkpoint.checkpoint_id !== newest && (
          <RestoreLink base={base} target={String(checkpoint.checkpoint_id)} size="xs" />
        )}
      </Table.Cell>
    </Table.Row>
  );
}
