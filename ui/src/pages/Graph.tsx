import { Heading, Stack, Text } from "@chakra-ui/react";
import { useMemo } from "react";
import { useSearchParams } from "react-router-dom";
import { type ChainExplanation, type CheckpointPage, type GraphPage, type JobExplanation, type OperatorStatus, type PointPage, entryOf, useResource } from "../api";
import { counted, formatCount, formatTime, offsetText, sizeText } from "../format";
import { CopiedPath } from "../parts/Command";
import type { Fact } from "../parts/Facts";
import { SelectField } from "../parts/Fields";
import { CheckpointLink, RunLink } from "../parts/links";
import { FreshnessNotice, Loaded, Notice } from "../parts/Loaded";
import { ScrollingTable } from "../parts/ScrollingTable";
import { GraphPicture } from "../pictures/GraphPicture";
import { type GraphLayout, type GraphNode, layOutGraph } from "../pictures/graphLayout";
import { isCheckpoint } from "../pictures/timelineLayout";

/** The graph of a job with sizes and rates of a checkpoint, and its physical plan. */
export function Graph({ address }: { address: string }) {
  const [query, setQuery] = useSearchParams();
  const chosen = query.get("checkpoint");
  const page = useResource<GraphPage>(`${address}/graph${chosen === null ? "" : `?checkpoint_id=${encodeURIComponent(chosen)}`}`);
  return (
    <Stack gap={5}>
      <ChooseCheckpoint
        address={address}
        chosen={chosen ?? ""}
        onChoose={(id) => {
          setQuery(id === "" ? {} : { checkpoint: id }, { replace: true });
        }}
      />
      <Loaded resource={page}>
        {(found) => (
          <Stack gap={5}>
            <FreshnessNotice of={found} />
            {found.graph === null ? (
              <Notice status="info" title="No run has stored the graph of this job yet">
                A run stores it when it starts.
              </Notice>
            ) : (
              <Stored graph={found.graph} page={found} address={address} />
            )}
          </Stack>
        )}
      </Loaded>
    </Stack>
  );
}

function ChooseCheckpoint({ address, chosen, onChoose }: { address: string; chosen: string; onChoose: (id: string) => void }) {
  const points = useResource<PointPage>(`${address}/points?kind=checkpoint&status=completed&limit=50`, 30_000).value?.points ?? [];
  const ids = new Set(points.filter((point) => isCheckpoint(point)).map((point) => String(point.checkpoint_id)));
  if (chosen !== "") ids.add(chosen);
  return (
    <Stack maxW="sm">
      <SelectField label="Checkpoint" value={chosen} choices={[["", "the newest"], ...[...ids].map((id) => [id, id] as const)]} onChange={onChoose} />
    </Stack>
  );
}

/** "1,234 rows per second", or as many rows as there were. */
function rateText(rows: number, ms: number | null): string {
  if (ms === null || ms <= 0) return counted(rows, "row");
  return `${formatCount((1000 * rows) / ms)} rows/s`;
}

function operatorSize({ live_bytes, size_bytes }: OperatorStatus): string {
  return sizeText({ live_bytes, full_bytes: size_bytes });
}

function remarkOf(operators: readonly OperatorStatus[], ms: number | null): (node: GraphNode) => string {
  const byUid = new Map(operators.map((operator) => [operator.uid, operator]));
  return ({ kind, uid }) => {
    const operator = kind === "operator" ? byUid.get(uid) : undefined;
    if (operator === undefined) return "";
    const rate = operator.metrics === null ? "" : rateText(operator.metrics.rows_in, ms);
    return [operatorSize(operator), rate].filter((part) => part !== "").join(", ");
  };
}

