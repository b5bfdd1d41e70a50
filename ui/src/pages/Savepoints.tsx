import { Box, Flex, Heading, SimpleGrid, Stack, Text } from "@chakra-ui/react";
import { useEffect, useRef } from "react";
import { useSearchParams } from "react-router-dom";
import type { Family } from "../airflow";
import { type ActionEntry, type JobState, type Resource, type Savepoint, type SavepointPage, useResource } from "../api";
import { disposeCommand } from "../commands";
import { formatBytes } from "../format";
import { Command, CopyButton } from "../parts/Command";
import { Folded } from "../parts/Folded";
import { CheckpointLink, PageLink, RestoreLink } from "../parts/links";
import { FreshnessNotice, Loaded, Notice } from "../parts/Loaded";
import { Comparison } from "../parts/SavepointComparison";
import { RetentionPlan } from "../parts/RetentionPlan";
import { People } from "../parts/People";
import { Time } from "../parts/Time";
import { factsText } from "./Journal";

/** The savepoints of a job, the newest first. */
export function Savepoints({ address, base, state, family }: { address: string; base: string; state: Resource<JobState>; family: Family }) {
  const resource = useResource<SavepointPage>(`${address}/savepoints`);
  const named = useSearchParams()[0].get("savepoint");
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
              <Card key={savepoint.path} savepoint={savepoint} base={base} jobRoot={state.value?.job_root ?? null} isNamed={savepoint.name === named} />
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

interface CardProps {
  savepoint: Savepoint;
  base: string;
  jobRoot: string | null;
  /** Whether the address names it. */
  isNamed: boolean;
}

function Card({ savepoint, base, jobRoot, isNamed }: CardProps) {
  const { name, checkpoint_id: checkpoint } = savepoint;
  const card = useRef<HTMLElement>(null);
  useEffect(() => {
    if (isNamed) card.current?.scrollIntoView({ block: "center" });
  }, [isNamed]);
  return (
    <Box asChild borderWidth="1px" borderRadius="md" p={4} minW={0} borderColor={isNamed ? "blue.solid" : undefined}>
      <article ref={card} aria-label={`Savepoint ${name}`} aria-current={isNamed ? "true" : undefined}>
        <Heading as="h2" size="md" overflowWrap="anywhere">
          {name}
        </Heading>
        <Text>
          {formatBytes(savepoint.size_bytes)}, {savepoint.format}
          {savepoint.origin !== null && `, ${savepoint.origin}`}
          {savepoint.drained && ", after all input"}
        </Text>
        <Text color="fg.muted">
          {checkpoint === null ? "no checkpoint" : <CheckpointLink id={checkpoint}>checkpoint {checkpoint}</CheckpointLink>}
          {savepoint.made_at !== null && (
            <>
              , <Time at={savepoint.made_at} />
            </>
          )}
        </Text>
        <Text overflowWrap="anywhere">
          <People by={savepoint.by} requestedBy={savepoint.requested_by} />
          {savepoint.reason !== null && `: ${savepoint.reason}`}
        </Text>
        {savepoint.note !== null && <Text overflowWrap="anywhere">Note: {savepoint.note}</Text>}
        <Owner savepoint={savepoint} />
        <Text fontFamily="mono" fontSize="xs" overflowWrap="anywhere" my={2}>
          {savepoint.path}
        </Text>
        <Flex gap={2} wrap="wrap" align="center">
          <CopyButton text={savepoint.path} what={`path of ${name}`} />
          <RestoreLink base={base} target={name} size="xs" />
          <PageLink to={`${base}/savepoints?from=${encodeURIComponent(name)}`}>Compare</PageLink>
        </Flex>
        {jobRoot !== null && <Disposal savepoint={savepoint} jobRoot={jobRoot} />}
      </article>
    </Box>
  );
}

/** The job that deletes the savepoint. */
function Owner({ savepoint: { claimed_by: owner, claimed_at: at } }: { savepoint: Savepoint }) {
  if (owner === null) return null;
  return (
    <Text color="orange.fg" overflowWrap="anywhere">
      claimed by {owner.job}, which deletes it
      {at !== null && (
        <>
          ; since <Time at={at} />
        </>
      )}
    </Text>
  );
}

/** How a person deletes the savepoint for ever. */
function Disposal({ savepoint: { name, size_bytes: bytes, claimed_by: owner }, jobRoot }: { savepoint: Savepoint; jobRoot: string }) {
  return (
    <Box mt={2}>
      <Folded title={`Delete ${name}`}>
        {() => (
          <Stack gap={2} mt={2}>
            <Text color="red.fg" fontWeight="semibold">
              This deletes 1 savepoint of {formatBytes(bytes)} for ever: nothing can be restored from it any more.
            </Text>
            {owner !== null && <Text>{owner.job} has claimed it, and deletes it itself.</Text>}
            <Command text={disposeCommand(jobRoot, name)} />
          </Stack>
        )}
      </Folded>
    </Box>
  );
}
