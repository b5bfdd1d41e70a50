import { Box, Flex, Text } from "@chakra-ui/react";
import type { CheckpointEntry } from "../api";
import { formatDuration } from "../format";

interface Phase {
  name: string;
  ms: number;
  colour: string;
}

/** The phases of a checkpoint in their order, without those that took no time. What no phase has is "other batches". */
export function phasesOf(entry: CheckpointEntry): Phase[] {
  const phases: Phase[] = [
    { name: "trigger", ms: entry.trigger_ms, colour: "gray.500" },
    { name: "rows", ms: entry.start_delay_ms, colour: "blue.solid" },
    { name: "alignment", ms: entry.alignment_ms, colour: "orange.solid" },
    { name: "snapshot", ms: entry.sync_ms, colour: "teal.solid" },
    { name: "storing files", ms: entry.async_ms, colour: "green.solid" },
    { name: "commit", ms: entry.commit_ms, colour: "purple.solid" },
    { name: "publication", ms: entry.publish_ms, colour: "pink.solid" },
  ];
  const known = phases.reduce((sum, { ms }) => sum + ms, 0);
  phases.push({ name: "other batches", ms: Math.max(0, entry.duration_ms - known), colour: "blue.muted" });
  return phases.filter(({ ms }) => ms >= 0.05);
}

/** The duration of a checkpoint as one bar with its phases, whose names and times are below it. */
export function DurationBar({ entry }: { entry: CheckpointEntry }) {
  const phases = phasesOf(entry);
  const total = phases.reduce((sum, { ms }) => sum + ms, 0);
  if (phases.length === 0) return null;
  const texts = phases.map(({ name, ms }) => `${name} ${formatDuration(ms)}`);
  return (
    <Box as="figure" minW={0} fontSize="xs">
      <Flex role="img" aria-label={`Duration ${formatDuration(entry.duration_ms)}: ${texts.join(", ")}`} height="12px" gap="1px" borderRadius="sm" overflow="hidden">
        {phases.map(({ name, ms, colour }) => (
          <Box key={name} bg={colour} minW="2px" width={`${(100 * ms) / total}%`} title={`${name}: ${formatDuration(ms)}`} />
        ))}
      </Flex>
      <Flex as="figcaption" wrap="wrap" columnGap={3} mt={1} color="fg.muted">
        {phases.map(({ name, ms, colour }) => (
          <Flex key={name} align="center" gap={1}>
            <Box width="8px" height="8px" borderRadius="2px" bg={colour} aria-hidden="true" />
            <Text as="span" whiteSpace="nowrap">
              {name} {formatDuration(ms)}
            </Text>
          </Flex>
        ))}
      </Flex>
    </Box>
  );
}
