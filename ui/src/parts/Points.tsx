import { Heading, Stack } from "@chakra-ui/react";
import { memo } from "react";
import { type CheckpointSummary, type Entry, isWhole, type PointPage, type RunSummary, useResource } from "../api";
import { formatBytes, formatCount, formatDuration, sizeText } from "../format";
import { isCheckpoint } from "../pictures/timelineLayout";
import { isRestorable } from "../targets";
import { type Filter, Filters, useFilters } from "./Filters";
import { CheckpointLink, RestoreLink, runName, RunLink } from "./links";
import { Loaded, Notice } from "./Loaded";
import { headOf } from "./LongText";
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
      choices: [["", "all"], ...runs.map((run) => [String(run.generation), runName(run.run, run.generation)] as const)],
    },
    { name: "since", label: "Since", type: "moment" },
    { name: "until", label: "Until", type: "moment" },
  ];
}

const NUMBERS = ["Rows", "Increment", "State"];
const COLUMNS = ["Point", "Run", "Ended", ...NUMBERS, "Duration", "Remarks", "Restore"];

interface Props {
  address: string;
  base: string;
  /** The checkpoint where the job is. */
  newest: number | null;
}

/** The checkpoints and restores of a job, the newest first, with filters. */
export function Points({ address, base, newest, runs }: Props & { runs: readonly RunSummary[] }) {
  const filters = filtersOf(runs);
  const wanted = useFilters(filters);
  return (
    <Stack as="section" gap={3} aria-label="Points">
      <Heading as="h2" size="md">
        Points
      </Heading>
      <Filters label="Filters of the points" filters={filters} />
      <PointList address={address} base={base} newest={newest} wanted={wanted} />
    </Stack>
  );
}

function emptyText(isFiltered: boolean, isRead: boolean): string {
  if (isFiltered) return isRead ? "No point has these properties" : "No point that is known now has these properties";
  return isRead ? "The job has no point yet" : "No point is known now: older records are missing";
}

/** The points page by page: another page does not make the filters again. */
function PointList({ address, base, newest, wanted }: Props & { wanted: URLSearchParams }) {
  const pages = usePages(wanted);
  const resource = useResource<PointPage>(`${address}/points${pages.query}`);
  return (
    <Loaded resource={resource}>
      {(page) =>
        page.points.length === 0 ? (
          <Notice status="info" title={emptyText(wanted.size > 0, isWhole(page))} />
        ) : (
          <>
            <ScrollingTable label="Table of the points" columns={COLUMNS} stacked>
              {page.points.map((point, index) => (
                <PointRow key={index} point={point} base={base} isNewest={point.checkpoint_id === newest} />
              ))}
            </ScrollingTable>
            <Pager pages={pages} next={page.next_cursor} />
          </>
        )
      }
    </Loaded>
  );
}

const PointRow = memo(function PointRow({ point, base, isNewest }: { point: Entry; base: string; isNewest: boolean }) {
  const checkpoint = isCheckpoint(point) ? point : null;
  return (
    <tr className={point.undone === true ? "muted" : undefined}>
      <td className="line" data-title="Point">
        {checkpoint === null ? `${point.kind} ` : ""}
        {point.checkpoint_id === null ? "aborted" : <CheckpointLink id={point.checkpoint_id} />}
      </td>
      <td className="line" data-title="Run">{checkpoint !== null && <RunLink generation={checkpoint.generation} run={checkpoint.run} />}</td>
      <td className="line" data-title="Ended">{point.ended_at !== null && <Time at={point.ended_at} />}</td>
      <Numbers checkpoint={checkpoint} />
      <td className="line" data-title="Duration">{point.duration_ms === null ? "" : formatDuration(point.duration_ms)}</td>
      <td className="long" data-title="Remarks">
        <Remarks point={point} />
      </td>
      <td data-title="Restore">{isRestorable(point) && !isNewest && checkpoint !== null && <RestoreLink base={base} target={String(point.checkpoint_id)} size="cell" />}</td>
    </tr>
  );
});

function Numbers({ checkpoint }: { checkpoint: CheckpointSummary | null }) {
  const texts = checkpoint === null ? ["", "", ""] : [formatCount(checkpoint.rows_in), formatBytes(checkpoint.increment_bytes), sizeText(checkpoint)];
  return texts.map((text, index) => (
    <td className="line" key={index} data-title={NUMBERS[index]}>
      {text}
    </td>
  ));
}

function Remarks({ point }: { point: Entry }) {
  const failure = isCheckpoint(point) ? headOf(point.failure ?? "") : "";
  const words = [point.undone === true ? "undone" : "", point.retained === true ? "kept" : "", point.integrity === "changed" ? "its record was changed" : ""].filter((word) => word !== "");
  return (
    <>
      {words.join("; ")}
      {failure !== "" && (
        <span className="bad">
          {words.length > 0 && "; "}
          {failure}
        </span>
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
