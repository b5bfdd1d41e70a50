import { Badge, Flex, Stack, Text } from "@chakra-ui/react";
import { type ActionEntry, type CheckpointEntry, type CheckpointPage, type JobState, type OperatorDetails, type OperatorMetrics, useResource } from "../api";
import { counted, formatBytes, formatCount, formatDuration, offsetText, sizeOf, sizeText } from "../format";
import { BarChart } from "../pictures/BarChart";
import { DurationBar } from "../pictures/DurationBar";
import { isCheckpoint } from "../pictures/timelineLayout";
import { CheckpointDifference } from "./CheckpointDifference";
import { CheckpointNeeds } from "./CheckpointNeeds";
import { type Fact, Facts } from "./Facts";
import { Folded } from "./Folded";
import { CheckpointLink, PageLink, RestoreLink, RunLink } from "./links";
import { FreshnessNotice, Loaded } from "./Loaded";
import { LongText } from "./LongText";
import { entriesText, type OperatorRow, OperatorTable } from "./OperatorTable";
import { People } from "./People";
import { ScrollingTable } from "./ScrollingTable";
import { Section } from "./Section";
import { OutputTable } from "./SinkTable";
import { Time } from "./Time";

interface Props {
  address: string;
  /** The path of the job's pages. */
  base: string;
  job: JobState | null;
  id: number;
}

/** Facts about a checkpoint: its phases, operators with subtasks, files, who needs it, and what it changed. */
export function CheckpointDetails({ address, base, job, id }: Props) {
  const page = useResource<CheckpointPage>(`${address}/checkpoints/${id}`, 30_000);
  const isKept = job?.description?.retained_checkpoint_ids.includes(id) === true;
  return (
    <Loaded resource={page}>
      {(found) => (
        <Stack gap={5}>
          <FreshnessNotice of={found} />
          <Flex gap={2} wrap="wrap" align="center">
            {isKept && found.entry?.undone !== true && id !== job.checkpoint_id && <RestoreLink base={base} target={String(id)} />}
            <PageLink to={`${base}/graph?checkpoint=${id}`}>Graph with its sizes</PageLink>
            <Badges entry={found.entry} />
          </Flex>
          <EntryFacts entry={found.entry} isRead={found.history_complete} />
          <CheckpointNeeds address={address} job={job} id={id} />
          <Operators page={found} />
          <Output entry={found.entry} />
          <Sources page={found} />
          <CheckpointDifference address={address} job={job} page={found} id={id} />
        </Stack>
      )}
    </Loaded>
  );
}

function Badges({ entry }: { entry: CheckpointPage["entry"] }) {
  if (entry === null) return null;
  return (
    <>
      {entry.undone === true && <Badge>undone</Badge>}
      {entry.retained === true && <Badge colorPalette="green">kept</Badge>}
      {entry.integrity !== null && <Badge colorPalette={entry.integrity === "changed" ? "red" : "gray"}>record {entry.integrity}</Badge>}
    </>
  );
}

function EntryFacts({ entry, isRead }: { entry: CheckpointEntry | ActionEntry | null; isRead: boolean }) {
  if (entry === null) return <Text color="fg.muted">{isRead ? "The history has no record of this checkpoint any more." : "Its record is not among those that are read by now."}</Text>;
  if (isCheckpoint(entry)) {
    return (
      <Stack gap={3}>
        <DurationBar entry={entry} />
        <Facts facts={checkpointFacts(entry)} />
      </Stack>
    );
  }
  return (
    <Facts
      facts={[
        ["Made by", `a ${entry.kind}`],
        ["Time", entry.ended_at === null ? "not known" : <Time at={entry.ended_at} full />],
        ["Person", <People key="people" by={entry.by} requestedBy={entry.requested_by} />],
        ["Reason", entry.reason ?? "none"],
        ...(entry.restored_checkpoint_id === null ? [] : [["State of", <CheckpointLink key="base" id={entry.restored_checkpoint_id}>{`checkpoint ${entry.restored_checkpoint_id}`}</CheckpointLink>] as const]),
      ]}
    />
  );
}

