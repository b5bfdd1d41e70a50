import { Heading, Stack } from "@chakra-ui/react";
import type { ReactNode } from "react";
import type { JobState, OperatorStatus, SourceStatus } from "../api";
import { offsetText } from "../format";
import { OperatorTable } from "./OperatorTable";
import { ScrollingTable } from "./ScrollingTable";
import { SinkTable } from "./SinkTable";
import { Time } from "./Time";

/** A heading, and a table below it. */
function TableSection({ title, children }: { title: string; children: ReactNode }) {
  return (
    <Stack as="section" gap={2}>
      <Heading as="h2" size="md">
        {title}
      </Heading>
      {children}
    </Stack>
  );
}

/** The operators of a job at its newest checkpoint. */
export function Operators({ operators }: { operators: readonly OperatorStatus[] }) {
  if (operators.length === 0) return null;
  const rows = operators.map(({ uid, size_bytes, live_bytes, files, metrics }) => ({ uid, full_bytes: size_bytes, live_bytes, files, metrics, watermark: metrics?.watermark_at ?? null }));
  return (
    <TableSection title="Operators at the newest checkpoint">
      <OperatorTable label="Operators at the newest checkpoint" operators={rows} />
    </TableSection>
  );
}

/** The sinks of a job at its newest checkpoint. */
export function Sinks({ sinks }: { sinks: JobState["sinks"] }) {
  if (Object.keys(sinks).length === 0) return null;
  return (
    <TableSection title="Sinks at the newest checkpoint">
      <SinkTable label="Sinks at the newest checkpoint" sinks={sinks} />
    </TableSection>
  );
}

/** The sources of a job at its newest checkpoint. */
export function Sources({ sources }: { sources: readonly SourceStatus[] }) {
  if (sources.length === 0) return null;
  return (
    <TableSection title="Sources at the newest checkpoint">
      <ScrollingTable label="Sources at the newest checkpoint" columns={["Source", "Position", "Watermark", "Idle"]}>
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
      </ScrollingTable>
    </TableSection>
  );
}
