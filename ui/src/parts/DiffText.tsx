import { Box, Text } from "@chakra-ui/react";

const COLOURS: Record<string, string> = { "+": "green.fg", "-": "red.fg", "@": "fg.muted" };
const MOST_LINES = 2000;

/** A unified difference of two texts. The signs at the begin of each line say the same as the colours. */
export function DiffText({ label, text }: { label: string; text: string }) {
  const lines = text.replace(/\n$/, "").split("\n");
  return (
    <Box as="pre" tabIndex={0} role="region" aria-label={label} overflow="auto" maxH="24rem" fontFamily="mono" fontSize="xs" borderWidth="1px" borderRadius="md" p={3}>
      {lines.slice(0, MOST_LINES).map((line, index) => (
        <Text key={index} as="span" display="block" color={COLOURS[line.charAt(0)]}>
          {line === "" ? " " : line}
        </Text>
      ))}
      {lines.length > MOST_LINES && (
        <Text as="span" display="block" color="fg.muted">
          {lines.length - MOST_LINES} more lines
        </Text>
      )}
    </Box>
  );
}
