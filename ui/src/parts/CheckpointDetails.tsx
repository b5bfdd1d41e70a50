import { Badge, Flex, Heading, Stack, Table, Text } from "@chakra-ui/react";
import { type ReactNode, useState } from "react";
import { type ActionEntry, type CheckpointEntry, type CheckpointPage, type JobState, type OperatorDetails, type Resource, type SavepointPage, useResource } from "../api";
import { formatBytes, formatChange, formatCount, formatDuration } from "../format";
import { DurationBar } from "../pictures/DurationBar";
import { BarChart } from "../pictures/BarChart";
import { isCheckpoint } from "../pictures/timelineLayout";
import { type Fact, Facts } from "./Facts";
import { SelectField } from "./Fields";
import { Folded } from "./Folded";
import { CheckpointLink, PageLink, RestoreLink, RunLink, SavepointLink } from "./links";
import { FreshnessNotice, Loaded } from "./Loaded";
import { People, PersonName } from "./People";
import { offsetText } from "./PlanChanges";
import { ScrollingTable } from "./ScrollingTable";
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
            {isKept && id !== job.checkpoint_id && <RestoreLink base={base} target={String(id)} />}
            <PageLink to={`${base}/graph?checkpoint=${id}`}>Graph with its sizes</PageLink>
            <Badges entry={found.entry} />
          </Flex>
          <EntryFacts entry={found.entry} />
          <Needs address={address} job={job} id={id} />
          <Operators operators={found.operators} entry={found.entry} />
          <Sources page={found} />
          <Difference address={address} job={job} page={found} id={id} />
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

function EntryFacts({ entry }: { entry: CheckpointEntry | ActionEntry | null }) {
  if (entry === null) return <Text color="fg.muted">The history has no record of this checkpoint any more.</Text>;
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
    ...(entry.failure === null ? [] : [["Failure", entry.failure] as const]),
  ];
}

function Section({ title, children }: { title: string; children: ReactNode }) {
  return (
    <Stack as="section" gap={2} aria-label={title}>
      <Heading as="h3" size="sm">
        {title}
      </Heading>
      {children}
    </Stack>
  );
}

/** Why it is not known whether nobody else needs a checkpoint; null if all who could need it are known. */
function unknownNeeds(job: JobState | null, { value, problem }: Resource<SavepointPage>): string | null {
  if (job?.description == null) return "It is not known whether the job keeps it.";
  if (value === null) return problem === null ? "Its savepoints are being read." : "It is not known whether a savepoint has its state: the savepoints cannot be read now.";
  if (value.problem !== null) return "It is not known whether another savepoint has its state: the savepoints cannot be read now.";
  return value.older ? "It is not known whether an older savepoint has its state: only the newest ones are read." : null;
}

/** Who needs the checkpoint, so that nothing deletes it. */
function Needs({ address, job, id }: { address: string; job: JobState | null; id: number }) {
  const saved = useResource<SavepointPage>(`${address}/savepoints`, 60_000);
  const description = job?.description ?? null;
  const pins = (description?.pins ?? []).filter((pin) => pin.checkpoint_id === id);
  const savepoints = (saved.value?.savepoints ?? []).filter((each) => each.checkpoint_id === id);
  const elsewhere = (saved.value?.elsewhere ?? []).filter((each) => each.checkpoint_id === id);
  const kept = description?.retained_checkpoint_ids ?? [];
  const isNeeded = kept.includes(id) || pins.length > 0 || savepoints.length > 0 || elsewhere.length > 0;
  const unknown = unknownNeeds(job, saved);
  return (
    <Section title="Who needs it">
      {unknown !== null && <Text color="fg.muted">{unknown}</Text>}
      {unknown === null && !isNeeded && <Text>Nobody: the job does not keep this checkpoint, and it has no savepoint.</Text>}
      {isNeeded && (
        <ul>
          {id === job?.checkpoint_id && <li>The next run continues from it.</li>}
          {kept.includes(id) && <li>The job keeps it: it is one of {formatCount(kept.length)} retained checkpoints.</li>}
          {pins.map((pin) => (
            <Text as="li" key={pin.id} overflowWrap="anywhere">
              {pin.owner === null ? "A reader" : <PersonName person={pin.owner} />} reads it: {pin.reason || "no reason is given"}
              {pin.expires_at !== null && (
                <>
                  ; until <Time at={pin.expires_at} full />
                </>
              )}
            </Text>
          ))}
          {savepoints.map(({ name }) => (
            <li key={name}>
              Savepoint <SavepointLink name={name} /> has its state.
            </li>
          ))}
          {elsewhere.map(({ seq, facts }) => (
            <Text as="li" key={seq} overflowWrap="anywhere">
              A savepoint outside of the job root has its state{typeof facts.path === "string" && `: ${facts.path}`}.
            </Text>
          ))}
        </ul>
      )}
    </Section>
  );
}

