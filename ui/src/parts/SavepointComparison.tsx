import { Heading, SimpleGrid, Stack, Text } from "@chakra-ui/react";
import { useEffect, useRef } from "react";
import { useSearchParams } from "react-router-dom";
import { type ComparedOperator, type Savepoint, type SavepointDiff, entryOf, useResource } from "../api";
import { formatBytes, formatChange, formatCount, offsetText } from "../format";
import { SelectField } from "./Fields";
import { FreshnessNotice, Loaded, Notice } from "./Loaded";
import { ScrollingTable } from "./ScrollingTable";

/** A choice of two savepoints, and what differs between them. The choice is in the address. */
export function Comparison({ address, savepoints }: { address: string; savepoints: readonly Savepoint[] }) {
  const [query, setQuery] = useSearchParams();
  const section = useRef<HTMLElement>(null);
  const [from, to] = [query.get("from") ?? "", query.get("to") ?? ""];
  useEffect(() => {
    // The link that chooses the first one is in a card above.
    if (from !== "" && to === "") section.current?.scrollIntoView({ block: "center" });
  }, [from, to]);
  if (savepoints.length === 0) return null;
  if (savepoints.length === 1) {
    return (
      <section ref={section} aria-label="Comparison">
        <Text color="fg.muted">There is one savepoint: a comparison needs two.</Text>
      </section>
    );
  }
  // The address can name one that is not among the shown ones.
  const names = [...new Set([...savepoints.map(({ name }) => name), ...[from, to].filter((name) => name !== "")])];
  const choices = [["", "choose one"], ...names.map((name) => [name, name] as const)] as [string, string][];
  const choose = (part: Record<string, string>) => {
    setQuery((before) => ({ ...Object.fromEntries(before), ...part }), { replace: true });
  };
  return (
    <section ref={section} aria-label="Comparison">
      <Stack gap={3}>
        <Heading as="h2" size="md">
          Compare two savepoints
        </Heading>
        <SimpleGrid columns={{ base: 1, md: 2 }} gap={3} maxW="3xl">
          <SelectField
            label="From"
            value={from}
            choices={choices}
            onChange={(name) => {
              choose({ from: name });
            }}
          />
          <SelectField
            label="To"
            value={to}
            choices={choices}
            onChange={(name) => {
              choose({ to: name });
            }}
          />
        </SimpleGrid>
        {from !== "" && from === to && <Notice status="info" title="Choose two different savepoints" />}
        {from !== "" && to !== "" && from !== to && <Difference address={address} from={from} to={to} />}
      </Stack>
    </section>
  );
}

function Difference({ address, from, to }: { address: string; from: string; to: string }) {
  const query = new URLSearchParams({ from, to }).toString();
  const resource = useResource<SavepointDiff>(`${address}/savepoint-diff?${query}`, 60_000);
  return (
    <Loaded resource={resource}>
      {(diff) => (
        <Stack gap={3}>
          <FreshnessNotice of={diff} />
          <Operators operators={diff.operators} />
          <Positions diff={diff} />
        </Stack>
      )}
    </Loaded>
  );
}

function filesText({ added_files: added, removed_files: removed, common_files: common }: ComparedOperator): string {
  return `${formatCount(added)} added, ${formatCount(removed)} removed, ${formatCount(common)} in both`;
}

/** Entries of an operator; undefined for one that the savepoint does not have, which has no size either. */
function entriesOf(bytes: number | null, entries: number | null): number | null | undefined {
  return bytes === null ? undefined : entries;
}

function Operators({ operators }: { operators: readonly ComparedOperator[] }) {
  if (operators.length === 0) return <Text>Neither savepoint has state.</Text>;
  return (
    <ScrollingTable label="State in both savepoints" columns={["Operator", "State", "Size", "Entries", "Files"]}>
      {operators.flatMap((operator) => [
        <tr key={operator.uid}>
          <td className="name">{operator.uid}</td>
          <td>all</td>
          <td>{formatChange(operator.old_bytes ?? undefined, operator.new_bytes ?? undefined, formatBytes)}</td>
          <td>{formatChange(entriesOf(operator.old_bytes, operator.old_entries), entriesOf(operator.new_bytes, operator.new_entries), formatCount)}</td>
          <td>{filesText(operator)}</td>
        </tr>,
        ...operator.states.map(({ name, kind, old_type: before, new_type: after }) => (
          <tr key={`${operator.uid} ${kind} ${name}`}>
            <td />
            <td>{name}</td>
            <td colSpan={3}>
              {kind}: {before === after ? before : `${before ?? "none"} → ${after ?? "none"}`}
            </td>
          </tr>
        )),
      ])}
    </ScrollingTable>
  );
}

function positionText(offsets: Savepoint["offsets"], uid: string): string {
  const offset = entryOf(offsets, uid);
  return offset === undefined ? "none" : offsetText(offset);
}

function versionText(position: Savepoint["sinks"][string] | undefined): string {
  if (position === undefined) return "none";
  return position.version === null ? "not known" : `version ${position.version}`;
}

/** All names of two objects, in order. */
function namesOf(one: object, other: object): string[] {
  return [...new Set([...Object.keys(one), ...Object.keys(other)])].sort((a, b) => a.localeCompare(b));
}

function Positions({ diff: { old: before, new: after } }: { diff: SavepointDiff }) {
  const sources = namesOf(before.offsets, after.offsets);
  const sinks = namesOf(before.sinks, after.sinks);
  if (sources.length === 0 && sinks.length === 0) return null;
  return (
    <ScrollingTable label="Positions in both savepoints" columns={["Source or sink", "From", "To"]}>
      {sources.map((uid) => (
        <tr key={`source ${uid}`}>
          <td>source {uid}</td>
          <td className="code">{positionText(before.offsets, uid)}</td>
          <td className="code">{positionText(after.offsets, uid)}</td>
        </tr>
      ))}
      {sinks.map((uid) => (
        <tr key={`sink ${uid}`}>
          <td>table of {uid}</td>
          <td>{versionText(entryOf(before.sinks, uid))}</td>
          <td>{versionText(entryOf(after.sinks, uid))}</td>
        </tr>
      ))}
    </ScrollingTable>
  );
}
