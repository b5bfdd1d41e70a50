import { Box } from "@chakra-ui/react";
import { type KeyboardEvent, useRef, useState } from "react";
import { visible } from "../format";
import type { GraphEdge, GraphLayout, GraphNode, NodeKind } from "./graphLayout";
import { BACKGROUND, MUTED, READABLE, shorten, TEXT } from "./svg";

const NODE = { width: 190, height: 62 };
const COLUMN = 290;
const ROW = 92;
const MARGIN = 16;
const LETTER = 7;
const COLOURS: Record<NodeKind, string> = {
  source: "var(--chakra-colors-green-solid)",
  operator: "var(--chakra-colors-blue-solid)",
  sink: "var(--chakra-colors-purple-solid)",
};
/** Where the keys of an edge are: nearer to its begin, as many edges may end in one place. */
const LABEL_AT = 0.43;
/** How far a curve has come there from the height of its begin to the height of its end. */
const LABEL_RISE = 0.35;

function placeOf({ level, slot }: GraphNode): { x: number; y: number } {
  return { x: MARGIN + level * COLUMN, y: MARGIN + slot * ROW };
}

interface Props {
  layout: GraphLayout;
  /** The line below the name of a node: its size and rate. */
  remark: (node: GraphNode) => string;
  selected: string | null;
  onSelect: (node: GraphNode) => void;
}

/** A job's graph, from the sources on the left to the sinks on the right. The arrow keys go from node to node, Enter selects one. */
export function GraphPicture({ layout, remark, selected, onSelect }: Props) {
  const nodes = [...layout.nodes].sort((a, b) => a.level - b.level || a.slot - b.slot);
  const elements = useRef(new Map<string, SVGGElement>());
  const [focused, setFocused] = useState<string | null>(null);
  const reachable = nodes.some(({ key }) => key === focused) ? focused : (nodes[0]?.key ?? null);
  const byKey = new Map(nodes.map((node) => [node.key, node]));
  const width = 2 * MARGIN + Math.max(0, layout.levels - 1) * COLUMN + NODE.width;
  const height = 2 * MARGIN + Math.max(0, layout.slots - 1) * ROW + NODE.height;

  const onKeyDown = (event: KeyboardEvent, node: GraphNode) => {
    if (event.key === "Enter" || event.key === " ") {
      event.preventDefault();
      onSelect(node);
      return;
    }
    const next = neighbour(nodes, node, event.key);
    if (next === undefined) return;
    event.preventDefault();
    setFocused(next.key);
    elements.current.get(next.key)?.focus();
  };

  return (
    <Box overflow="auto" maxH="70vh" borderWidth="1px" borderRadius="md" bg="bg">
      <svg role="group" aria-label="Graph of the job" width={width} height={height} style={{ display: "block" }}>
        {layout.edges.map((edge, index) => (
          <EdgeLine key={index} edge={edge} from={byKey.get(edge.from)} to={byKey.get(edge.to)} />
        ))}
        {nodes.map((node) => (
          <g
            key={node.key}
            ref={(element) => {
              if (element) elements.current.set(node.key, element);
              else elements.current.delete(node.key);
            }}
            role="button"
            aria-label={[node.kind, node.uid, remark(node)].filter((part) => part !== "").join(", ")}
            aria-pressed={node.key === selected}
            tabIndex={node.key === reachable ? 0 : -1}
            style={{ cursor: "pointer", outlineOffset: 2 }}
            onClick={() => {
              setFocused(node.key);
              onSelect(node);
            }}
            onKeyDown={(event) => {
              onKeyDown(event, node);
            }}
          >
            <NodeShape node={node} remark={remark(node)} isSelected={node.key === selected} />
          </g>
        ))}
      </svg>
    </Box>
  );
}

/** The node next to another one: right and left change the level, up and down the place in it. */
export function neighbour(nodes: readonly GraphNode[], { level, slot }: GraphNode, key: string): GraphNode | undefined {
  const inLevel = (wanted: number) => nodes.filter((node) => node.level === wanted);
  const nearest = (wanted: number) => inLevel(wanted).sort((a, b) => Math.abs(a.slot - slot) - Math.abs(b.slot - slot))[0];
  switch (key) {
    case "ArrowRight":
      return nearest(level + 1);
    case "ArrowLeft":
      return nearest(level - 1);
    case "ArrowDown":
      return inLevel(level).find((node) => node.slot === slot + 1);
    case "ArrowUp":
      return inLevel(level).find((node) => node.slot === slot - 1);
    case "Home":
      return nodes[0];
    case "End":
      return nodes.at(-1);
    default:
      return undefined;
  }
}

function EdgeLine({ edge, from, to }: { edge: GraphEdge; from: GraphNode | undefined; to: GraphNode | undefined }) {
  if (from === undefined || to === undefined) return null;
  const [a, b] = [placeOf(from), placeOf(to)];
  const [x0, y0, x1, y1] = [a.x + NODE.width, a.y + NODE.height / 2, b.x, b.y + NODE.height / 2];
  const middle = (x0 + x1) / 2;
  // A key is a column with its type; a column's name has no blank.
  const text = edge.broadcast ? "broadcast" : visible(edge.keys.map((key) => key.replace(/ .*/, "")).join(", "));
  return (
    <g aria-hidden="true">
      <path d={`M${x0},${y0} C${middle},${y0} ${middle},${y1} ${x1},${y1}`} fill="none" stroke={MUTED} strokeWidth={1.5} strokeDasharray={edge.keys.length > 0 ? undefined : "4 3"} />
      <path d={`M${x1 - 7},${y1 - 4} L${x1},${y1} L${x1 - 7},${y1 + 4} Z`} fill={MUTED} />
      {text !== "" && (
        <text x={x0 + LABEL_AT * (x1 - x0)} y={y0 + LABEL_RISE * (y1 - y0) - 6} textAnchor="middle" style={READABLE} fill={MUTED}>
          {shorten(text, 14)}
        </text>
      )}
    </g>
  );
}

function NodeShape({ node, remark, isSelected }: { node: GraphNode; remark: string; isSelected: boolean }) {
  const { x, y } = placeOf(node);
  const most = Math.floor((NODE.width - 20) / LETTER);
  return (
    <>
      <title>{`${node.kind} ${node.uid}`}</title>
      <rect x={x} y={y} width={NODE.width} height={NODE.height} rx={6} fill={BACKGROUND} stroke={isSelected ? TEXT : COLOURS[node.kind]} strokeWidth={isSelected ? 3 : 1.5} />
      <rect x={x} y={y} width={5} height={NODE.height} fill={COLOURS[node.kind]} />
      <text x={x + 14} y={y + 18} style={{ fontSize: 10 }} fill={MUTED}>
        {node.kind}
      </text>
      <text x={x + 14} y={y + 34} style={{ fontSize: 13, fontWeight: 600 }} fill={TEXT}>
        {shorten(node.uid, most)}
      </text>
      <text x={x + 14} y={y + 51} style={{ fontSize: 11 }} fill={MUTED}>
        {shorten(remark, most + 3)}
      </text>
    </>
  );
}
