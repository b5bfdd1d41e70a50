import { Badge } from "@chakra-ui/react";
import type { Backlog, Health } from "../api";
import { formatTime } from "../format";

/** Each word with its colour, in the order in which a person should look at jobs. */
const COLOURS: Record<Health["word"], string> = {
  failing: "red",
  "waits-for-approval": "purple",
  retrying: "orange",
  late: "orange",
  restoring: "purple",
  starting: "blue",
  running: "blue",
  idle: "green",
  "caught-up": "green",
  stopped: "gray",
};
const ORDER = Object.keys(COLOURS);

/** The place of a job in that order; a job of which nothing is known is the first. */
export function severityOf(health: Health | null): number {
  return health === null ? -1 : ORDER.indexOf(health.word);
}

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
