import { Text } from "@chakra-ui/react";
import type { Backlog } from "../api";
import { counted, formatBytes, formatDuration } from "../format";
import { Time } from "./Time";

/** How much input waits: "2 files", "1,234 rows, about 3 min". */
export function Waiting({ backlog, unknown }: { backlog: Backlog | null; unknown: string | null }) {
  if (backlog === null) return <Muted text="not known" title={unknown ?? undefined} />;
  return (
    <>
      {waitingText(backlog)}
      {backlog.measured_at !== null && (
        <Text as="span" color="fg.muted" fontSize="sm">
          {" "}
          (measured <Time at={backlog.measured_at} />)
        </Text>
      )}
    </>
  );
}

/** The same without its time. Only the totals count: a report does not name all sources of a job with many. */
export function waitingText({ rows, exact, catch_up_ms: ms, files, size_bytes: bytes }: Backlog): string {
  const catchUp = ms === null || ms === 0 ? "" : `, ${formatDuration(ms)} to read`;
  if ((rows ?? files ?? bytes) === 0) return "none";
  if (rows !== null) return `${exact ? "" : "about "}${counted(rows, "row")}${catchUp}`;
  if (files !== null) return `${counted(files, "file")}${catchUp}`;
  return bytes === null ? "not known" : `${formatBytes(bytes)}${catchUp}`;
}

/** A word that says that there is no value. */
export function Muted({ text, title }: { text: string; title?: string }) {
  return (
    <Text as="span" color="fg.muted" title={title}>
      {text}
    </Text>
  );
}
