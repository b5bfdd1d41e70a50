import { Box, Flex, Heading, SimpleGrid, Stack, Text } from "@chakra-ui/react";
import type { Family } from "../airflow";
import { type ActionEntry, type JobState, type Resource, type Savepoint, type SavepointPage, useResource } from "../api";
import { formatBytes } from "../format";
import { CopyButton } from "../parts/Command";
import { RestoreLink } from "../parts/links";
import { FreshnessNotice, Loaded, Notice } from "../parts/Loaded";
import { Comparison } from "../parts/SavepointComparison";
import { RetentionPlan } from "../parts/RetentionPlan";
import { peopleText } from "../parts/People";
import { Time } from "../parts/Time";
import { factsText } from "./Journal";

/** The savepoints of a job, the newest first. */
export function Savepoints({ address, base, state, family }: { address: string; base: string; state: Resource<JobState>; family: Family }) {
  const resource = useResource<SavepointPage>(`${address}/savepoints`);
  return (
    <Loaded resource={resource}>
      {(page) => (
        <Stack gap={4}>
          <FreshnessNotice of={page} />
          {page.savepoints.length === 0 && page.elsewhere.length === 0 && (
            <Notice status="info" title="The job has no savepoint">
              A checkpoint is deleted once newer ones replace it. A savepoint stays until a person or a retention policy deletes it.
            </Notice>
          )}
          <SimpleGrid columns={{ base: 1, md: 2, "2xl": 4 }} gap={4}>
            {page.savepoints.map((savepoint) => (
              <Card key={savepoint.path} savepoint={savepoint} base={base} />
            ))}
          </SimpleGrid>
          {page.older && <Notice status="info" title="The job root has older savepoints, which are not shown" />}
          <Comparison address={address} savepoints={page.savepoints} />
          {state.value !== null && <RetentionPlan address={address} base={base} job={state.value} savepoints={page.savepoints} dag={family.dag("retention")} isKnown={family.isKnown} />}
          <Elsewhere entries={page.elsewhere} />
        </Stack>
      )}
    </Loaded>
  );
}

/** Savepoints outside of the job root, of which only the history is known. */
function Elsewhere({ entries }: { entries: readonly ActionEntry[] }) {
  if (entries.length === 0) return null;
  return (
    <Stack as="section" gap={2}>
      <Heading as="h2" size="md">
        Outside of the job root
      </Heading>
      <ul>
        {entries.map((entry, index) => (
          <li key={index}>
            <Text overflowWrap="anywhere">
              {entry.ended_at !== null && <Time at={entry.ended_at} full />} {factsText(entry.facts)}
            </Text>
          </li>
        ))}
      </ul>
    </Stack>
  );
}

function Card({ savepoint, base }: { savepoint: Savepoint; base: string }) {
  const { name, checkpoint_id: checkpoint, claimed_by: owner } = savepoint;
  return (
    <Box as="article" borderWidth="1px" borderRadius="md" p={4} minW={0}>
      <Heading as="h2" size="md" overflowWrap="anywhere">
        {name}
      </Heading>
      <Text>
        {formatBytes(savepoint.size_bytes)}, {savepoint.format}
        {savepoint.origin !== null && `, ${savepoint.origin}`}
      </Text>
      <Text color="fg.muted">
        {checkpoint === null ? "no checkpoint" : `checkpoint ${checkpoint}`}
        {savepoint.made_at !== null && (
          <>
            , <Time at={savepoint.made_at} />
          </>
        )}
      </Text>
      <Text overflowWrap="anywhere">
        {peopleText(savepoint.by, savepoint.requested_by)}
        {savepoint.reason !== null && `: ${savepoint.reason}`}
      </Text>
      {owner !== null && <Text color="orange.fg">claimed by {owner.job}, which deletes it</Text>}
      <Text fontFamily="mono" fontSize="xs" overflowWrap="anywhere" my={2}>
        {savepoint.path}
      </Text>
      <Flex gap={2} wrap="wrap">
        <CopyButton text={savepoint.path} what={`path of ${name}`} />
        <RestoreLink base={base} target={name} size="xs" />
      </Flex>
    </Box>
  );
}
