import { Heading, SimpleGrid, Stack, Table, Text } from "@chakra-ui/react";
import { useSearchParams } from "react-router-dom";
import { type Savepoint, type SavepointDiff, useResource } from "../api";
import { formatBytes, formatCount } from "../format";
import { SelectField } from "./Fields";
import { FreshnessNotice, Loaded, Notice } from "./Loaded";
import { offsetText } from "./PlanChanges";
import { ScrollingTable } from "./ScrollingTable";

/** A choice of two savepoints, and what differs between them. The choice is in the address. */
export function Comparison({ address, savepoints }: { address: string; savepoints: readonly Savepoint[] }) {
  const [query, setQuery] = useSearchParams();
  if (savepoints.length < 2) return null;
  const choices = [["", "none"], ...savepoints.map(({ name }) => [name, name] as const)] as [string, string][];
  const [from, to] = [query.get("from") ?? "", query.get("to") ?? ""];
  const choose = (part: Record<string, string>) => {
    setQuery((before) => ({ ...Object.fromEntries(before), ...part }), { replace: true });
  };
  return (
    <Stack as="section" gap={3} aria-label="Comparison">
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

function numberText(value: number | null, format: (value: number) => string): string {
  return value === null ? "none" : format(value);
}

/** "1 kB → 2.5 kB (+1.5 kB)". */
function changeText(from: number | null, to: number | null, format: (value: number) => string): string {
  if (from === to) return numberText(from, format);
  const both = `${numberText(from, format)} → ${numberText(to, format)}`;
  if (from === null || to === null) return both;
  return `${both} (${to > from ? "+" : "−"}${format(Math.abs(to - from))})`;
}

function filesText({ files_added: added, files_removed: removed, files_common: common }: SavepointDiff["operators"][number]): string {
  return `${formatCount(added)} added, ${formatCount(removed)} removed, ${formatCount(common)} in both`;
}

function Operators({ operators }: { operators: SavepointDiff["operators"] }) {
  if (operators.length === 0) return <Text>Neither savepoint has state.</Text>;
  return (
    <ScrollingTable label="State in both savepoints">
      <Table.Header>
        <Table.Row>
          {["Operator", "State", "Size", "Entries", "Files"].map((title) => (
            <Table.ColumnHeader key={title}>{title}</Table.ColumnHeader>
          ))}
        </Table.Row>
      </Table.Header>
      <Table.Body>
        {operators.flatMap((operator) => [
          <Table.Row key={operator.uid}>
            <Table.Cell fontWeight="semibold">{operator.uid}</Table.Cell>
            <Table.Cell>all</Table.Cell>
            <Table.Cell>{changeText(operator.from_bytes, operator.to_bytes, formatBytes)}</Table.Cell>
            <Table.Cell />
            <Table.Cell>{filesText(operator)}</Table.Cell>
          </Table.Row>,
          ...operator.states.map((state) => (
            <Table.Row key={`${operator.uid} ${state.name}`}>
              <Table.Cell />
              <Table.Cell>{state.name}</Table.Cell>
              <Table.Cell>{changeText(state.from_bytes, state.to_bytes, formatBytes)}</Table.Cell>
              <Table.Cell>{changeText(state.from_entries, state.to_entries, formatCount)}</Table.Cell>
              <Table.Cell />
            </Table.Row>
          )),
        ])}
      </Table.Body>
    </ScrollingTable>
  );
}

function Positions({ diff: { sources, sinks } }: { diff: SavepointDiff }) {
  if (sources.length === 0 && sinks.length === 0) return null;
  return (
    <ScrollingTable label="Positions in both savepoints">
      <Table.Header>
        <Table.Row>
          {["Source or sink", "From", "To"].map((title) => (
            <Table.ColumnHeader key={title}>{title}</Table.ColumnHeader>
          ))}
        </Table.Row>
      </Table.Header>
      <Table.Body>
        {sources.map((source) => (
          <Table.Row key={`source ${source.uid}`}>
            <Table.Cell>source {source.uid}</Table.Cell>
            <Table.Cell fontFamily="mono">{offsetText(source.from_offset)}</Table.Cell>
            <Table.Cell fontFamily="mono">{offsetText(source.to_offset)}</Table.Cell>
          </Table.Row>
        ))}
        {sinks.map((sink) => (
          <Table.Row key={`sink ${sink.uid}`}>
            <Table.Cell>table of {sink.uid}</Table.Cell>
            <Table.Cell>{sink.from_version === null ? "not known" : `version ${sink.from_version}`}</Table.Cell>
            <Table.Cell>{sink.to_version === null ? "not known" : `version ${sink.to_version}`}</Table.Cell>
          </Table.Row>
        ))}
      </Table.Body>
    </ScrollingTable>
  );
}
