import { Box, Flex, Heading, Stack, Text } from "@chakra-ui/react";
import type { RestorePlan, SinkChange, SourceChange } from "../api";
import { counted, formatBytes, formatCount, offsetText } from "../format";
import { nounOf, type Rows, rowsRemoved, rowsRemovedFrom, rowsText, stayingText, staysAsItIs, sum } from "../losses";
import { CopiedPath } from "./Command";
import { ScrollingTable } from "./ScrollingTable";
import { Time } from "./Time";

/** From which point to which a plan goes. */
export function PlanTarget({ plan }: { plan: RestorePlan }) {
  const at = plan.savepoint_made_at ?? plan.target_committed_at;
  return (
    <Text overflowWrap="anywhere">
      <strong>{plan.job}</strong> goes from checkpoint {plan.checkpoint_id} to <strong>{plan.target_label}</strong>
      {at !== null && (
        <>
          {plan.savepoint_made_at === null ? ", committed " : ", made "}
          <Time at={at} />
        </>
      )}
      .
    </Text>
  );
}

/** States, tables and sources before and after a restore. */
export function PlanChanges({ plan }: { plan: RestorePlan }) {
  return (
    <Stack gap={4}>
      <States plan={plan} />
      <Sinks plan={plan} />
      <Positions sources={plan.sources} />
    </Stack>
  );
}

/** A number as a bar, with its text. */
function BarLine({ name, value, most, text, colour }: { name: string; value: number | null; most: number; text: string; colour: string }) {
  return (
    <Flex align="center" gap={2} minW="16rem">
      <Text width="4.5rem" flexShrink={0} fontSize="xs" color="fg.muted">
        {name}
      </Text>
      <Box flex="1" minW="4rem" height="10px" bg="bg.muted" borderRadius="sm" aria-hidden="true">
        <Box height="full" borderRadius="sm" bg={colour} width={`${value === null || most === 0 ? 0 : (100 * value) / most}%`} />
      </Box>
      <Text minW="6rem" flexShrink={0} fontSize="sm" textAlign="end" whiteSpace="nowrap">
        {text}
      </Text>
    </Flex>
  );
}

function sizeText(bytes: number | null): string {
  return bytes === null ? "not known" : formatBytes(bytes);
}

const ACTIONS = { matched: "is restored", new: "begins empty", dropped: "is dropped" } as const;

function States({ plan: { states } }: { plan: RestorePlan }) {
  if (states.length === 0) return null;
  const rows = states.map((state) => ({
    name: state.uid,
    remark: `${ACTIONS[state.action]}${state.olds.length === 0 ? "" : `, from ${state.olds.join(", ")}`}`,
    before: state.current_bytes,
    after: state.action === "dropped" ? 0 : state.target_bytes,
  }));
  const most = rows.reduce((largest, row) => Math.max(largest, row.before ?? 0, row.after), 0);
  const total = { before: sum(rows.map((row) => row.before)), after: sum(rows.map((row) => row.after)) };
  return (
    <Stack as="section" gap={2}>
      <Heading as="h3" size="sm">
        State: {sizeText(total.before)} before, {sizeText(total.after)} after
      </Heading>
      <ScrollingTable label="State before and after" columns={["Operator", "Change", "Size"]}>
        {rows.map((row) => (
          <tr key={row.name}>
            <td className="name">{row.name}</td>
            <td>{row.remark}</td>
            <td>
              <BarLine name="before" value={row.before} most={most} text={sizeText(row.before)} colour="gray.500" />
              <BarLine name="after" value={row.after} most={most} text={sizeText(row.after)} colour="blue.solid" />
            </td>
          </tr>
        ))}
      </ScrollingTable>
    </Stack>
  );
}

function sinkRemark(sink: SinkChange): string {
  const { current_version: now, target_version: then, rows_removed: rows } = sink;
  const version = now === null ? "its version" : `version ${now}`;
  if (staysAsItIs(sink)) {
    const since = sink.rows_written_since === null || sink.rows_written_since === 0 ? "" : `, with ${counted(sink.rows_written_since, "row")} written since the target`;
    return `${stayingText(sink) ?? `stays at ${version}`}${since}`;
  }
  if (then === null) return rows === 0 ? `stays at ${version}` : `${version}; the version after it is not known`;
  return `${version} → version ${then}`;
}

