import type { OperatorMetrics } from "../api";
import { formatBytes, formatCount, formatDuration, sizeText } from "../format";
import { ScrollingTable } from "./ScrollingTable";
import { Time } from "./Time";

/** An operator at a checkpoint. */
export interface OperatorRow {
  uid: string;
  /** Size of the files; of a checkpoint that the job does not keep, as its record has it. */
  full_bytes: number;
  live_bytes: number | null;
  /** Null if the job does not keep the checkpoint. */
  files: number | null;
  watermark: string | null;
  /** Null if they were not recorded. */
  metrics: OperatorMetrics | null;
}

const COLUMNS = [
  ...["Operator", "State", "Files", "Entries", "Rows in", "Rows out", "Late", "Dropped as late", "Filtered", "Dead letters"],
  ...["In functions", "In state", "In stores", "CPU", "Subtasks", "Skew", "Busiest subtasks of the last batch", "Watermark"],
];

/** Sizes, rows, times and skew by operator. The times of all subtasks are added up. */
export function OperatorTable({ label, operators }: { label: string; operators: readonly OperatorRow[] }) {
  return (
    <ScrollingTable label={label} columns={COLUMNS}>
      {operators.map(({ uid, metrics, files, watermark, ...bytes }) => (
        <tr key={uid}>
          <td className="name">{uid}</td>
          <td className="line">
            {sizeText(bytes)}
            {bytes.live_bytes !== null && `; ${formatBytes(bytes.full_bytes)} in files`}
          </td>
          <td>{files === null ? "" : formatCount(files)}</td>
          <td className="line">{metrics === null ? "not known" : entriesText(metrics)}</td>
          {rowsOf(metrics).map((rows, index) => (
            <td key={index}>{rows === undefined ? "" : formatCount(rows)}</td>
          ))}
          {timesOf(metrics).map((ms, index) => (
            <td className="line" key={index}>
              {ms === undefined ? "" : formatDuration(ms)}
            </td>
          ))}
          <td>{metrics === null ? "" : formatCount(metrics.subtasks)}</td>
          <td title="Rows of the busiest subtask, divided by the average of all">{metrics === null ? "" : formatCount(metrics.skew_ratio)}</td>
          <td className="line">{metrics === null ? "" : busiestText(metrics)}</td>
          <td className="line">{watermark === null ? "none" : <Time at={watermark} full />}</td>
        </tr>
      ))}
    </ScrollingTable>
  );
}

function rowsOf(metrics: OperatorMetrics | null): (number | undefined)[] {
  return [metrics?.rows_in, metrics?.rows_out, metrics?.rows_late, metrics?.rows_dropped, metrics?.rows_filtered, metrics?.dead_letters];
}

function timesOf(metrics: OperatorMetrics | null): (number | undefined)[] {
  return [metrics?.function_ms, metrics?.state_ms, metrics?.store_ms, metrics?.cpu_ms];
}

/** "about 600, at least 500 live". */
export function entriesText({ state_entries: entries, live_entries: live, state_entries_exact: isExact }: Pick<OperatorMetrics, "state_entries" | "live_entries" | "state_entries_exact">): string {
  if (entries === null) return "not known";
  const all = `${isExact ? "" : "about "}${formatCount(entries)}`;
  return isExact || live === null ? all : `${all}, at least ${formatCount(live)} live`;
}

function busiestText({ busiest, subtasks }: OperatorMetrics): string {
  if (subtasks < 2) return "";
  return busiest.map(({ subtask, rows_in: rows, state_bytes: bytes }) => `${subtask}: ${formatCount(rows)} rows, ${formatBytes(bytes)}`).join("; ");
}
