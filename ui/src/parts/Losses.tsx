import { Box, SimpleGrid, Text } from "@chakra-ui/react";
import type { Caution, RestorePlan } from "../api";
import { changesNothing, type LossNumber, lossNumbers, lossSentences, unknownLosses } from "../losses";
import { Notice } from "./Loaded";

/** The losses, in up to three numbers. */
export function LossNumbers({ numbers }: { numbers: readonly LossNumber[] }) {
  return (
    // On a phone a number and its words are one line, so that all three are above the buttons.
    <SimpleGrid as="section" aria-label="What is lost" columns={{ base: 1, md: 3 }} gap={{ base: 1, md: 3 }}>
      {numbers.map(({ value, label, note, isLoss }) => (
        <Box key={label} display={{ base: "flex", md: "block" }} gap={2} alignItems="baseline" borderWidth="1px" borderColor={isLoss ? "red.solid" : "border"} borderRadius="md" px={{ base: 2, md: 3 }} py={{ base: 1, md: 3 }}>
          <Text fontSize={{ base: "lg", md: "2xl" }} lineHeight="short" fontWeight="bold" color={isLoss ? "red.fg" : undefined}>
            {value}
          </Text>
          <Box minW={0} overflowWrap="anywhere" fontSize={{ base: "sm", md: "md" }}>
            <Text>{label}</Text>
            {note !== "" && (
              <Text fontSize={{ base: "xs", md: "sm" }} color="fg.muted">
                {note}
              </Text>
            )}
          </Box>
        </Box>
      ))}
    </SimpleGrid>
  );
}

/** Losses for ever, and possible ones, in sentences. */
export function LossSentences({ plan }: { plan: RestorePlan }) {
  const [sentences, unknown] = [lossSentences(plan), unknownLosses(plan)];
  return (
    <>
      {sentences.length > 0 && (
        <Notice status="error" title="Lost for ever">
          <ul>
            {sentences.map((sentence) => (
              <Text key={sentence} as="li" color="red.fg" fontWeight="semibold" overflowWrap="anywhere">
                {sentence}
              </Text>
            ))}
          </ul>
        </Notice>
      )}
      {sentences.length === 0 && <Text>{unknown.length === 0 ? "Nothing is lost for ever." : "Nothing is known to be lost for ever."}</Text>}
      {unknown.map((sentence) => (
        <Text key={sentence} color="fg.muted" overflowWrap="anywhere">
          {sentence}
        </Text>
      ))}
    </>
  );
}

/** The losses, in numbers and sentences; of a plan to the present point, that nothing changes. */
export function Losses({ plan }: { plan: RestorePlan }) {
  if (changesNothing(plan)) return <Notice status="info" title="Nothing changes: the job is at this point" />;
  return (
    <>
      <LossNumbers numbers={lossNumbers(plan)} />
      <LossSentences plan={plan} />
    </>
  );
}

/** What to read before a restore. */
export function Cautions({ cautions }: { cautions: readonly Caution[] }) {
  if (cautions.length === 0) return null;
  return (
    <Notice status="warning" title="Cautions">
      <ul>
        {cautions.map(({ about, text }, index) => (
          <Text key={index} as="li" overflowWrap="anywhere">
            {about !== "" && <strong>{about}: </strong>}
            {text}
          </Text>
        ))}
      </ul>
    </Notice>
  );
}
