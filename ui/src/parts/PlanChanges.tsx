import { Box, Flex, Heading, SimpleGrid, Stack, Table, Text } from "@chakra-ui/react";
import type { Caution, RestorePlan, SinkChange, SourceChange } from "../api";
import { formatBytes, formatCount } from "../format";
import { lossNumbers, lossSentences } from "../losses";
import { CopyButton } from "./Command";
import { Notice } from "./Loaded";
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

/** What is lost, in three numbers. */
export function LossNumbers({ plan }: { plan: RestorePlan }) {
  return (
    <SimpleGrid as="section" aria-label="What is lost" columns={3} gap={{ base: 2, md: 3 }}>
      {lossNumbers(plan).map(({ value, label, note, isLoss }) => (
        <Box key={label} borderWidth="1px" borderColor={isLoss ? "red.solid" : "border"} borderRadius="md" p={{ base: 2, md: 3 }} minW={0} overflowWrap="anywhere">
          <Text fontSize={{ base: "xl", md: "2xl" }} lineHeight="short" fontWeight="bold" color={isLoss ? "red.fg" : undefined}>
            {value}
          </Text>
          <Text>{label}</Text>
          <Text fontSize="sm" color="fg.muted">
            {note}
          </Text>
        </Box>
      ))}
    </SimpleGrid>
  );
}

/** What is lost for ever, in sentences. */
export function LossSentences({ plan }: { plan: RestorePlan }) {
  const sentences = lossSentences(plan);
  if (sentences.length === 0) return <Text>Nothing is lost for ever.</Text>;
  return (
    <Notice status="error" title="Lost for ever">
      <ul>
        {sentences.map((sentence) => (
          <Text key={sentence} as="li" color="red.fg" fontWeight="semibold" overflowWrap="anywhere">
            {sentence}
          </Text>
        ))}
      </ul>
    </Notice>
  );
}

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

/** States, tables and sources before and after a restore. */
export function PlanChanges({ plan }: { plan: RestorePlan }) {
  return (
    <Stack gap={4}>
      <States plan={plan} />
      <Tables sinks={plan.sinks} left={plan.left} />
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
      <Text width="6rem" flexShrink={0} fontSize="sm" textAlign="end" whiteSpace="nowrap">
        {text}
      </Text>
    </Flex>
  );
}

function sum(numbers: readonly (number | null)[]): number | null {
  return numbers.reduce<number | null>((total, each) => (total === null || each === null ? null : total + each), 0);
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
    // A new state has nothing before.
    before: state.action === "new" ? (state.current_bytes ?? 0) : state.current_bytes,
    after: state.action === "dropped" ? 0 : state.target_bytes,
  }));
  const most = rows.reduce((largest, row) => Math.max(largest, row.before ?? 0, row.after), 0);
  const total = { before: sum(rows.map((row) => row.before)), after: sum(rows.map((row) => row.after)) };
  return (
    <Stack as="section" gap={2}>
      <Heading as="h3" size="sm">
        State: {sizeText(total.before)} before, {sizeText(total.after)} after
      </Heading>
      <ScrollingTable label="State before and after">
        <Table.Body>
          {rows.map((row) => (
            <Table.Row key={row.name}>
              <Table.Cell fontWeight="semibold">{row.name}</Table.Cell>
              <Table.Cell>{row.remark}</Table.Cell>
              <Table.Cell>
                <BarLine name="before" value={row.before} most={most} text={sizeText(row.before)} colour="gray.500" />
                <BarLine name="after" value={row.after} most={most} text={sizeText(row.after)} colour="blue.solid" />
              </Table.Cell>
            </Table.Row>
          ))}
        </Table.Body>
      </ScrollingTable>
    </Stack>
  );
}

function rowsText(rows: number | null): string {
  return rows === null ? "not known" : `${formatCount(rows)} ${rows === 1 ? "row" : "rows"}`;
}

