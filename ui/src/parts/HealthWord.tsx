import { Badge } from "@chakra-ui/react";
import type { Health } from "../api";

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

/** The health of a job in a word; on hover, the words of which it is not known whether they apply. */
export function HealthWord({ health }: { health: Health | null }) {
  if (health === null) return null;
  const { word, unknown } = health;
  const title = unknown.length === 0 ? undefined : `Not known: ${unknown.map(wordsOf).join(", ")}`;
  return (
    <Badge colorPalette={COLOURS[word]} variant="subtle" title={title}>
      {wordsOf(word)}
    </Badge>
  );
}
