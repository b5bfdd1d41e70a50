import { Box, SimpleGrid, Stack, Text } from "@chakra-ui/react";
import { useState } from "react";
import { entryOf, type JobState, type RestorePlan } from "../api";
import type { RestoreOptions } from "../restoreOptions";
import { CheckField, CheckGroup, SelectField, TextField } from "./Fields";

/** The names in a job and in a plan that options are about. */
export interface RestoreNames {
  sinks: readonly string[];
  operators: readonly string[];
  sources: readonly string[];
}

function unique(names: readonly string[]): string[] {
  return [...new Set(names)].sort((a, b) => a.localeCompare(b));
}

/** The names of the job at its newest checkpoint and of the plan, which also has the target's. */
export function namesOf(job: JobState, plan: RestorePlan | null): RestoreNames {
  return {
    sinks: unique([...Object.keys(job.sinks), ...(plan?.sinks ?? []).map((sink) => sink.uid), ...(plan?.left ?? []).map((sink) => sink.uid)]),
    operators: unique([...job.operators.map((operator) => operator.uid), ...(plan?.states ?? []).map((state) => state.uid)]),
    sources: unique([...job.sources.map((source) => source.uid), ...(plan?.sources ?? []).map((source) => source.uid)]),
  };
}

interface Props {
  options: RestoreOptions;
  names: RestoreNames;
  /** Whether the target is a savepoint, which the job can claim. */
  isSavepoint: boolean;
  onChange: (options: RestoreOptions) => void;
}

const TABLES = [
  ["restore", "restore tables with the state"],
  ["keep", "keep the tables' current content"],
] as const;
const CLAIMS = [
  ["no-claim", "leave the savepoint as it is"],
  ["claim", "the job owns the savepoint, and deletes it later"],
] as const;

/** The options of a restore, folded: most restores need none. */
export function RestoreForm({ options, names, isSavepoint, onChange }: Props) {
  const change = (part: Partial<RestoreOptions>) => {
    onChange({ ...options, ...part });
  };
  return (
    <Box as="details" borderWidth="1px" borderRadius="md" p={3}>
      <Box as="summary" cursor="pointer" fontWeight="medium">
        2. Options
      </Box>
      <Stack gap={5} mt={3}>
        <SimpleGrid columns={{ base: 1, md: 2 }} gap={4}>
          <SelectField
            label="Tables"
            value={options.sinks}
            choices={TABLES}
            onChange={(sinks) => {
              change({ sinks });
            }}
          />
          {isSavepoint && (
            <SelectField
              label="Claim mode"
              value={options.claimMode}
              choices={CLAIMS}
              help="A claimed savepoint is deleted once its state is not one of the retained checkpoints."
              onChange={(claimMode) => {
                change({ claimMode });
              }}
            />
          )}
        </SimpleGrid>
        {isSavepoint && options.claimMode === "claim" && (
          <Text color="red.fg" fontWeight="semibold" overflowWrap="anywhere">
            The job then owns 1 savepoint, {options.target}, and deletes it for ever.
          </Text>
        )}
        {options.sinks === "restore" && (
          <CheckGroup
            label="Tables that keep their content"
            names={names.sinks}
            chosen={options.keepTables}
            onChange={(keepTables) => {
              change({ keepTables });
            }}
          />
        )}
        <CheckGroup
          label="Operators whose state is dropped"
          names={names.operators}
          chosen={options.drop}
          onChange={(drop) => {
            change({ drop });
          }}
        />
        <NewNames options={options} names={names} change={change} />
        <Positions options={options} names={names} change={change} />
        {isSavepoint && (
          <CheckField
            label="Allow a savepoint of another job"
            value={options.fromOtherJob}
            onChange={(fromOtherJob) => {
              change({ fromOtherJob });
            }}
          />
        )}
      </Stack>
    </Box>
  );
}

interface PartProps {
  options: RestoreOptions;
  names: RestoreNames;
  change: (part: Partial<RestoreOptions>) => void;
}

function NewNames({ options, names, change }: PartProps) {
  const uids = [...names.operators, ...names.sources.filter((uid) => !names.operators.includes(uid))];
  if (uids.length === 0) return null;
  return (
    <fieldset>
      <Text as="legend" fontWeight="medium" mb={1}>
        New names of operators and sources
      </Text>
      <SimpleGrid columns={{ base: 1, md: 2, xl: 3 }} gap={3}>
        {uids.map((uid) => (
          <TextField
            key={uid}
            label={`New name of ${uid}`}
            value={entryOf(options.newNames, uid) ?? ""}
            onChange={(name) => {
              change({ newNames: { ...options.newNames, [uid]: name } });
            }}
          />
        ))}
      </SimpleGrid>
    </fieldset>
  );
}

const POSITIONS = [
  ["", "of the target"],
  ["earliest", "earliest: from its start"],
  ["latest", "latest: only new input"],
  ["keep", "keep the present position"],
  ["other", "another position"],
] as const;
type PositionKind = (typeof POSITIONS)[number][0];

function kindOf(position: string | undefined): PositionKind {
  if (position === undefined || position === "") return "";
  return position === "earliest" || position === "latest" || position === "keep" ? position : "other";
}

function Positions({ options, names, change }: PartProps) {
  // Sources with a field: its text decides nothing, as it may be empty at first, and "latest" for a moment.
  const [written, setWritten] = useState<ReadonlySet<string>>(new Set());
  if (names.sources.length === 0) return null;
  const set = (uid: string, position: string) => {
    change({ positions: { ...options.positions, [uid]: position } });
  };
  return (
    <SimpleGrid columns={{ base: 1, md: 2 }} gap={3}>
      {names.sources.map((uid) => {
        const kind = written.has(uid) ? "other" : kindOf(entryOf(options.positions, uid));
        return (
          <Stack key={uid} gap={2}>
            <SelectField
              label={`Position of ${uid}`}
              value={kind}
              choices={POSITIONS}
              onChange={(chosen) => {
                setWritten(new Set([...written].filter((each) => each !== uid).concat(chosen === "other" ? [uid] : [])));
                set(uid, chosen === "other" ? "" : chosen);
              }}
            />
            {kind === "other" && (
              <TextField
                label={`Position of ${uid} as text`}
                value={entryOf(options.positions, uid) ?? ""}
                help="timestamp:2026-01-31T03:00 (in UTC, or with an offset such as +01:00), or the position's JSON. While it is empty, the position of the target is used."
                onChange={(position) => {
                  set(uid, position);
                }}
              />
            )}
          </Stack>
        );
      })}
    </SimpleGrid>
  );
}
