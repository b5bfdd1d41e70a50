import { Heading, Stack } from "@chakra-ui/react";
import type { ReactNode } from "react";
import type { OperatorStatus, SourceStatus } from "../api";
import { formatBytes, formatCount, offsetText } from "../format";
import { ScrollingTable } from "./ScrollingTable";
import { Time } from "./Time";

/** A heading, and a table below it. */
function TableSection({ title, columns, children }: { title: string; columns: readonly string[]; children: ReactNode }) {
  return (
    <Stack as="section" gap={2}>
      <Heading as="h2" size="md">
        {title}
      </Heading>
      <ScrollingTable label={title} columns={columns}>
        {children}
      </ScrollingTable>
    </Stack>
  );
}

const OPERATOR_COLUMNS = ["Operator", "State", "Entries", "Rows in", "Rows out", "Late rows", "Subtasks", "Skew", "Watermark"];

/** The operators of a job at its newest checkpoint. */
export function Operators({ operators }: { operators: readonly OperatorStatus[] }) {
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
    <tr>
      <td className="name">{uid}</td>
      <td className="line">{formatBytes(bytes)}</td>
      <td className="line">{entries === null ? "not known" : `${metrics?.state_entries_exact ? "" : "about "}${formatCount(entries)}`}</td>
      {counts.map((count, index) => (
        <td key={index}>{count}</td>
      ))}
      <td>{formatCount(subtasks)}</td>
      <td>{metrics === null ? "" : formatCount(metrics.skew_ratio)}</td>
      <td className="line">{metrics?.watermark_at == null ? "none" : <Time at={metrics.watermark_at} full />}</td>
    </tr>
  );
}

/** The sources of a job at its newest checkpoint. */
export function Sources({ sources }: { sources: readonly SourceStatus[] }) {
  if (sources.length === 0) return null;
  return (
    <TableSection title="Sources at the newest checkpoint" columns={["Source", "Position", "Watermark", "Idle"]}>
      {sources.map((source) => (
        <tr key={source.uid}>
          <td className="name" title={source.description ?? undefined}>
            {source.uid}
          </td>
          <td className="code">
            {offsetText(source.offset)}
          </td>
          <td className="line">{source.watermark_at === null ? "none" : <Time at={source.watermark_at} full />}</td>
          <td>{source.idle === true ? "idle" : ""}</td>
        </tr>
      ))}
    </TableSection>
  );
}
