import { expect, it } from "vitest";
import type { ChainExplanation, JobExplanation } from "../api";
import { layOutGraph } from "./graphLayout";

function chain(uid: string, from: string[], sinks: string[] = [], key: string[] = []): ChainExplanation {
  return {
    uid,
    function: "f",
    inputs: [{ rows: uid, from_uids: from, key, order_by: [], broadcast: false }],
    output: null,
    side_outputs: [],
    states: [],
    unknown_because: null,
    sinks: sinks.map((sink) => ({ uid: sink, sink: "delta", rows: uid, from_uids: [uid], delivery: "exactly-once", location: null })),
    relay: false,
    windows: null,
  };
}

function graph(sources: string[], chains: ChainExplanation[]): JobExplanation {
  return {
    job: "flights",
    parallelism: 2,
    max_parallelism: 128,
    on_spark: true,
    sources: sources.map((uid) => ({ uid, reads: "files", columns: "Row", bounded: true })),
    levels: [{ number: 1, tasks: 2, chains }],
  };
}

/** A pseudo-random acyclic graph, the same for each seed. */
function random(seed: number): JobExplanation {
  let state = seed;
  const draw = (below: number) => {
    state = (state * 48271) % 2147483647;
    return state % below;
  };
  const uids = ["s0", "s1"];
  const chains: ChainExplanation[] = [];
  for (let index = 0; index < 1 + draw(30); index += 1) {
    const from = Array.from({ length: 1 + draw(3) }, () => uids[draw(uids.length)] ?? "s0");
    // A sink may have the name of its operator.
    chains.push(chain(`o${index}`, from, draw(2) === 0 ? [`o${index}`] : []));
    uids.push(`o${index}`);
  }
  return graph(["s0", "s1"], chains);
}

it.each(Array.from({ length: 50 }, (_, seed) => seed + 1))("leads each edge to a higher level, and shares no place (seed %i)", (seed) => {
  const made = random(seed);
  const { nodes, edges, levels, slots } = layOutGraph(made);
  const byKey = new Map(nodes.map((node) => [node.key, node]));
  const chains = made.levels.flatMap((level) => level.chains);
  expect(nodes.length).toBe(2 + chains.length + chains.reduce((sum, each) => sum + each.sinks.length, 0));
  expect(byKey.size).toBe(nodes.length);
  for (const { from, to } of edges) expect(byKey.get(from)?.level).toBeLessThan(byKey.get(to)?.level ?? -1);
  expect(new Set(nodes.map(({ level, slot }) => `${level} ${slot}`)).size).toBe(nodes.length);
  expect(nodes.every(({ level, slot }) => level < levels && slot < slots)).toBe(true);
  expect(layOutGraph(made)).toEqual({ nodes, edges, levels, slots });
});

it("has the keys of each edge, and each connection once", () => {
  const made = graph(["orders"], [chain("count", ["orders", "orders"], ["out"], ["customer long"])]);
  expect(layOutGraph(made).edges).toEqual([
    { from: "source orders", to: "operator count", keys: ["customer long"], broadcast: false },
    { from: "operator count", to: "sink out", keys: [], broadcast: false },
  ]);
});

it("connects a chain without an operator with the source of the same uid", () => {
  expect(layOutGraph(graph(["orders"], [chain("orders", ["orders"])])).edges).toEqual([{ from: "source orders", to: "operator orders", keys: [], broadcast: false }]);
});

it("lays out a long chain, a cycle, and nothing", () => {
  const long = Array.from({ length: 5000 }, (_, index) => chain(`o${index}`, [index === 0 ? "s" : `o${index - 1}`]));
  expect(layOutGraph(graph(["s"], long)).levels).toBe(5001);
  const cycle = layOutGraph(graph([], [chain("a", ["b"]), chain("b", ["a"])]));
  expect(cycle.nodes.map(({ slot }) => slot)).toEqual([0, 1]);
  expect(layOutGraph(graph([], []))).toEqual({ nodes: [], edges: [], levels: 0, slots: 0 });
});
