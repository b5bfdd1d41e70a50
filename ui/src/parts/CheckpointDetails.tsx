import { Badge, Flex, Stack, Text } from "@chakra-ui/react";
import { type ActionEntry, type CheckpointEntry, type CheckpointPage, type JobState, type OperatorDetails, useResource } from "../api";
import { counted, formatBytes, formatCount, formatDuration, offsetText } from "../format";
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
import { People } from "./People";
import { ScrollingTable } from "./ScrollingTable";
import { Section } from "./Section";
import { Time } from "./Time";

interface Props {
  address: string;
  /** The path of the job's pages. */
  base: string;
  job: JobState | null;
  id: number;
}

/** What is known of a checkpoint: its phases, operators with subtasks, files, who needs it, and what it changed. */
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
          <Operators operators={found.operators} entry={found.entry} />
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
    ["State", formatBytes(entry.full_bytes)],
    ["Written for it", `${formatBytes(entry.increment_bytes)}${entry.compaction_bytes === 0 ? "" : `, and ${formatBytes(entry.compaction_bytes)} by compactions`}`],
    ["Files", `${formatCount(entry.files)}, of which ${formatCount(entry.new_files)} are new`],
    ["CPU time", formatDuration(entry.cpu_ms)],
    ["Requests to storages", `${formatCount(entry.storage_requests)}; ${formatBytes(entry.storage_read_bytes)} read, ${formatBytes(entry.storage_written_bytes)} written`],
    ["Driver", entry.driver],
    ...(entry.failure === null ? [] : [["Failure", <LongText key="failure" text={entry.failure} />] as const]),
  ];
}

const OPERATOR_COLUMNS = ["Operator", "State", "Entries", "Files", "Rows in", "Rows out", "Late", "Skew", "Watermark"];

function Operators({ operators, entry }: { operators: readonly OperatorDetails[]; entry: CheckpointPage["entry"] }) {
  const metrics = entry !== null && isCheckpoint(entry) ? Object.entries(entry.operators) : [];
  if (operators.length === 0 && metrics.length === 0) return null;
  const rows = operators.length > 0 ? operators.map((each) => [each.uid, each.metrics, each] as const) : metrics.map(([uid, found]) => [uid, found, null] as const);
  return (
    <Section title="Operators">
      <ScrollingTable label="Operators of the checkpoint" columns={OPERATOR_COLUMNS}>
        {rows.map(([uid, found, details]) => {
          const watermark = details?.watermark_at ?? found?.watermark_at ?? null;
          return (
            <tr key={uid}>
              <td className="name">{uid}</td>
              <td className="line">{formatBytes(details?.size_bytes ?? found?.state_bytes ?? 0)}</td>
              <td className="line">{found?.state_entries == null ? "not known" : `${found.state_entries_exact ? "" : "about "}${formatCount(found.state_entries)}`}</td>
              <td>{details === null ? "" : formatCount(details.files)}</td>
              {[found?.rows_in, found?.rows_out, found?.rows_late, found?.skew_ratio].map((value, index) => (
                <td key={index}>{value === undefined ? "" : formatCount(value)}</td>
              ))}
              <td className="line">{watermark === null ? "none" : <Time at={watermark} full />}</td>
            </tr>
          );
        })}
      </ScrollingTable>
      {operators.length === 0 && <Text color="fg.muted">The job does not keep the checkpoint: its subtasks and files are not known any more.</Text>}
      {operators.map((operator) => (
        <Folded key={operator.uid} title={`${counted(operator.subtasks, "subtask")} of ${operator.uid}`}>
          {() => <Subtasks operator={operator} />}
        </Folded>
      ))}
    </Section>
  );
}

const SUBTASK_COLUMNS = ["Subtask", "Key groups", "State", "Entries", "Files", "State backend"];

function Subtasks({ operator: { uid, subtask_details: subtasks, key_names: names, key_types: types } }: { operator: OperatorDetails }) {
  const key = names.map((name, index) => `${name} ${types[index] ?? ""}`.trim()).join(", ");
  return (
    <Stack gap={2} mt={2}>
      {key !== "" && <Text overflowWrap="anywhere">Key: {key}</Text>}
      <BarChart
        title={`State of the subtasks of ${uid}`}
        bars={subtasks.map(({ subtask, size_bytes: value }) => ({ key: String(subtask), name: `subtask ${subtask}`, value }))}
        format={formatBytes}
      />
      <ScrollingTable label={`Subtasks of ${uid}`} columns={SUBTASK_COLUMNS}>
        {subtasks.map((each) => (
          <tr key={each.subtask}>
            <td>{each.subtask}</td>
            <td className="line">
              {each.first_key_group}–{each.last_key_group}
            </td>
            <td className="line">{formatBytes(each.size_bytes)}</td>
            <td>{each.state_entries === null ? "not known" : formatCount(each.state_entries)}</td>
            <td>{formatCount(each.files)}</td>
            <td>{each.backend}</td>
          </tr>
        ))}
      </ScrollingTable>
    </Stack>
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