function Stored({ graph, page, address }: { graph: JobExplanation; page: GraphPage; address: string }) {
  const layout = useMemo(() => layOutGraph(graph), [graph]);
  const [query, setQuery] = useSearchParams();
  const id = page.checkpoint_id;
  const entry = useResource<CheckpointPage>(id === null ? null : `${address}/checkpoints/${id}`, 60_000).value?.entry ?? null;
  const remark = remarkOf(page.operators, entry !== null && isCheckpoint(entry) ? entry.duration_ms : null);
  const selected = layout.nodes.find(({ key }) => key === query.get("node")) ?? null;
  return (
    <>
      <Origin page={page} isChosen={query.get("checkpoint") !== null} isOfRestore={entry !== null && !isCheckpoint(entry)} />
      <Text>A solid line has rows with keys, a broken line rows without keys.</Text>
      <GraphPicture
        layout={layout}
        remark={remark}
        selected={selected?.key ?? null}
        onSelect={({ key }) => {
          setQuery((before) => ({ ...Object.fromEntries(before), node: key }), { replace: true });
        }}
      />
      {selected !== null && <Selected node={selected} graph={graph} page={page} remark={remark(selected)} />}
      <Connections layout={layout} />
      <Explain graph={graph} operators={page.operators} />
    </>
  );
}

/** Whose graph is shown, and whose numbers. */
function Origin({ page, isChosen, isOfRestore }: { page: GraphPage; isChosen: boolean; isOfRestore: boolean }) {
  const { checkpoint_id: id, graph_generation: graph, checkpoint_generation: made, checkpoint_run: run } = page;
  // A restore is not a run: the graph is the one of the first run after it.
  const lacksOwn = isChosen && run !== null && made !== null && graph !== made;
  return (
    <>
      <Text>
        The graph is the one of {graph === null ? "an unknown run" : <RunLink generation={graph} run={page.graph_run} />}.{" "}
        {id === null ? (
          "The job has no checkpoint: sizes are not known."
        ) : (
          <>
            Sizes and rates are of <CheckpointLink id={id}>checkpoint {id}</CheckpointLink>
            {made !== null && run !== null && (
              <>
                {" "}
                of <RunLink generation={made} run={run} />
              </>
            )}
            {isOfRestore && ", which a restore made"}.
          </>
        )}
      </Text>
      {lacksOwn && (
        <Notice status="warning" title={`The graph of run ${run} is not stored`}>
          This is the graph of {graph !== null && graph < made ? "the nearest run before it" : "the nearest run after it"}: operators and keys may differ.
        </Notice>
      )}
    </>
  );
}

function Selected({ node, graph, page, remark }: { node: GraphNode; graph: JobExplanation; page: GraphPage; remark: string }) {
  const chains = graph.levels.flatMap((level) => level.chains);
  return (
    <Stack as="section" aria-label="Selected node" aria-live="polite" borderWidth="1px" borderRadius="md" p={4} gap={2}>
      <Heading as="h2" size="md" overflowWrap="anywhere">
        {node.kind} {node.uid}
      </Heading>
      {remark !== "" && <Text>{remark}</Text>}
      {factsOf(node, graph, chains, page).map(([name, value]) => (
        <Text key={name} overflowWrap="anywhere">
          {name}: {value}
        </Text>
      ))}
    </Stack>
  );
}

function factsOf({ kind, uid }: GraphNode, graph: JobExplanation, chains: readonly ChainExplanation[], page: GraphPage): Fact[] {
  if (kind === "source") {
    const source = graph.sources.find((each) => each.uid === uid);
    const status = page.sources.find((each) => each.uid === uid);
    const facts: Fact[] = source === undefined ? [] : [["Reads", source.reads], ["Columns", source.columns], ["Input ends", source.bounded ? "yes" : "no"]];
    return status === undefined ? facts : [...facts, ["Position", offsetText(status.offset)]];
  }
  if (kind === "sink") {
    const sink = chains.flatMap((chain) => chain.sinks).find((each) => each.uid === uid);
    return sink === undefined ? [] : [["Writes to", <Target key={uid} sink={sink} />], ["Rows", sink.rows], ["Delivery", sink.delivery]];
  }
  const chain = chains.find((each) => each.uid === uid);
  if (chain === undefined) return [];
  const watermark = entryOf(page.watermarks, uid);
  const facts: Fact[] = [
    ["Function", chain.function ?? "none"],
    ["States", statesText(chain, page.operators.find((each) => each.uid === uid))],
    ["Output", chain.output ?? "none"],
  ];
  return watermark === undefined ? facts : [...facts, ["Watermark", formatTime(watermark)]];
}

function Target({ sink: { uid, sink, location } }: { sink: ChainExplanation["sinks"][number] }) {
  return (
    <>
      {sink} {location !== null && <CopiedPath text={location} what={`location of ${uid}`} />}
    </>
  );
}

