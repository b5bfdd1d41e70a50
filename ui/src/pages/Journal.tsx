import { Button, Flex, Stack, Table, Text } from "@chakra-ui/react";
import { useState } from "react";
import { download, type JournalEntry, type JournalPage, useResource } from "../api";
import { formatBytes, formatCount } from "../format";
import { type Filter, Filters, useFilters } from "../parts/Filters";
import { CheckpointLink, PageLink, runPath, SavepointLink, useBase } from "../parts/links";
import { FreshnessNotice, Loaded, Notice } from "../parts/Loaded";
import { Pager, usePages } from "../parts/Pager";
import { PersonName } from "../parts/People";
import { ScrollingTable } from "../parts/ScrollingTable";
import { Time } from "../parts/Time";
import { KINDS_OF_RUNS } from "../runs";

/** What each kind of action is called in a sentence about a person. */
const VERBS: Record<string, string> = {
  savepoint: "took a savepoint",
  dispose: "deleted a savepoint",
  restore: "restored",
  rewind: "went back to the previous checkpoint",
  rejection: "rejected",
  fork: "forked",
  relocate: "moved the job root",
  stop: "stopped the run",
  background: "background work failed",
  run: "started a run",
  failure: "a run failed",
  "failed-start": "a start failed",
};
const CHOSEN = ["restore", "rejection", "savepoint", "dispose", "stop", "run", "fork", "relocate"];
const FILTERS: readonly Filter[] = [
  { name: "kind", label: "Action", type: "choice", choices: [["", "all"], ...CHOSEN.map((kind) => [kind, VERBS[kind] ?? kind] as const)] },
  { name: "person", label: "Person", type: "text" },
  { name: "since", label: "Since", type: "moment" },
  { name: "until", label: "Until", type: "moment" },
];

/** What people did with a job, or with all jobs: a line for each action, the newest first. `job` is the job's id in addresses. */
export function Journal({ address, job }: { address: string; job: string | null }) {
  const filters = useFilters(FILTERS);
  const pages = usePages(filters);
  const resource = useResource<JournalPage>(`${address}${pages.query}`);
  return (
    <Stack gap={4}>
      <Filters label="Filters of the journal" filters={FILTERS} />
      <Loaded resource={resource}>
        {({ entries, jobs, next_cursor: next }) => (
          <Stack gap={4}>
            {jobs.map((each) => (
              <FreshnessNotice key={each.id} of={each} history />
            ))}
            {entries.length === 0 ? (
              <Notice status="info" title={filters.size === 0 ? "No person has done anything here yet" : "No action has these properties"} />
            ) : (
              <>
                <ActionTable entries={entries} showsJob={job === null} />
                <Pager pages={pages} next={next} />
                <Download path={`${address}.csv${filters.size === 0 ? "" : `?${filters.toString()}`}`} />
              </>
            )}
          </Stack>
        )}
      </Loaded>
    </Stack>
  );
}

function Download({ path }: { path: string }) {
  const [problem, setProblem] = useState<string | null>(null);
  const save = async () => {
    const found = await download(path, "journal.csv");
    setProblem(found?.message ?? null);
  };
  return (
    <Flex gap={3} align="center">
      <Button size="sm" variant="outline" onClick={() => void save()}>
        Download as CSV
      </Button>
      <Text role="status" color="red.fg">
        {problem}
      </Text>
    </Flex>
  );
}

/** Facts that other columns have, or that only programs need. */
const NOT_SHOWN = new Set(["checkpoint_id", "restored_checkpoint_id", "previous_checkpoint_id", "rows_removed", "request_id", "plan_id", "savepoint", "savepoint_id"]);

/** The further facts of an action as one text. */
export function factsText(facts: Record<string, unknown>): string {
  const shown = Object.entries(facts).filter(([name, value]) => !NOT_SHOWN.has(name) && value !== null && value !== "");
  return shown.map(([name, value]) => `${name.replaceAll("_", " ")}: ${plainText(value)}`).join("; ");
}

function plainText(value: unknown): string {
  if (Array.isArray(value)) return value.map(plainText).join(", ");
  return typeof value === "string" ? value : JSON.stringify(value);
}

