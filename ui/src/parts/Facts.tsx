import { Box } from "@chakra-ui/react";
import type { ReactNode } from "react";
import { CopiedPath } from "./Command";

/** A name and its value. */
export type Fact = readonly [string, ReactNode];

/** Facts below each other, the names on the left. */
export function Facts({ facts }: { facts: readonly Fact[] }) {
  return (
    <Box as="dl" display="grid" gridTemplateColumns={{ base: "minmax(5rem, 35%) 1fr", sm: "max-content 1fr" }} columnGap={{ base: 3, sm: 6 }} rowGap={1}>
      {facts.map(([name, value]) => (
        <Box key={name} display="contents">
          <Box as="dt" color="fg.muted">
            {name}
          </Box>
          <Box as="dd" overflowWrap="anywhere" minW={0}>
            {value}
          </Box>
        </Box>
      ))}
    </Box>
  );
}

/** Facts that other columns have, or that only programs need. */
const NOT_SHOWN = new Set(["checkpoint_id", "restored_checkpoint_id", "previous_checkpoint_id", "rows_removed", "request_id", "plan_id", "savepoint", "savepoint_id"]);

/** The further facts of an action as one text. */
export function factsText(facts: Record<string, unknown>): string {
  const shown = Object.entries(facts).filter(([name, value]) => !NOT_SHOWN.has(name) && value !== null && value !== "");
  return shown.map(([name, value]) => `${name.replaceAll("_", " ")}: ${plainText(value)}`).join("; ");
}

/** The further facts of an action; its path can be copied. In a `ScrollingTable`, with the size "cell". */
export function FurtherFacts({ facts, size }: { facts: Record<string, unknown>; size?: "cell" }) {
  const { path, ...others } = facts;
  if (typeof path !== "string" || path === "") return factsText(facts);
  return (
    <>
      {factsText(others)} <CopiedPath text={path} what={typeof others.savepoint === "string" ? `path of ${others.savepoint}` : "path"} size={size} />
    </>
  );
}

function plainText(value: unknown): string {
  if (Array.isArray(value)) return value.map(plainText).join(", ");
  return typeof value === "string" ? value : JSON.stringify(value);
}
