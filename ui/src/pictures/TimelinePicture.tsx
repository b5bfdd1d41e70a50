import { Box } from "@chakra-ui/react";
import { type CSSProperties, type KeyboardEvent, useEffect, useRef, useState } from "react";
import type { ActionEntry } from "../api";
import { formatTime } from "../format";
import { peopleText } from "../parts/People";
import { type Arc, type Edge, isCheckpoint, type Mark, type RunSpan, type TimelineLayout } from "./timelineLayout";

const NARROWEST_SLOT = 64;
const LETTER = 6.5;
const LANE = 84;
const MARGIN = 56;
const ARC_STEP = 18;
const LIVE = "var(--chakra-colors-blue-solid)";
const UNDONE = "var(--chakra-colors-gray-500)";
const BAD = "var(--chakra-colors-red-solid)";
const RESTORE = "var(--chakra-colors-purple-solid)";
const SAVEPOINT = "var(--chakra-colors-green-solid)";
const BACKGROUND = "var(--chakra-colors-bg)";
const TEXT = "var(--chakra-colors-fg)";
const MUTED = "var(--chakra-colors-fg-muted)";
/** Lines that cross a text leave it readable. */
const READABLE: CSSProperties = { paintOrder: "stroke", stroke: BACKGROUND, strokeWidth: 4, fontSize: 11 };
/** Slots between two times below the picture. */
const TIME_STEP = 3;

/** Pixels of slots and lanes. */
class Grid {
  readonly width: number;
  readonly height: number;
  /** Pixels between two slots. */
  readonly slot: number;
  private readonly top: number;

  constructor({ slots, lanes, arcs, marks }: TimelineLayout) {
    const longest = marks.reduce((most, mark) => Math.max(most, mark.label.length), 0);
    this.slot = Math.max(NARROWEST_SLOT, longest * LETTER + 14);
    const levels = arcs.reduce((most, arc) => Math.max(most, arc.level + 1), 0);
    this.top = 48 + levels * ARC_STEP;
    this.width = 2 * MARGIN + Math.max(0, slots - 1) * this.slot;
    this.height = this.top + (lanes - 1) * LANE + 76;
  }

  x(slot: number): number {
    return slot < 0 ? 0 : MARGIN + slot * this.slot;
  }

  y(lane: number): number {
    return this.top + lane * LANE;
  }

  /** Height of an arc's top. */
  arcTop(arc: Arc): number {
    return this.top - 34 - arc.level * ARC_STEP;
  }
}

interface Props {
  layout: TimelineLayout;
  /** Key of the selected mark. */
  selected: string | null;
  onSelect: (mark: Mark) => void;
}

/**
 * The history of a job: runs as lines, checkpoints as dots, savepoints as diamonds, restores as arcs back to their base,
 * undone branches below. The arrow keys go from mark to mark, Enter selects one.
 */
export function TimelinePicture({ layout, selected, onSelect }: Props) {
  const grid = new Grid(layout);
  const marks = [...layout.marks].sort((a, b) => a.slot - b.slot || Number(b.kind === "savepoint") - Number(a.kind === "savepoint"));
  const box = useRef<HTMLDivElement>(null);
  const elements = useRef(new Map<string, SVGGElement>());
  const [focused, setFocused] = useState<string | null>(null);
  const newest = marks.find((mark) => mark.newest)?.key;
  const isFocusable = (mark: Mark) => mark.key === (marks.some(({ key }) => key === focused) ? focused : (newest ?? marks.at(-1)?.key));

  useEffect(() => {
    // The present is on the right.
    if (box.current) box.current.scrollLeft = box.current.scrollWidth;
  }, [layout.slots]);

  const onKeyDown = (event: KeyboardEvent, index: number) => {
    const mark = marks[index];
    if ((event.key === "Enter" || event.key === " ") && mark) {
      event.preventDefault();
      onSelect(mark);
      return;
    }
    const steps: Record<string, number> = { ArrowLeft: index - 1, ArrowRight: index + 1, Home: 0, End: marks.length - 1 };
    const next = marks[steps[event.key] ?? -1];
    if (next === undefined) return;
    event.preventDefault();
    setFocused(next.key);
    elements.current.get(next.key)?.focus();
  };

  return (
    <Box ref={box} overflowX="auto" borderWidth="1px" borderRadius="md" bg="bg">
      <svg role="group" aria-label="Timeline" width={grid.width} height={grid.height} style={{ display: "block" }}>
        {layout.edges.map((edge) => (
          <EdgeLine key={`${edge.fromSlot} ${edge.toSlot}`} edge={edge} grid={grid} />
        ))}
        {layout.arcs.map((arc) => (
          <RestoreArc key={arc.key} arc={arc} grid={grid} />
        ))}
        {layout.runs.map((span) => (
          <RunName key={`${span.run} ${span.fromSlot}`} span={span} grid={grid} />
        ))}
        <Times layout={layout} grid={grid} />
        {marks.map((mark, index) => (
          <g
            key={mark.key}
            ref={(element) => {
              if (element) elements.current.set(mark.key, element);
              else elements.current.delete(mark.key);
            }}
            role="button"
            aria-label={describeMark(mark)}
            aria-pressed={mark.key === selected}
            tabIndex={isFocusable(mark) ? 0 : -1}
            style={{ cursor: "pointer", outlineOffset: 2 }}
            onClick={() => {
              setFocused(mark.key);
              onSelect(mark);
            }}
            onKeyDown={(event) => {
              onKeyDown(event, index);
            }}
          >
            <MarkShape mark={mark} x={grid.x(mark.slot)} y={grid.y(mark.lane)} isSelected={mark.key === selected} />
          </g>
        ))}
      </svg>
    </Box>
  );
}

