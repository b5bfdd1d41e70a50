import { Box, Flex, Text } from "@chakra-ui/react";

/** A bar with the number that it shows. */
export interface Bar {
  key: string;
  /** What it belongs to, such as "checkpoint 12". */
  name: string;
  value: number;
  isMuted: boolean;
}

/** Bars from left to right, whose numbers are in a table beside them, too. `format` writes a number with its unit. */
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
        {bars.map((bar) => (
          <Box
            key={bar.key}
            flex="1"
            maxW="24px"
            minH="1px"
            height={`${most === 0 ? 0 : (100 * bar.value) / most}%`}
            bg={bar.isMuted ? "gray.500" : "blue.solid"}
            borderTopRadius="1px"
            title={`${bar.name}: ${format(bar.value)}${bar.isMuted ? ", undone" : ""}`}
          />
        ))}
      </Flex>
    </Box>
  );
}