const OPERATOR_COLUMNS = ["Operator", "State", "Entries", "Files", "Rows in", "Rows out", "Late", "Skew", "Watermark"];

function Operators({ operators, entry }: { operators: readonly OperatorDetails[]; entry: CheckpointPage["entry"] }) {
  const metrics = entry !== null && isCheckpoint(entry) ? Object.entries(entry.operators) : [];
  if (operators.length === 0 && metrics.length === 0) return null;
  const rows = operators.length > 0 ? operators.map((each) => [each.uid, each.metrics, each] as const) : metrics.map(([uid, found]) => [uid, found, null] as const);
  return (
    <Section title="Operators">
      <ScrollingTable label="Operators of the checkpoint">
        <Table.Header>
          <Table.Row>
            {OPERATOR_COLUMNS.map((title) => (
              <Table.ColumnHeader key={title}>{title}</Table.ColumnHeader>
            ))}
          </Table.Row>
        </Table.Header>
        <Table.Body>
          {rows.map(([uid, found, details]) => {
            const watermark = details?.watermark_at ?? found?.watermark_at ?? null;
            return (
              <Table.Row key={uid}>
                <Table.Cell fontWeight="semibold">{uid}</Table.Cell>
                <Table.Cell whiteSpace="nowrap">{formatBytes(details?.size_bytes ?? found?.state_bytes ?? 0)}</Table.Cell>
                <Table.Cell whiteSpace="nowrap">{found?.state_entries == null ? "not known" : `${found.state_entries_exact ? "" : "about "}${formatCount(found.state_entries)}`}</Table.Cell>
                <Table.Cell>{details === null ? "" : formatCount(details.files)}</Table.Cell>
                {[found?.rows_in, found?.rows_out, found?.rows_late, found?.skew_ratio].map((value, index) => (
                  <Table.Cell key={index}>{value === undefined ? "" : formatCount(value)}</Table.Cell>
                ))}
                <Table.Cell whiteSpace="nowrap">{watermark === null ? "none" : <Time at={watermark} full />}</Table.Cell>
              </Table.Row>
            );
          })}
        </Table.Body>
      </ScrollingTable>
      {operators.length === 0 && <Text color="fg.muted">The job does not keep the checkpoint: its subtasks and files are not known any more.</Text>}
      {operators.map((operator) => (
        <Folded key={operator.uid} title={`${formatCount(operator.subtasks)} ${operator.subtasks === 1 ? "subtask" : "subtasks"} of ${operator.uid}`}>
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
        bars={subtasks.map(({ subtask, size_bytes: value }) => ({ key: String(subtask), name: `subtask ${subtask}`, value, isMuted: false }))}
        format={formatBytes}
      />
      <ScrollingTable label={`Subtasks of ${uid}`}>
        <Table.Header>
          <Table.Row>
            {SUBTASK_COLUMNS.map((title) => (
              <Table.ColumnHeader key={title}>{title}</Table.ColumnHeader>
            ))}
          </Table.Row>
        </Table.Header>
        <Table.Body>
          {subtasks.map((each) => (
            <Table.Row key={each.subtask}>
              <Table.Cell>{each.subtask}</Table.Cell>
              <Table.Cell whiteSpace="nowrap">
                {each.first_key_group}–{each.last_key_group}
              </Table.Cell>
              <Table.Cell whiteSpace="nowrap">{formatBytes(each.size_bytes)}</Table.Cell>
              <Table.Cell>{each.state_entries === null ? "not known" : formatCount(each.state_entries)}</Table.Cell>
              <Table.Cell>{formatCount(each.files)}</Table.Cell>
              <Table.Cell>{each.backend}</Table.Cell>
            </Table.Row>
          ))}
        </Table.Body>
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

/** Sizes and entries by operator: of the files, or, if the job does not keep them, of the record. */
function sizesOf({ operators, entry }: CheckpointPage): Map<string, { bytes: number; entries: number | null }> {
  if (operators.length > 0) return new Map(operators.map((each) => [each.uid, { bytes: each.size_bytes, entries: each.metrics?.state_entries ?? null }]));
  if (entry === null || !isCheckpoint(entry)) return new Map();
  return new Map(Object.entries(entry.operators).map(([uid, each]) => [uid, { bytes: each.state_bytes, entries: each.state_entries }]));
}

/** What differs from another checkpoint, at first the one that this one continued from. */
function Difference({ address, job, page, id }: { address: string; job: JobState | null; page: CheckpointPage; id: number }) {
  const base = page.entry === null ? null : isCheckpoint(page.entry) ? page.entry.base_checkpoint_id : page.entry.restored_checkpoint_id;
  const [chosen, setChosen] = useState<string | null>(null);
  const others = [...new Set([base, ...(job?.description?.retained_checkpoint_ids ?? [])])].filter((each): each is number => each !== null && each !== id).sort((a, b) => b - a);
  const wanted = chosen ?? (base === null || base === id ? "" : String(base));
  const other = useResource<CheckpointPage>(wanted === "" ? null : `${address}/checkpoints/${wanted}`, 60_000);
  if (others.length === 0) return null;
  return (
    <Section title="What differs">
      <SelectField label="Compared with checkpoint" value={wanted} choices={[["", "none"], ...others.map((each) => [String(each), String(each)] as const)]} onChange={setChosen} />
      {wanted !== "" && <Loaded resource={other}>{(found) => <DifferenceTable before={found} after={page} />}</Loaded>}
    </Section>
  );
}

function DifferenceTable({ before, after }: { before: CheckpointPage; after: CheckpointPage }) {
  const [old, now] = [sizesOf(before), sizesOf(after)];
  const uids = [...new Set([...old.keys(), ...now.keys()])].sort((a, b) => a.localeCompare(b));
  const positions = new Map(before.sources.map(({ uid, offset }) => [uid, offsetText(offset)]));
  return (
    <ScrollingTable label="Difference between the checkpoints">
      <Table.Header>
        <Table.Row>
          {["Operator or source", "State or position", "Entries"].map((title) => (
            <Table.ColumnHeader key={title}>{title}</Table.ColumnHeader>
          ))}
        </Table.Row>
      </Table.Header>
      <Table.Body>
        {uids.map((uid) => (
          <Table.Row key={uid}>
            <Table.Cell fontWeight="semibold">{uid}</Table.Cell>
            <Table.Cell>{formatChange(old.get(uid)?.bytes ?? null, now.get(uid)?.bytes ?? null, formatBytes)}</Table.Cell>
            <Table.Cell>{formatChange(old.get(uid)?.entries ?? null, now.get(uid)?.entries ?? null, formatCount)}</Table.Cell>
          </Table.Row>
        ))}
        {after.sources.map(({ uid, offset }) => (
          <Table.Row key={`source ${uid}`}>
            <Table.Cell fontWeight="semibold">source {uid}</Table.Cell>
            <Table.Cell fontFamily="mono" colSpan={2} overflowWrap="anywhere">
              {positions.get(uid) === offsetText(offset) ? offsetText(offset) : `${positions.get(uid) ?? "not known"} → ${offsetText(offset)}`}
            </Table.Cell>
          </Table.Row>
        ))}
      </Table.Body>
    </ScrollingTable>
  );
}
