import { Badge } from "@chakra-ui/react";
import type { Backlog, Health } from "../api";
import { formatTime } from "../format";

const COLOURS: Record<Health["word"], string> = {
  "caught-up": "green",
  idle: "green",
  running: "blue",
  starting: "blue",
  restoring: "purple",
  "waits-for-approval": "purple",
  retrying: "orange",
  late: "orange",
  failing: "red",
  stopped: "gray",
};

function wordsOf(word: string): string {
  return word.replaceAll("-", " ");
}

/**
 * The health of a job in a word; on hover, the words of which it is not known whether they apply, and when the input was
 * measured that a job has caught up with.
 */
export function HealthWord({ health, backlog }: { health: Health | null; backlog: Backlog | null }) {
  if (health === null) return null;
  const { word, unknown } = health;
  const parts = unknown.length === 0 ? [] : [`Not known: ${unknown.map(wordsOf).join(", ")}`];
  if (word === "caught-up" && backlog !== null && backlog.measured_at !== null) parts.push(`As of ${formatTime(backlog.measured_at)}`);
  return (
    <Badge colorPalette={COLOURS[word]} variant="subtle" title={parts.join(". ") || undefined}>
      {wordsOf(word)}
    </Badge>
  );
}