/** The picture as a table: the same for who does not see it. */
function Connections({ layout }: { layout: GraphLayout }) {
  const byKey = new Map(layout.nodes.map((node) => [node.key, `${node.kind} ${node.uid}`]));
  return (
    <details>
      <summary>Connections as a table</summary>
      <ScrollingTable label="Connections" columns={["From", "To", "Keys"]}>
        {layout.edges.map((edge, index) => (
          <tr key={index}>
            <td>{byKey.get(edge.from)}</td>
            <td>{byKey.get(edge.to)}</td>
            <td>{edge.broadcast ? "broadcast to all subtasks" : edge.keys.join(", ") || "none"}</td>
          </tr>
        ))}
      </ScrollingTable>
    </details>
  );
}

/** The states that the function declares; a stored graph does not have them, and then the names at the checkpoint. */
function statesText({ states, unknown_because: because }: ChainExplanation, operator: OperatorStatus | undefined): string {
  if (states === null && operator !== undefined) return [...operator.states, ...operator.operator_states].join(", ") || "none";
  if (states === null) return because === null ? "not known" : `not known: ${because}`;
  return (
    states
      .map(({ name, kind, key_type: key, value_type: value, time_to_live: ttl }) => `${name} (${kind} of ${key === null ? value : `${key} → ${value}`}${ttl === null ? "" : `; kept ${ttl}`})`)
      .join("; ") || "none"
  );
}

function inputText({ inputs }: ChainExplanation): string {
  return inputs
    .map(({ rows, key, order_by: order, broadcast }) => {
      const parts = [broadcast ? "broadcast" : key.length === 0 ? "" : `by ${key.join(", ")}`, order.length === 0 ? "" : `in the order of ${order.join(", ")}`];
      return [rows, ...parts].filter((part) => part !== "").join(" ");
    })
    .join("; ");
}

const EXPLAIN_COLUMNS = ["After shuffles", "Tasks", "Operator", "Function", "Input and keys", "Windows", "States", "Size", "Output", "Sinks"];

/** The physical plan: levels between shuffles, keys, states and their sizes. */
function Explain({ graph, operators }: { graph: JobExplanation; operators: readonly OperatorStatus[] }) {
  const shuffles = graph.levels.reduce((most, level) => Math.max(most, level.number), 0);
  const byUid = new Map(operators.map((operator) => [operator.uid, operator]));
  return (
    <Stack as="section" gap={2}>
      <Heading as="h2" size="md">
        Physical plan
      </Heading>
      <Text>
        {counted(shuffles, "shuffle")}, parallelism {formatCount(graph.parallelism)}, at most {formatCount(graph.max_parallelism)};{" "}
        {graph.on_spark ? "runs on Spark" : "runs without Spark"}.
      </Text>
      <ScrollingTable label="Physical plan" columns={EXPLAIN_COLUMNS}>
        {graph.levels.flatMap(({ number, tasks, chains }) =>
          chains.map((chain, index) => <ChainRow key={`${number} ${index}`} chain={chain} shuffles={number} tasks={tasks} operator={byUid.get(chain.uid)} />),
        )}
      </ScrollingTable>
    </Stack>
  );
}

function ChainRow({ chain, shuffles, tasks, operator }: { chain: ChainExplanation; shuffles: number; tasks: number; operator: OperatorStatus | undefined }) {
  const output = [chain.output ?? "", ...chain.side_outputs.map((name) => `side output ${name}`)].filter((part) => part !== "").join("; ");
  return (
    <tr>
      <td>{formatCount(shuffles)}</td>
      <td>{formatCount(tasks)}</td>
      <td className="name">{chain.uid}</td>
      <td>{chain.relay ? "forwards rows" : (chain.function ?? "")}</td>
      <td>{inputText(chain)}</td>
      <td>{chain.windows}</td>
      <td>{statesText(chain, operator)}</td>
      <td className="line">{operator === undefined ? "" : operatorSize(operator)}</td>
      <td>{output}</td>
      <td>{chain.sinks.map((sink) => `${sink.uid}: ${sink.sink}, ${sink.delivery}`).join("; ")}</td>
    </tr>
  );
}
