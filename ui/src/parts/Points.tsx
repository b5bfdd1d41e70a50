import { Heading, Stack, Table, Text } from "@chakra-ui/react";
import { type CheckpointEntry, type Entry, type PointPage, type RunSummary, useResource } from "../api";
import { formatBytes, formatCount, formatDuration } from "../format";
import { isCheckpoint } from "../pictures/timelineLayout";
import { type Filter, Filters, useFilters } from "./Filters";
import { CheckpointLink, RestoreLink, RunLink } from "./links";
import { Loaded, Notice } from "./Loaded";
import { Pager, usePages } from "./Pager";
import { People } from "./People";
import { ScrollingTable } from "./ScrollingTable";
import { Time } from "./Time";

const YES_NO = (yes: string, no: string) =>
  [
    ["", "all"],
    ["true", yes],
    ["false", no],
  ] as const;

function filtersOf(runs: readonly RunSummary[]): Filter[] {
  return [
    { name: "kind", label: "Made by", type: "choice", choices: [["", "all"], ["checkpoint", "a run"], ["restore", "a restore"], ["fork", "a fork"]] },
    { name: "status", label: "Status", type: "choice", choices: [["", "all"], ["completed", "completed"], ["aborted", "aborted"]] },
    { name: "undone", label: "Branch", type: "choice", choices: YES_NO("undone by a restore", "of the present state") },
    { name: "retained", label: "Kept", type: "choice", choices: YES_NO("kept by the job", "not kept") },
    {
      name: "generation",
      label: "Run",
      type: "choice",
      choices: [["", "all"], ...runs.map((run) => [String(run.generation), run.run === null ? `generation ${run.generation}` : `run ${run.run}`] as const)],
    },
    { name: "since", label: "Since", type: "moment" },
    { name: "until", label: "Until", type: "moment" },
  ];
}

const COLUMNS = ["Point", "Run", "Ended", "Rows", "Increment", "State", "Duration", "Remarks", "Restore"];

/** The checkpoints and restores of a job, the newest first, with filters. */
export function Points({ address, base, newest, runs }: { address: string; base: string; newest: number | null; runs: readonly RunSummary[] }) {
  const filters = filtersOf(runs);
  const wanted = useFilters(filters);
  const pages = usePages(wanted);
  const resource = useResource<PointPage>(`${address}/points${pages.query}`);
  return (
    <Stack as="section" gap={3} aria-label="Points">
      <Heading as="h2" size="md">
        Points
      </Heading>
      <Filters label="Filters of the points" filters={filters} />
      <Loaded resource={resource}>
        {({ points, next_cursor: next }) =>
          points.length === 0 ? (
            <Notice status="info" title={wanted.size === 0 ? "The job has no point yet" : "No point has these properties"} />
          ) : (
            <>
              <ScrollingTable label="Table of the points">
                <Table.Header>
                  <Table.Row>
                    {COLUMNS.map((title) => (
                      <Table.ColumnHeader key={title}>{title}</Table.ColumnHeader>
                    ))}
                  </Table.Row>
                </Table.Header>
                <Table.Body>
                  {points.map((point, index) => (
                    <PointRow key={index} point={point} base={base} newest={newest} />
                  ))}
                </Table.Body>
              </ScrollingTable>
              <Pager pages={pages} next={next} />
            </>
          )
        }
      </Loaded>
    </Stack>
  );
}

function PointRow({ point, base, newest }: { point: Entry; base: string; newest: number | null }) {
  const checkpoint = isCheckpoint(point) ? point : null;
  return (
    <Table.Row color={point.undone === true ? "fg.muted" : undefined}>
      <Table.Cell whiteSpace="nowrap">
        {checkpoint === null ? `${point.kind} ` : ""}
        {point.checkpoint_id === null ? "aborted" : <CheckpointLink id={point.checkpoint_id} />}
      </Table.Cell>
      <Table.Cell whiteSpace="nowrap">{checkpoint !== null && <RunLink generation={checkpoint.generation} run={checkpoint.run} />}</Table.Cell>
      <Table.Cell whiteSpace="nowrap">{point.ended_at !== null && <Time at={point.ended_at} />}</Table.Cell>
      <Numbers checkpoint={checkpoint} />
      <Table.Cell whiteSpace="nowrap">{point.duration_ms === null ? "" : formatDuration(point.duration_ms)}</Table.Cell>
      <Table.Cell minW="16rem" overflowWrap="anywhere">
        <Remarks point={point} />
      </Table.Cell>
      <Table.Cell>
        {checkpoint?.retained === true && checkpoint.checkpoint_id !== null && checkpoint.checkpoint_id !== newest && (
          <RestoreLink base={base} target={String(checkpoint.checkpoint_id)} size="xs" />
        )}
      </Table.Cell>
    </Table.Row>
  );
}

function Numbers({ checkpoint }: { checkpoint: CheckpointEntry | null }) {
  const texts = checkpoint === null ? ["", "", ""] : [formatCount(checkpoint.rows_in), formatBytes(checkpoint.increment_bytes), formatBytes(checkpoint.full_bytes)];
  return texts.map((text, index) => (
    <Table.Cell key={index} whiteSpace="nowrap">
      {text}
    </Table.Cell>
  ));
}

function Remarks({ point }: { point: Entry }) {
  const failure = isCheckpoint(point) ? (point.failure ?? "") : "";
  const words = [point.undone === true ? "undone" : "", point.retained === true ? "kept" : "", point.integrity === "changed" ? "its record was changed" : ""].filter((word) => word !== "");
  return (
    <>
      {words.join("; ")}
      {failure !== "" && (
        <Text as="span" color="red.fg">
          {words.length > 0 && "; "}
          {failure}
        </Text>
      )}
      {!isCheckpoint(point) && (
        <>
          {words.length > 0 && "; "}
          <People by={point.by} requestedBy={point.requested_by} />
        </>
      )}
      {!isCheckpoint(point) && point.reason !== null && `: ${point.reason}`}
    </>
  );
}
