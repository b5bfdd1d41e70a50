import { Button, Flex, Stack, Table, Text } from "@chakra-ui/react";
import { useState } from "react";
import { download, type JournalEntry, type JournalPage, useResource } from "../api";
import { formatBytes } from "../format";
import { FreshnessNotice, Loaded, Notice } from "../parts/Loaded";
import { Pager, usePages } from "../parts/Pager";
import { peopleText } from "../parts/people";
import { ScrollingTable } from "../parts/ScrollingTable";
import { Time } from "../parts/Time";

/** What people did with a job, or with all jobs: a line for each action, the newest first. */
export function Journal({ address, showsJob }: { address: string; showsJob: boolean }) {
  const pages = usePages();
  const resource = useResource<JournalPage>(`${address}${pages.query}`);
  return (
    <Loaded resource={resource}>
      {({ entries, jobs, next_cursor: next }) => (
        <Stack gap={4}>
          {jobs.map((job) => (
            <FreshnessNotice key={job.id} of={job} history />
          ))}
          {entries.length === 0 ? (
            <Notice status="info" title="No person has done anything here yet" />
          ) : (
            <>
              <ActionTable entries={entries} showsJob={showsJob} />
              <Pager pages={pages} next={next} />
              <Download path={`${address}.csv`} />
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
const NOT_SHOWN = new Set(["checkpoint_id", "restored_checkpoint_id", "request_id", "plan_id", "savepoint_id"]);

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
  const titles = ["Time", ...(showsJob ? ["Job"] : []), "Action", "Checkpoint", "Person", "Reason", "Note", "Size", "Facts"];
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
  const { checkpoint_id: point, restored_checkpoint_id: base } = entry;
  return (
    <Table.Row>
      <Table.Cell whiteSpace="nowrap">{entry.ended_at !== null && <Time at={entry.ended_at} full />}</Table.Cell>
      {showsJob && <Table.Cell>{entry.job ?? entry.id}</Table.Cell>}
      <Table.Cell whiteSpace="nowrap">{entry.kind}</Table.Cell>
      <Table.Cell whiteSpace="nowrap">
        {base !== null && base !== point && `${base} → `}
        {point}
      </Table.Cell>
      <Table.Cell>{peopleText(entry.by, entry.requested_by)}</Table.Cell>
      <Table.Cell minW="12rem" overflowWrap="anywhere">
        {entry.reason}
      </Table.Cell>
      <Table.Cell overflowWrap="anywhere">{entry.note}</Table.Cell>
      <Table.Cell whiteSpace="nowrap">{entry.size_bytes === null ? "" : formatBytes(entry.size_bytes)}</Table.Cell>
      <Table.Cell minW="16rem" overflowWrap="anywhere" fontSize="xs" color="fg.muted">
        {factsText(entry.facts)}
      </Table.Cell>
    </Table.Row>
  );
}