function checkpointFacts(entry: CheckpointEntry): Fact[] {
  return [
    ["Ended", entry.ended_at === null ? "not known" : <Time at={entry.ended_at} full />],
    ["Run", <RunLink key="run" generation={entry.generation} run={entry.run} />],
    ["Continued from", entry.base_checkpoint_id === null ? "no checkpoint" : <CheckpointLink id={entry.base_checkpoint_id}>{`checkpoint ${entry.base_checkpoint_id}`}</CheckpointLink>],
    ["Duration", formatDuration(entry.duration_ms)],
    ["Rows read", formatCount(entry.rows_in)],
    ...Object.entries(entry.rows_out).map(([uid, rows]) => [`Rows written to ${uid}`, formatCount(rows)] as const),
    ["State", `${formatBytes(entry.full_bytes)} in files`],
    ["Written for it", `${formatBytes(entry.increment_bytes)}${entry.compaction_bytes === 0 ? "" : `, and ${formatBytes(entry.compaction_bytes)} by compactions`}`],
    ["Files", `${formatCount(entry.files)}, of which ${formatCount(entry.new_files)} are new`],
    ...perSubtask(entry),
    ["Manifest", formatBytes(entry.manifest_bytes)],
    ["CPU time", formatDuration(entry.cpu_ms)],
    ["Requests to storages", `${formatCount(entry.storage_requests)}; ${formatBytes(entry.storage_read_bytes)} read, ${formatBytes(entry.storage_written_bytes)} written`],
    ["Driver", entry.driver],
    ...(entry.failure === null ? [] : [["Failure", <LongText key="failure" text={entry.failure} />] as const]),
  ];
}

/** Least, average and most over the subtasks that have state. */
function perSubtask({ subtasks }: CheckpointEntry): Fact[] {
  const shown = [
    ["State", subtasks.full_bytes, formatBytes],
    ["Written", subtasks.increment_bytes, formatBytes],
    ["Snapshot", subtasks.sync_ms, formatDuration],
  ] as const;
  return shown.flatMap(([title, spread, format]) => (spread === undefined ? [] : [[`${title} per subtask`, `${format(spread.min)} to ${format(spread.max)}, on average ${format(spread.avg)}`] as const]));
}

interface KnownOperator extends OperatorRow {
  /** Null if the job does not keep the checkpoint. */
  details: OperatorDetails | null;
}

/** The operators as the manifest has them; if the job does not keep the checkpoint, as the record has them. */
function operatorsOf({ operators, entry }: CheckpointPage): KnownOperator[] {
  if (operators.length > 0)
    return operators.map((each) => ({ uid: each.uid, full_bytes: each.size_bytes, live_bytes: each.live_bytes, files: each.files, watermark: each.watermark_at, metrics: each.metrics, details: each }));
  if (entry === null || !isCheckpoint(entry)) return [];
  return Object.entries(entry.operators).map(([uid, metrics]) => ({ uid, full_bytes: metrics.state_bytes, live_bytes: metrics.live_bytes, files: null, watermark: metrics.watermark_at, metrics, details: null }));
}

function Operators({ page }: { page: CheckpointPage }) {
  const operators = operatorsOf(page);
  if (operators.length === 0) return null;
  return (
    <Section title="Operators">
      <OperatorTable label="Operators of the checkpoint" operators={operators} />
      {page.operators.length === 0 && <Text color="fg.muted">The job does not keep the checkpoint: its files, and most of its subtasks, are not known any more.</Text>}
      {operators.map((operator) => (
        <Folded key={operator.uid} title={`${counted(operator.details?.subtasks ?? operator.metrics?.subtasks ?? 0, "subtask")} of ${operator.uid}`}>
          {() => <Subtasks operator={operator} />}
        </Folded>
      ))}
    </Section>
  );
}

const SUBTASK_COLUMNS = ["Subtask", "Key groups", "State", "Entries", "Files", "State backend", "Rows in", "In functions", "CPU"];

