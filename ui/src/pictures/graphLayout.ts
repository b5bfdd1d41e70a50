// Where the sources, operators and sinks of a job are in the picture of its graph, in levels and slots without pixels.
import type { JobExplanation } from "../api";

export type NodeKind = "source" | "operator" | "sink";

export interface GraphNode {
  /** Kind and uid: a sink may have the uid of an operator. */
  key: string;
  kind: NodeKind;
  uid: string;
  /** Longest path from a source, so that each edge leads to a higher level. */
  level: number;
  /** Place within the level. */
  slot: number;
}

export interface GraphEdge {
  from: string;
  to: string;
  /** Key columns; empty for rows that are not keyed. */
  keys: readonly string[];
  broadcast: boolean;
}

export interface GraphLayout {
  nodes: GraphNode[];
  edges: GraphEdge[];
  levels: number;
  slots: number;
}

function keyOf(kind: NodeKind, uid: string): string {
  return `${kind} ${uid}`;
}

/** Lays out a job's graph. An edge whose begin the graph does not have is left out. */
export function layOutGraph(graph: JobExplanation): GraphLayout {
  const { nodes, edges } = partsOf(graph);
  const level = levelsOf(nodes, edges);
  const rows = new Map<number, string[]>();
  for (const { key } of nodes) {
    const at = level.get(key) ?? 0;
    const row = rows.get(at);
    if (row === undefined) rows.set(at, [key]);
    else row.push(key);
  }
  const slot = slotsOf(rows, edges);
  const placed = nodes.map((node) => ({ ...node, level: level.get(node.key) ?? 0, slot: slot.get(node.key) ?? 0 }));
  return {
    nodes: placed,
    edges,
    levels: placed.reduce((most, node) => Math.max(most, node.level + 1), 0),
    slots: placed.reduce((most, node) => Math.max(most, node.slot + 1), 0),
  };
}

type Part = Pick<GraphNode, "key" | "kind" | "uid">;

function partsOf(graph: JobExplanation): { nodes: Part[]; edges: GraphEdge[] } {
  const chains = graph.levels.flatMap((each) => each.chains);
  const nodes = new Map<string, Part>();
  const add = (kind: NodeKind, uid: string) => nodes.set(keyOf(kind, uid), { key: keyOf(kind, uid), kind, uid });
  graph.sources.forEach(({ uid }) => add("source", uid));
  chains.forEach(({ uid }) => add("operator", uid));
  chains.forEach(({ sinks }) => {
    sinks.forEach(({ uid }) => add("sink", uid));
  });
  const edges = new Map<string, GraphEdge>();
  const connect = (fromUids: readonly string[], to: string, keys: readonly string[], broadcast: boolean) => {
    for (const uid of fromUids) {
      const from = [keyOf("operator", uid), keyOf("source", uid)].find((key) => nodes.has(key));
      // A chain without an operator has the uid of its source, and forwards its rows.
      const begin = from === to ? keyOf("source", uid) : from;
      if (begin !== undefined && begin !== to && nodes.has(begin)) edges.set(JSON.stringify([begin, to, keys, broadcast]), { from: begin, to, keys, broadcast });
    }
  };
  for (const chain of chains) {
    for (const input of chain.inputs) connect(input.from_uids, keyOf("operator", chain.uid), input.key, input.broadcast);
    for (const sink of chain.sinks) connect(sink.from_uids, keyOf("sink", sink.uid), [], false);
  }
  return { nodes: [...nodes.values()], edges: [...edges.values()] };
}

/** The longest path to each node. Nodes of a cycle, which a valid graph does not have, stay at the level that is known. */
function levelsOf(nodes: readonly Part[], edges: readonly GraphEdge[]): Map<string, number> {
  const level = new Map(nodes.map(({ key }) => [key, 0]));
  const missing = new Map(nodes.map(({ key }) => [key, 0]));
  const next = new Map<string, string[]>();
  for (const { from, to } of edges) {
    missing.set(to, (missing.get(to) ?? 0) + 1);
    const targets = next.get(from);
    if (targets === undefined) next.set(from, [to]);
    else targets.push(to);
  }
  const ready = nodes.filter(({ key }) => missing.get(key) === 0).map(({ key }) => key);
  for (let key = ready.pop(); key !== undefined; key = ready.pop()) {
    for (const to of next.get(key) ?? []) {
      level.set(to, Math.max(level.get(to) ?? 0, (level.get(key) ?? 0) + 1));
      const left = (missing.get(to) ?? 0) - 1;
      missing.set(to, left);
      if (left === 0) ready.push(to);
    }
  }
  return level;
}

/** Places nodes next to the nodes that they get rows from, so that few edges cross. */
function slotsOf(rows: ReadonlyMap<number, readonly string[]>, edges: readonly GraphEdge[]): Map<string, number> {
  const origins = new Map<string, string[]>();
  for (const { from, to } of edges) {
    const known = origins.get(to);
    if (known === undefined) origins.set(to, [from]);
    else known.push(from);
  }
  const slot = new Map<string, number>();
  for (const level of [...rows.keys()].sort((a, b) => a - b)) {
    const keys = rows.get(level) ?? [];
    const centre = (key: string, index: number) => {
      const before = (origins.get(key) ?? []).map((from) => slot.get(from)).filter((each) => each !== undefined);
      return before.length === 0 ? index : before.reduce((sum, each) => sum + each, 0) / before.length;
    };
    const order = keys.map((key, index) => [key, centre(key, index)] as const).sort(([, a], [, b]) => a - b);
    order.forEach(([key], index) => slot.set(key, index));
  }
  return slot;
}
