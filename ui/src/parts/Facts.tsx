import { Box } from "@chakra-ui/react";
import type { ReactNode } from "react";

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