/** What a screen reader says, and the hover card shows. */
export function describeMark({ kind, label, entries, undone, retained, newest }: Mark): string {
  const entry = entries.at(-1);
  if (!entry) return "";
  const at = entry.ended_at === null ? "" : formatTime(entry.ended_at, "exact");
  const state = [newest ? "the present state" : "", undone ? "undone" : "", retained ? "retained" : ""];
  const parts = isCheckpoint(entry)
    ? [kind === "aborted" ? "aborted checkpoint" : `${kind === "group" ? "checkpoints" : "checkpoint"} ${label}`, ...state, `run ${entry.run}`]
    : [`${entry.kind} ${savepointOf(entry) ?? label}`.trim(), ...state, peopleText(entry.by, entry.requested_by), entry.reason ?? ""];
  return [...parts, at].filter((part) => part !== "").join(", ");
}

/** The name of the savepoint that an action is about. */
function savepointOf({ facts: { savepoint } }: ActionEntry): string | null {
  return typeof savepoint === "string" ? savepoint : null;
}

function EdgeLine({ edge, grid }: { edge: Edge; grid: Grid }) {
  const [x0, y0, x1, y1] = [grid.x(edge.fromSlot), grid.y(edge.fromLane), grid.x(edge.toSlot), grid.y(edge.toLane)];
  const down = `M${x0},${y0} C${x0},${y1} ${x0},${y1} ${Math.min(x0 + grid.slot, x1)},${y1} L${x1},${y1}`;
  return (
    <path
      d={y0 === y1 ? `M${x0},${y0} L${x1},${y1}` : down}
      fill="none"
      stroke={edge.undone ? UNDONE : LIVE}
      strokeWidth={edge.sameRun ? 4 : 1.5}
      strokeDasharray={edge.sameRun ? undefined : "3 3"}
    />
  );
}

function RestoreArc({ arc, grid }: { arc: Arc; grid: Grid }) {
  const [x0, y0, x1, y1] = [grid.x(arc.fromSlot), grid.y(arc.fromLane) - 12, grid.x(arc.toSlot), grid.y(arc.toLane) - 12];
  // A savepoint's diamond is above its point.
  const end = y1 - (arc.toSlot < 0 ? 0 : 4);
  const top = grid.arcTop(arc);
  const corner = Math.min(14, Math.max(1, (x0 - x1) / 2));
  const person = arc.entry.by?.name ?? "";
  const width = Math.floor((x0 - x1) / 7) - 4;
  const path = `M${x0},${y0} L${x0},${top + corner} Q${x0},${top} ${x0 - corner},${top} L${x1 + corner},${top} Q${x1},${top} ${x1},${top + corner} L${x1},${end}`;
  return (
    <g aria-hidden="true">
      <path d={path} fill="none" stroke={RESTORE} strokeWidth={1.5} />
      <path d={`M${x1 - 4},${end - 6} L${x1 + 4},${end - 6} L${x1},${end} Z`} fill={RESTORE} />
      {width > 6 && (
        <text x={(x0 + x1) / 2} y={top - 6} textAnchor="middle" style={READABLE} fill={MUTED}>
          {shorten([person, arc.entry.reason ?? ""].filter((part) => part !== "").join(": "), width)}
        </text>
      )}
    </g>
  );
}

function shorten(text: string, most: number): string {
  return text.length <= most ? text : `${text.slice(0, most - 1)}…`;
}

function RunName({ span, grid }: { span: RunSpan; grid: Grid }) {
  return (
    <text x={(grid.x(span.fromSlot) + grid.x(span.toSlot)) / 2} y={grid.y(span.lane) + 36} textAnchor="middle" style={READABLE} fill={MUTED}>
      {span.run === span.lastRun ? `run ${span.run}` : `runs ${span.run}–${span.lastRun}`}
    </text>
  );
}