/** The commits of other writers that a restore undoes. */
function Others({ commits }: { commits: readonly string[] }) {
  if (commits.length === 0) return null;
  return (
    <Box color="red.fg">
      {counted(commits.length, "commit of another writer is", "commits of other writers are")} undone:
      <ul>
        {commits.slice(0, MOST_COMMITS).map((commit, index) => (
          <Text as="li" key={index} fontSize="sm" overflowWrap="anywhere">
            {commit}
          </Text>
        ))}
        {commits.length > MOST_COMMITS && <li>{formatCount(commits.length - MOST_COMMITS)} more</li>}
      </ul>
    </Box>
  );
}

const MOST_COMMITS = 10;

function rowsReturned(sink: SinkChange): number | null {
  return staysAsItIs(sink) ? 0 : sink.rows_returned;
}

function exactly(rows: number | null): Rows {
  return { exact: rows, most: rows };
}

function Sinks({ plan }: { plan: RestorePlan }) {
  const { sinks, left } = plan;
  if (sinks.length === 0 && left.length === 0) return null;
  const most = sinks.reduce((largest, sink) => Math.max(largest, rowsRemovedFrom(sink).most ?? 0, sink.rows_returned ?? 0), 0);
  return (
    <Stack as="section" gap={2}>
      <Heading as="h3" size="sm">
        {nounOf(sinks) === "table" ? "Tables" : "Sinks"}: {rowsText(rowsRemoved(plan))} removed, {rowsText(exactly(sum(sinks.map(rowsReturned))))} returned
      </Heading>
      <ScrollingTable label="Tables before and after" columns={["Sink", "Version", "Rows"]}>
        {sinks.map((sink) => (
          <tr key={sink.uid}>
            <td>
              <Text fontWeight="semibold">{sink.uid}</Text>
              {sink.kind !== "table" && sink.kind !== "sink" && <Text fontSize="xs">{sink.kind}</Text>}
              {sink.table !== null && <CopiedPath text={sink.table} what={`location of ${sink.uid}`} size="cell" />}
            </td>
            <td>
              {sinkRemark(sink)}
              <Others commits={sink.others} />
            </td>
            <td>
              <BarLine name="removed" value={rowsRemovedFrom(sink).most} most={most} text={rowsText(rowsRemovedFrom(sink))} colour={rowsRemovedFrom(sink).exact === null ? "gray.500" : "red.solid"} />
              <BarLine name="returned" value={rowsReturned(sink)} most={most} text={rowsText(exactly(rowsReturned(sink)))} colour="blue.solid" />
            </td>
          </tr>
        ))}
        {left.map(({ uid, checkpoint_id: checkpoint }) => (
          <tr key={`left ${uid}`}>
            <td className="name">{uid}</td>
            <td colSpan={2}>keeps all rows: the job does not have this sink; it has output up to checkpoint {checkpoint}</td>
          </tr>
        ))}
      </ScrollingTable>
    </Stack>
  );
}

const HELD = new Map<boolean | null, string>([
  [true, "yes"],
  [false, "no"],
  [null, "not known"],
]);

function Positions({ sources }: { sources: readonly SourceChange[] }) {
  if (sources.length === 0) return null;
  return (
    <Stack as="section" gap={2}>
      <Heading as="h3" size="sm">
        Input that is read again
      </Heading>
      <ScrollingTable label="Positions before and after" columns={["Source", "Position now", "Position after", "Files read again", "Input still there"]}>
        {sources.map((source) => (
          <tr key={source.uid}>
            <td className="name">{source.uid}</td>
            <td className="code">
              {offsetText(source.current_offset)}
            </td>
            <td className="code">
              {source.action === "removed" ? "removed" : offsetText(source.target_offset)}
            </td>
            <td>{source.files === null ? "not known" : formatCount(source.files)}</td>
            <td className={source.available === false ? "bad" : undefined}>{HELD.get(source.available)}</td>
          </tr>
        ))}
      </ScrollingTable>
    </Stack>
  );
}