function Subtasks({ operator: { uid, metrics, details } }: { operator: KnownOperator }) {
  const { subtask_details: subtasks, key_names: names, key_types: types } = details ?? { subtask_details: [], key_names: [], key_types: [] };
  const key = names.map((name, index) => `${name} ${types[index] ?? ""}`.trim()).join(", ");
  // The record has the work of the busiest subtasks only.
  const work = new Map(metrics?.busiest.map((each) => [each.subtask, each]));
  const isExact = metrics?.state_entries_exact ?? false;
  return (
    <Stack gap={2} mt={2}>
      {key !== "" && <Text overflowWrap="anywhere">Key: {key}</Text>}
      <SpreadTable uid={uid} spread={metrics?.spread ?? {}} />
      {subtasks.length > 0 && (
        <BarChart
          title={`State of the subtasks of ${uid}`}
          bars={subtasks.map(({ subtask, live_bytes, size_bytes }) => ({ key: String(subtask), name: `subtask ${subtask}`, value: sizeOf({ live_bytes, full_bytes: size_bytes }) }))}
          format={formatBytes}
        />
      )}
      <ScrollingTable label={`Subtasks of ${uid}`} columns={SUBTASK_COLUMNS}>
        {subtasks.map((each) => (
          <tr key={each.subtask}>
            <td>{each.subtask}</td>
            <td className="line">
              {each.first_key_group}–{each.last_key_group}
            </td>
            <td className="line">{sizeText({ live_bytes: each.live_bytes, full_bytes: each.size_bytes })}</td>
            <td className="line">{entriesText({ ...each, state_entries_exact: isExact })}</td>
            <td>{formatCount(each.files)}</td>
            <td>{each.backend}</td>
            <WorkCells work={work.get(each.subtask)} />
          </tr>
        ))}
        {subtasks.length === 0 &&
          [...work.values()].map((each) => (
            <tr key={each.subtask}>
              <td>{each.subtask}</td>
              <td />
              <td className="line">{formatBytes(each.state_bytes)} in files</td>
              <td />
              <td />
              <td />
              <WorkCells work={each} />
            </tr>
          ))}
      </ScrollingTable>
      {metrics !== null && work.size < metrics.subtasks && <Text color="fg.muted">Rows and times are of the last batch, and stored for the {formatCount(work.size)} busiest subtasks.</Text>}
    </Stack>
  );
}

function WorkCells({ work }: { work: OperatorMetrics["busiest"][number] | undefined }) {
  const texts = work === undefined ? ["", "", ""] : [formatCount(work.rows_in), formatDuration(work.function_ms), formatDuration(work.cpu_ms)];
  return texts.map((text, index) => (
    <td className="line" key={index}>
      {text}
    </td>
  ));
}

const SPREADS: Readonly<Record<string, readonly [string, (value: number) => string]>> = {
  rows_in: ["Rows in", formatCount],
  state_bytes: ["State in files", formatBytes],
  function_ms: ["In functions", formatDuration],
  cpu_ms: ["CPU", formatDuration],
};

/** Least, average and most over all subtasks in the last batch. */
function SpreadTable({ uid, spread }: { uid: string; spread: OperatorMetrics["spread"] }) {
  const known = Object.entries(SPREADS).flatMap(([name, [title, format]]) => {
    const found = spread[name];
    return found === undefined ? [] : [{ title, texts: [found.min, found.avg, found.max].map(format) }];
  });
  if (known.length === 0) return null;
  return (
    <ScrollingTable label={`Spread over the subtasks of ${uid}`} columns={["Of a subtask, in the last batch", "Least", "Average", "Most"]}>
      {known.map(({ title, texts }) => (
        <tr key={title}>
          <td className="name">{title}</td>
          {texts.map((text, index) => (
            <td className="line" key={index}>
              {text}
            </td>
          ))}
        </tr>
      ))}
    </ScrollingTable>
  );
}

function Output({ entry }: { entry: CheckpointPage["entry"] }) {
  if (entry === null || !isCheckpoint(entry) || Object.keys(entry.sinks).length === 0) return null;
  return (
    <Section title="Output">
      <OutputTable sinks={entry.sinks} />
    </Section>
  );
}

function Sources({ page: { sources } }: { page: CheckpointPage }) {
  if (sources.length === 0) return null;
  return (
    <Section title="Positions of sources">
      <Facts facts={sources.map(({ uid, offset }) => [uid, <code key={uid}>{offsetText(offset)}</code>] as const)} />
    </Section>
  );
}