/** When the marks above were made. */
function Times({ layout, grid }: { layout: TimelineLayout; grid: Grid }) {
  const shown = layout.marks.filter((mark) => mark.kind !== "savepoint" && mark.slot % TIME_STEP === 0);
  return (
    <g aria-hidden="true">
      {shown.map(({ slot, entries: [entry] }) => (
        <text key={slot} x={grid.x(slot)} y={grid.height - 10} textAnchor="middle" style={READABLE} fill={MUTED}>
          {entry?.ended_at == null ? "" : formatTime(entry.ended_at, "short")}
        </text>
      ))}
    </g>
  );
}

function MarkShape({ mark, x, y, isSelected }: { mark: Mark; x: number; y: number; isSelected: boolean }) {
  const centre = mark.kind === "savepoint" ? y - 20 : y;
  return (
    <>
      <title>{describeMark(mark)}</title>
      {/* What is small is easier to hit. */}
      <rect x={x - 14} y={centre - 11} width={28} height={22} fill="transparent" />
      {isSelected && <circle cx={x} cy={centre} r={13} fill="none" stroke={TEXT} strokeWidth={1.5} />}
      <Shape mark={mark} x={x} y={centre} />
      {mark.label !== "" && (
        <text x={x} y={y + 22} textAnchor="middle" style={{ ...READABLE, fontWeight: mark.newest ? 700 : 400 }} fill={mark.undone ? MUTED : TEXT}>
          {mark.label}
        </text>
      )}
    </>
  );
}

/** A filled dot is retained and can be restored. */
function Shape({ mark, x, y }: { mark: Mark; x: number; y: number }) {
  const colour = mark.undone ? UNDONE : LIVE;
  const cross = `M${x - 5},${y - 5} L${x + 5},${y + 5} M${x + 5},${y - 5} L${x - 5},${y + 5}`;
  const fill = mark.retained ? colour : BACKGROUND;
  switch (mark.kind) {
    case "checkpoint":
      return <circle cx={x} cy={y} r={mark.newest ? 8 : 6} fill={fill} stroke={colour} strokeWidth={2} />;
    case "group":
      return <rect x={x - 18} y={y - 6} width={36} height={12} rx={6} fill={fill} stroke={colour} strokeWidth={2} />;
    case "savepoint":
      return <path d={`M${x},${y - 7} L${x + 7},${y} L${x},${y + 7} L${x - 7},${y} Z`} fill={SAVEPOINT} />;
    case "restore":
      return (
        <>
          <circle cx={x} cy={y} r={8} fill={BACKGROUND} stroke={mark.undone ? UNDONE : RESTORE} strokeWidth={2} />
          <path d={`M${x + 3},${y - 3} L${x - 3},${y} L${x + 3},${y + 3}`} fill="none" stroke={mark.undone ? UNDONE : RESTORE} strokeWidth={2} />
        </>
      );
    case "aborted":
      return <circle cx={x} cy={y} r={6} fill={BACKGROUND} stroke={BAD} strokeWidth={2} strokeDasharray="3 2" />;
    case "failure":
      return <path d={cross} stroke={BAD} strokeWidth={3} fill="none" />;
    case "rejection":
      return (
        <g fill="none" stroke={BAD} strokeWidth={2}>
          <circle cx={x} cy={y} r={7} />
          <path d={`M${x - 5},${y + 5} L${x + 5},${y - 5}`} />
        </g>
      );
    case "action":
      return <rect x={x - 5} y={y - 5} width={10} height={10} fill={BACKGROUND} stroke={MUTED} strokeWidth={2} />;
  }
}

const LEGEND: [Mark["kind"], boolean, boolean, string][] = [
  ["checkpoint", true, false, "checkpoint that can be restored"],
  ["checkpoint", false, false, "checkpoint that is not kept"],
  ["group", false, false, "several checkpoints"],
  ["checkpoint", false, true, "undone"],
  ["savepoint", false, false, "savepoint"],
  ["restore", false, false, "restore"],
  ["failure", false, false, "failure of a run"],
  ["aborted", false, false, "aborted checkpoint"],
  ["rejection", false, false, "rejected restore"],
  ["action", false, false, "other action"],
];

/** What the marks mean. */
export function TimelineLegend() {
  return (
    <Box as="ul" display="flex" flexWrap="wrap" gap={4} fontSize="sm" color="fg.muted" listStyleType="none">
      {LEGEND.map(([kind, retained, undone, text]) => (
        <Box as="li" key={text} display="flex" alignItems="center" gap={1}>
          <svg width={38} height={18} aria-hidden="true">
            <Shape mark={{ key: "", kind, slot: 0, lane: 0, entries: [], label: "", undone, retained, newest: false }} x={19} y={9} />
          </svg>
          {text}
        </Box>
      ))}
    </Box>
  );
}
