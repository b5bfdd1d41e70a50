import { Button, Flex, Stack, Text } from "@chakra-ui/react";
import { memo, useState } from "react";
import { download, isWhole, type JournalEntry, type JournalKind, type JournalPage, useResource } from "../api";
import { formatBytes, formatCount } from "../format";
import { FurtherFacts } from "../parts/Facts";
import { type Filter, Filters, useFilters } from "../parts/Filters";
import { CheckpointLink, PageLink, savepointPath, useBase } from "../parts/links";
import { FreshnessNotice, Loaded, Notice } from "../parts/Loaded";
import { Pager, usePages } from "../parts/Pager";
import { PersonName } from "../parts/People";
import { ScrollingTable } from "../parts/ScrollingTable";
import { Time } from "../parts/Time";

/** What each kind of action is called in a sentence about a person: all kinds that the journal can have. */
const VERBS: Record<JournalKind, string> = {
  restore: "restored",
  rejection: "rejected",
  savepoint: "took a savepoint",
  dispose: "deleted a savepoint",
  retention: "ordered a release of checkpoints",
  stop: "stopped the run",
  fork: "forked",
  relocate: "moved a source",
};
/** A later version may record other kinds. */
const NAMES = new Map<string, string>(Object.entries(VERBS));
/** Actions that a file has at most; its last row says if there are older ones. */
const MOST_ROWS = 20_000;
const FILTERS: readonly Filter[] = [
  { name: "kind", label: "Action", type: "choice", choices: [["", "all"], ...NAMES] },
  { name: "person", label: "Person", type: "text" },
  { name: "since", label: "Since", type: "moment" },
  { name: "until", label: "Until", type: "moment" },
];

interface Props {
  address: string;
  /** The job's id in addresses; null for all jobs. */
  job: string | null;
}

/** What people did with a job, or with all jobs: a line for each action, the newest first. */
export function Journal({ address, job }: Props) {
  const filters = useFilters(FILTERS);
  return (
    <Stack gap={4}>
      <Filters label="Filters of the journal" filters={FILTERS} />
      <ActionList address={address} job={job} filters={filters} />
    </Stack>
  );
}

function emptyText(isFiltered: boolean, isRead: boolean): string {
  if (isFiltered) return isRead ? "No action has these properties" : "No action that is known now has these properties";
  return isRead ? "No person has done anything here yet" : "No action is known now: older records are missing";
}

/** The actions page by page: another page does not make the filters again. */
function ActionList({ address, job, filters }: Props & { filters: URLSearchParams }) {
  const pages = usePages(filters);
  const resource = useResource<JournalPage>(`${address}${pages.query}`);
  return (
    <Loaded resource={resource}>
      {({ entries, jobs, next_cursor: next }) => (
        <Stack gap={4}>
          {jobs.map((each) => (
            <FreshnessNotice key={each.id} of={each} history />
          ))}
          {entries.length === 0 ? (
            <Notice status="info" title={emptyText(filters.size > 0, jobs.every(isWhole))} />
          ) : (
            <>
              <ActionTable entries={entries} showsJob={job === null} />
              <Pager pages={pages} next={next} />
              <Download path={`${address}.csv?${new URLSearchParams([...filters, ["limit", String(MOST_ROWS)]]).toString()}`} />
            </>
          )}
        </Stack>
      )}
    </Loaded>
  );
}

function Download({ path }: { path: string }) {
  const [problem, setProblem] = useState<string | null>(null);
  const save = async () => {
    const found = await download(path, "journal.csv");
    setProblem(found?.message ?? null);
  };
  return (
    <Flex gap={3} align="center" wrap="wrap">
      <Button size="sm" variant="outline" onClick={() => void save()}>
        Download as CSV
      </Button>
      <Text color="fg.muted">The newest {formatCount(MOST_ROWS)} actions at most. If the file may lack actions, its last rows say of which jobs, and why.</Text>
      <Text role="status" color="red.fg">
        {problem}
      </Text>
    </Flex>
  );
}

function ActionTable({ entries, showsJob }: { entries: readonly JournalEntry[]; showsJob: boolean }) {
  const titles = ["Time", ...(showsJob ? ["Job"] : []), "Person", "Approver", "Action", "From → to", "Rows removed (plan)", "Reason", "Note", "Record", "Size", "Facts"];
  return (
    <ScrollingTable label="Journal" columns={titles} stacked>
      {entries.map((entry, index) => (
        // Two actions can have the same time; a row has no state of its own.
        <ActionRow key={index} entry={entry} showsJob={showsJob} />
      ))}
    </ScrollingTable>
  );
}

const ActionRow = memo(function ActionRow({ entry, showsJob }: { entry: JournalEntry; showsJob: boolean }) {
  const pagesAt = useBase();
  const base = showsJob ? `${pagesAt}/jobs/${encodeURIComponent(entry.id)}` : pagesAt;
  const person = entry.requested_by ?? entry.by;
  const approver = entry.requested_by === null ? null : entry.by;
  const rows = entry.facts.rows_removed;
  return (
    <tr>
      <td className="line" data-title="Time">{entry.ended_at !== null && <Time at={entry.ended_at} full />}</td>
      {showsJob && (
        <td data-title="Job">
          <PageLink to={base}>{entry.job ?? entry.id}</PageLink>
        </td>
      )}
      <td data-title="Person">{person !== null && <PersonName person={person} />}</td>
      <td data-title="Approver">{approver !== null && <PersonName person={approver} />}</td>
      <td data-title="Action">
        <Verb entry={entry} base={base} />
      </td>
      <td className="line" data-title="From → to">
        <FromTo entry={entry} base={base} showsJob={showsJob} />
      </td>
      <td className="bad" data-title="Rows removed (plan)">{typeof rows === "number" && formatCount(rows)}</td>
      <td className="long" data-title="Reason">{entry.reason ?? ""}</td>
      <td className="text" data-title="Note">{entry.note ?? ""}</td>
      <td className={entry.integrity === "changed" ? "bad" : undefined} data-title="Record">{entry.integrity}</td>
      <td className="line" data-title="Size">{entry.size_bytes === null ? "" : formatBytes(entry.size_bytes)}</td>
      <td className="long muted" data-title="Facts">
        <FurtherFacts facts={entry.facts} size="cell" />
      </td>
    </tr>
  );
});

interface PartProps {
  entry: JournalEntry;
  /** The path of the job's pages. */
  base: string;
  showsJob: boolean;
}

function Verb({ entry: { kind, facts }, base }: Omit<PartProps, "showsJob">) {
  const verb = NAMES.get(kind) ?? kind.replaceAll("-", " ");
  const { savepoint } = facts;
  if (typeof savepoint !== "string") return verb;
  return (
    <>
      {verb}: {kind === "savepoint" ? <PageLink to={savepointPath(base, savepoint)}>{savepoint}</PageLink> : savepoint}
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
