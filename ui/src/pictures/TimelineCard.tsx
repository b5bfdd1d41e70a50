import { Box, Text } from "@chakra-ui/react";
import type { CheckpointSummary } from "../api";
import { formatBytes, formatCount, formatDuration, formatTime, visible } from "../format";
import { peopleText } from "../parts/People";
import { isCheckpoint, type Mark } from "./timelineLayout";
import { titleOf } from "./TimelineMarks";

const WIDTH = 280;

function checkpointLines(points: readonly CheckpointSummary[]): string[] {
  const newest = points.at(-1);
  if (newest === undefined) return [];
  const sum = (value: (point: CheckpointSummary) => number) => points.reduce((total, point) => total + value(point), 0);
  const kept = points.filter((point) => point.retained).length;
  return [
    `run ${newest.run}; ${formatCount(sum((point) => point.rows_in))} rows in ${formatDuration(sum((point) => point.duration_ms))}`,
    `state ${formatBytes(newest.full_bytes)}, ${formatBytes(sum((point) => point.increment_bytes))} written`,
    points.length > 1 ? `${formatCount(kept)} of ${formatCount(points.length)} kept` : kept === 1 ? "kept: it can be restored" : "not kept",
  ];
}

function linesOf({ entries, undone, newest }: Mark): string[] {
  const entry = entries.at(-1);
  if (entry === undefined) return [];
  const state = [newest ? "the present state" : "", undone ? "undone" : ""].filter((part) => part !== "");
  const at = entry.ended_at === null ? [] : [formatTime(entry.ended_at)];
  if (isCheckpoint(entry)) return [...state, ...at, ...checkpointLines(entries.filter((each) => isCheckpoint(each)))];
  const { by, requested_by: requester, reason, note } = entry;
  return [...state, ...at, peopleText(by, requester), reason === null ? "" : `reason: ${visible(reason)}`, note === null ? "" : `note: ${visible(note)}`].filter((line) => line !== "");
}

/** Facts about the mark below the pointer or the focus. The same is in the name of the mark and below the timeline. */
export function TimelineCard({ mark, x, y, width }: { mark: Mark; x: number; y: number; width: number }) {
  const left = Math.max(4, Math.min(x + 16, width - WIDTH - 4));
  return (
    <Box position="absolute" left={`${left}px`} top={`${y + 16}px`} width={`${WIDTH}px`} maxW="calc(100% - 8px)" pointerEvents="none" bg="bg" color="fg" borderWidth="1px" borderRadius="md" boxShadow="md" p={2} fontSize="xs" zIndex="docked" aria-hidden="true">
      <Text fontWeight="semibold">{titleOf(mark)}</Text>
      {linesOf(mark).map((line, index) => (
        <Text key={index} overflowWrap="anywhere" lineClamp={3}>
          {line}
        </Text>
      ))}
    </Box>
  );
}