function tableRemark({ mode, current_version: now, target_version: then, rows_removed: rows }: SinkChange): string {
  const version = now === null ? "its version" : `version ${now}`;
  if (mode === "keep") return `stays at ${version}`;
  if (then === null) return rows === 0 ? `stays at ${version}` : `${version}; the version after it is not known`;
  return `${version} → version ${then}`;
}

/** The commits of other writers that a restore undoes. */
function Others({ commits }: { commits: readonly string[] }) {
  if (commits.length === 0) return null;
  return (
    <Box color="red.fg">
      {commits.length === 1 ? "1 commit of another writer is undone:" : `${formatCount(commits.length)} commits of other writers are undone:`}
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

function Tables({ sinks, left }: { sinks: readonly SinkChange[]; left: RestorePlan["left"] }) {
  if (sinks.length === 0 && left.length === 0) return null;
  const most = sinks.reduce((largest, sink) => Math.max(largest, sink.rows_removed ?? 0, sink.rows_returned ?? 0), 0);
  return (
    <Stack as="section" gap={2}>
      <Heading as="h3" size="sm">
        Tables: {rowsText(sum(sinks.map((sink) => sink.rows_removed)))} removed, {rowsText(sum(sinks.map((sink) => sink.rows_returned)))} returned
      </Heading>
      <ScrollingTable label="Tables before and after">
        <Table.Body>
          {sinks.map((sink) => (
            <Table.Row key={sink.uid}>
              <Table.Cell>
                <Text fontWeight="semibold">{sink.uid}</Text>
                {sink.table !== null && (
                  <Flex gap={2} align="center" wrap="wrap">
                    <Text fontSize="xs" color="fg.muted" overflowWrap="anywhere">
                      {sink.table}
                    </Text>
                    <CopyButton text={sink.table} what={`path of the table of ${sink.uid}`} />
                  </Flex>
                )}
              </Table.Cell>
              <Table.Cell>
                {tableRemark(sink)}
                <Others commits={sink.others} />
              </Table.Cell>
              <Table.Cell>
                <BarLine name="removed" value={sink.rows_removed} most={most} text={rowsText(sink.rows_removed)} colour="red.solid" />
                <BarLine name="returned" value={sink.rows_returned} most={most} text={rowsText(sink.rows_returned)} colour="blue.solid" />
              </Table.Cell>
            </Table.Row>
          ))}
          {left.map(({ uid, checkpoint_id: checkpoint }) => (
            <Table.Row key={`left ${uid}`}>
              <Table.Cell fontWeight="semibold">{uid}</Table.Cell>
              <Table.Cell colSpan={2}>keeps all rows: the job does not have this sink; it has output up to checkpoint {checkpoint}</Table.Cell>
            </Table.Row>
          ))}
        </Table.Body>
      </ScrollingTable>
    </Stack>
  );
}

export function offsetText(offset: unknown): string {
  if (offset === null || offset === undefined) return "start";
  return typeof offset === "string" ? offset : JSON.stringify(offset);
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
      <ScrollingTable label="Positions before and after">
        <Table.Header>
          <Table.Row>
            {["Source", "Position now", "Position after", "Files read again", "Input still there"].map((title) => (
              <Table.ColumnHeader key={title}>{title}</Table.ColumnHeader>
            ))}
          </Table.Row>
        </Table.Header>
        <Table.Body>
          {sources.map((source) => (
            <Table.Row key={source.uid}>
              <Table.Cell fontWeight="semibold">{source.uid}</Table.Cell>
              <Table.Cell fontFamily="mono" overflowWrap="anywhere">
                {offsetText(source.current_offset)}
              </Table.Cell>
              <Table.Cell fontFamily="mono" overflowWrap="anywhere">
                {source.action === "removed" ? "removed" : offsetText(source.target_offset)}
              </Table.Cell>
              <Table.Cell>{source.files === null ? "not known" : formatCount(source.files)}</Table.Cell>
              <Table.Cell color={source.available === false ? "red.fg" : undefined}>{HELD.get(source.available)}</Table.Cell>
            </Table.Row>
          ))}
        </Table.Body>
      </ScrollingTable>
    </Stack>
  );
}