function ActionTable({ entries, showsJob }: { entries: readonly JournalEntry[]; showsJob: boolean }) {
  const titles = ["Time", ...(showsJob ? ["Job"] : []), "Person", "Approver", "Action", "From → to", "Rows removed (plan)", "Reason", "Note", "Record", "Size", "Facts"];
  return (
    <ScrollingTable label="Journal">
      <Table.Header>
        <Table.Row>
          {titles.map((title) => (
            <Table.ColumnHeader key={title}>{title}</Table.ColumnHeader>
          ))}
        </Table.Row>
      </Table.Header>
      <Table.Body>
        {entries.map((entry, index) => (
          // Two actions can have the same time; a row has no state of its own.
          <ActionRow key={index} entry={entry} showsJob={showsJob} />
        ))}
      </Table.Body>
    </ScrollingTable>
  );
}

function ActionRow({ entry, showsJob }: { entry: JournalEntry; showsJob: boolean }) {
  const pagesAt = useBase();
  const base = showsJob ? `${pagesAt}/jobs/${encodeURIComponent(entry.id)}` : pagesAt;
  const person = entry.requested_by ?? entry.by;
  const approver = entry.requested_by === null ? null : entry.by;
  const rows = entry.facts.rows_removed;
  return (
    <Table.Row>
      <Table.Cell whiteSpace="nowrap">{entry.ended_at !== null && <Time at={entry.ended_at} full />}</Table.Cell>
      {showsJob && (
        <Table.Cell>
          <PageLink to={base}>{entry.job ?? entry.id}</PageLink>
        </Table.Cell>
      )}
      <Table.Cell>{person !== null && <PersonName person={person} />}</Table.Cell>
      <Table.Cell>{approver !== null && <PersonName person={approver} />}</Table.Cell>
      <Table.Cell>
        <Verb entry={entry} base={base} showsJob={showsJob} />
      </Table.Cell>
      <Table.Cell whiteSpace="nowrap">
        <FromTo entry={entry} base={base} showsJob={showsJob} />
      </Table.Cell>
      <Table.Cell color="red.fg">{typeof rows === "number" && formatCount(rows)}</Table.Cell>
      <Table.Cell minW="12rem" overflowWrap="anywhere">
        {entry.reason}
      </Table.Cell>
      <Table.Cell overflowWrap="anywhere">{entry.note}</Table.Cell>
      <Table.Cell color={entry.integrity === "changed" ? "red.fg" : undefined}>{entry.integrity}</Table.Cell>
      <Table.Cell whiteSpace="nowrap">{entry.size_bytes === null ? "" : formatBytes(entry.size_bytes)}</Table.Cell>
      <Table.Cell minW="16rem" overflowWrap="anywhere" fontSize="xs" color="fg.muted">
        {factsText(entry.facts)}
      </Table.Cell>
    </Table.Row>
  );
}

interface PartProps {
  entry: JournalEntry;
  /** The path of the job's pages. */
  base: string;
  showsJob: boolean;
}

function Verb({ entry: { kind, seq, facts }, base, showsJob }: PartProps) {
  const verb = VERBS[kind] ?? kind.replaceAll("-", " ");
  if (KINDS_OF_RUNS.has(kind)) return <PageLink to={runPath(base, seq)}>{verb}</PageLink>;
  const { savepoint } = facts;
  if (typeof savepoint !== "string") return verb;
  // The page of a job lists the savepoints that still exist.
  const isLinked = kind === "savepoint" && !showsJob;
  return (
    <>
      {verb}: {isLinked ? <SavepointLink name={savepoint} /> : savepoint}
    </>
  );
}

/** The checkpoints between which an action has led; of most actions, the one that they are about. */
function FromTo({ entry, base, showsJob }: PartProps) {
  const { restored_checkpoint_id: to, checkpoint_id: point, facts } = entry;
  const from = typeof facts.previous_checkpoint_id === "number" ? facts.previous_checkpoint_id : null;
  const shown = (id: number) => (showsJob ? <PageLink to={`${base}?point=${id}`}>{id}</PageLink> : <CheckpointLink id={id} />);
  if (to === null) return point === null ? null : shown(point);
  return (
    <>
      {from !== null && <>{shown(from)} → </>}
      {shown(to)}
    </>
  );
}
