import { Badge, Box, Text } from "@chakra-ui/react";
import type { Backlog, Health } from "../api";
import { HEALTH } from "../generated/health";
import { Facts } from "./Facts";
import { Folded } from "./Folded";
import { Time } from "./Time";

type Word = keyof typeof HEALTH;

/** Each word with its colour, in the order in which a person should look at jobs. */
const COLOURS: Record<Word, string> = {
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

/** The health of a job in a word, which opens what it means, and what all other words mean. */
export function HealthWord({ health, backlog }: { health: Health | null; backlog: Backlog | null }) {
  if (health === null) return null;
  const { word, unknown } = health;
  const measuredAt = word === "caught-up" ? (backlog?.measured_at ?? null) : null;
  return (
    <Box maxW="36rem">
      <Folded
        title={
          <Badge colorPalette={COLOURS[word]} variant="subtle">
            {wordsOf(word)}
          </Badge>
        }
      >
        {() => (
          <Box fontSize="sm" mt={2} aria-label="What the health means" role="group">
            <Text>{HEALTH[word]}</Text>
            {measuredAt !== null && (
              <Text>
                It measured that <Time at={measuredAt} />.
              </Text>
            )}
            {unknown.length > 0 && <Text>It is not known whether one of these applies: {unknown.map(wordsOf).join(", ")}.</Text>}
            <Text mt={2}>The first of these words that applies is shown:</Text>
            <Facts facts={Object.entries(HEALTH).map(([each, meaning]) => [wordsOf(each), meaning] as const)} />
          </Box>
        )}
      </Folded>
    </Box>
  );
}
