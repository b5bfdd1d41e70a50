import { Box, Flex, Text } from "@chakra-ui/react";
import type { CSSProperties } from "react";

/** A bar with the number that it shows. */
export interface Bar {
  key: string;
  /** What it belongs to, such as "checkpoint 12". */
  name: string;
  value: number;
}

/** Of each bar: hundreds of components of Chakra would take too long. */
const BAR: CSSProperties = { flex: 1, maxWidth: 24, minHeight: 1, borderRadius: "1px 1px 0 0", background: "var(--chakra-colors-blue-solid)" };

/** Bars from left to right, whose numbers are in a table as well. `format` writes a number with its unit. */
export function BarChart({ title, bars, format }: { title: string; bars: readonly Bar[]; format: (value: number) => string }) {
  const most = bars.reduce((largest, bar) => Math.max(largest, bar.value), 0);
  const last = bars.at(-1);
  if (last === undefined) return null;
  return (
    <Box as="figure" borderWidth="1px" borderRadius="md" p={3} minW={0}>
      <Flex as="figcaption" justify="space-between" gap={2} fontSize="sm" color="fg.muted">
        <Text>{title}</Text>
        <Text>at most {format(most)}</Text>
      </Flex>
      <Flex role="img" aria-label={`${title}: ${format(last.value)} at ${last.name}, at most ${format(most)}`} align="end" gap="1px" height="72px">
        {bars.map(({ key, name, value }) => (
          <div key={key} style={{ ...BAR, height: `${most === 0 ? 0 : (100 * value) / most}%` }} title={`${name}: ${format(value)}`} />
        ))}
      </Flex>
    </Box>
  );
}
