import { Button, Heading, SimpleGrid, Stack, Text } from "@chakra-ui/react";
import { useState } from "react";
import { useSearchParams } from "react-router-dom";
import type { Family } from "../airflow";
import { type ActionEntry, isWhole, type JobState, type Pages, type Resource, type SavepointPage, usePagesOf } from "../api";
import { useDagChoice } from "../parts/DagChoice";
import { FurtherFacts } from "../parts/Facts";
import { FreshnessNotice, Loaded, Notice } from "../parts/Loaded";
import { RetentionPlan } from "../parts/RetentionPlan";
import { SavepointCard } from "../parts/SavepointCard";
import { Comparison } from "../parts/SavepointComparison";
import { ShowMore } from "../parts/ShowMore";
import { Time } from "../parts/Time";

const MOST_CARDS = 24;

/** The savepoints of a job, the newest first. */
export function Savepoints({ address, base, state, family }: { address: string; base: string; state: Resource<JobState>; family: Family }) {
  const [asked, setAsked] = useState(1);
  const named = useSearchParams()[0].get("savepoint");
  // A savepoint that a link names may be on any page.
  const resource = usePagesOf<SavepointPage>(`${address}/savepoints`, named === null ? { most: asked } : {});
  const { dag, field } = useDagChoice(family, "retention");
  const merged = { ...resource, value: resource.value === null ? null : { page: mergedOf(resource.value), read: resource.value.pages.length } };
  return (
    <Loaded resource={merged}>
      {({ page, read }) => (
        <Stack gap={4}>
          <FreshnessNotice of={page} />
          {field}
          {page.savepoints.length === 0 && page.elsewhere.length === 0 && (
            <Notice status="info" title={isWhole(page) ? "The job has no savepoint" : "The job root has no savepoint"}>
              A checkpoint is deleted once newer ones replace it. A savepoint stays until a person or a retention policy deletes it.
            </Notice>
          )}
          <ShowMore all={page.savepoints} step={MOST_CARDS} least={1 + page.savepoints.findIndex((each) => each.name === named)} what="savepoints">
            {(shown) => (
              <SimpleGrid columns={{ base: 1, md: 2, "2xl": 4 }} gap={4}>
                {shown.map((savepoint) => (
                  <SavepointCard
                    key={savepoint.path}
                    savepoint={savepoint}
                    base={base}
                    jobRoot={state.value?.job_root ?? null}
                    dag={dag}
                    isKnown={family.isKnown}
                    isNamed={savepoint.name === named}
                  />
                ))}
              </SimpleGrid>
            )}
          </ShowMore>
          {page.older && (
            <Button
              size="sm"
              variant="outline"
              alignSelf="start"
              loading={read < asked}
              onClick={() => {
                setAsked(read + 1);
              }}
            >
              Read older savepoints
            </Button>
          )}
          <Comparison address={address} savepoints={page.savepoints} />
          {state.value !== null && <RetentionPlan address={address} base={base} job={state.value} savepoints={page.savepoints} dag={dag} isKnown={family.isKnown} />}
          <Elsewhere entries={page.elsewhere} />
        </Stack>
      )}
    </Loaded>
  );
}

/** The savepoints of all pages, each once: a new one moves the others towards the next page. */
function mergedOf({ pages, isWhole: isAll }: Pages<SavepointPage>): SavepointPage {
  const byPath = new Map(pages.flatMap(({ savepoints }) => savepoints.map((each) => [each.path, each])));
  return { ...pages[0], savepoints: [...byPath.values()], older: !isAll };
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
              {entry.ended_at !== null && <Time at={entry.ended_at} full />} {typeof entry.facts.savepoint === "string" && <strong>{entry.facts.savepoint}</strong>}{" "}
              <FurtherFacts facts={entry.facts} />
            </Text>
          </li>
        ))}
      </ul>
    </Stack>
  );
}
