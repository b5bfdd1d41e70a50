import { Box } from "@chakra-ui/react";
import { Link } from "react-router-dom";
import type { ActionEntry } from "../api";
import { formatTime, visible } from "../format";
import { runPath } from "../parts/links";
import { peopleText } from "../parts/People";
import { BACKGROUND, MUTED, READABLE, shorten, TEXT } from "./svg";
import { type Arc, type Edge, isCheckpoint, type Mark, type RunSpan } from "./timelineLayout";
import type { Grid, View } from "./timelineView";

const LIVE = "var(--chakra-colors-blue-solid)";
const UNDONE = "var(--chakra-colors-gray-500)";
const BAD = "var(--chakra-colors-red-solid)";
const RESTORE = "var(--chakra-colors-purple-solid)";
const SAVEPOINT = "var(--chakra-colors-green-solid)";
/** Pixels of a savepoint among several. */
const SAVEPOINT_WIDTH = 16;
/** Pixels that a time below the picture needs. */
const TIME_WIDTH = 170;

/** "Checkpoints 64–75 (12)". */
export function titleOf({ kind, label, entries: [entry] }: Mark): string {
  if (kind === "group") return `Checkpoints ${label}`;
  if (entry === undefined || isCheckpoint(entry)) return kind === "aborted" ? "Aborted checkpoint" : `Checkpoint ${label}`;
  const name = entry.kind.charAt(0).toUpperCase() + entry.kind.slice(1).replaceAll("-", " ");
  const savepoint = savepointOf(entry);
  if (savepoint !== null) return `${name} ${visible(savepoint)}`;
  return entry.checkpoint_id === null ? name : `${name}, checkpoint ${entry.checkpoint_id}`;
}

/** What a screen reader says about a mark. */
export function describeMark({ kind, label, entries, undone, retained, newest }: Mark): string {
  const entry = entries.at(-1);
  if (!entry) return "";
  const at = entry.ended_at === null ? "" : formatTime(entry.ended_at, "exact");
  const state = [newest ? "the present state" : "", undone ? "undone" : "", retained ? "retained" : ""];
  const parts = isCheckpoint(entry)
    ? [kind === "aborted" ? "aborted checkpoint" : `${kind === "group" ? "checkpoints" : "checkpoint"} ${label}`, ...state, `run ${entry.run}`]
    : [`${entry.kind} ${savepointOf(entry) ?? label}`.trim(), ...state, peopleText(entry.by, entry.requested_by), visible(entry.reason ?? "")];
  return [...parts, at].filter((part) => part !== "").join(", ");
}

/** The name of the savepoint that an action is about. */
function savepointOf({ facts: { savepoint } }: ActionEntry): string | null {
  return typeof savepoint === "string" ? savepoint : null;
}

export function EdgeLine({ edge, grid }: { edge: Edge; grid: Grid }) {
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

/** The middle of the visible part between two places. */
function visibleMiddle({ left, width }: View, from: number, to: number): { middle: number; room: number } {
  const [first, last] = [Math.max(from, left), Math.min(to, left + width)];
  return { middle: (first + last) / 2, room: last - first };
}

/** Both people of an approval, and the reason. */
function arcText({ by, requested_by: requester, reason }: ActionEntry): string {
  const people = by === null ? "" : requester === null ? by.name : `${requester.name}, approved by ${by.name}`;
  return visible([people, reason ?? ""].filter((part) => part !== "").join(": "));
}

export function RestoreArc({ arc, grid, view }: { arc: Arc; grid: Grid; view: View }) {
  const [x0, y0, x1, y1] = [grid.x(arc.fromSlot), grid.y(arc.fromLane) - 12, grid.x(arc.toSlot), grid.y(arc.toLane) - 12];
  // A savepoint's diamond is above its point.
  const end = y1 - (arc.toSlot < 0 ? 0 : 4);
  const top = grid.arcTop(arc);
  const corner = Math.min(14, Math.max(1, (x0 - x1) / 2));
  const { middle, room } = visibleMiddle(view, x1, x0);
  const width = Math.floor(room / 7) - 4;
  const path = `M${x0},${y0} L${x0},${top + corner} Q${x0},${top} ${x0 - corner},${top} L${x1 + corner},${top} Q${x1},${top} ${x1},${top + corner} L${x1},${end}`;
  return (
    <g aria-hidden="true">
      <path d={path} fill="none" stroke={RESTORE} strokeWidth={1.5} />
      <path d={`M${x1 - 4},${end - 6} L${x1 + 4},${end - 6} L${x1},${end} Z`} fill={RESTORE} />
      {width > 6 && (
        <text x={middle} y={top - 6} textAnchor="middle" style={READABLE} fill={MUTED}>
          {shorten(arcText(arc.entry), width)}
        </text>
      )}
    </g>
  );
}

/** The name of a run below its visible checkpoints, with a link to its page. */
export function RunName({ span, grid, view, base }: { span: RunSpan; grid: Grid; view: View; base: string }) {
  const { middle, room } = visibleMiddle(view, grid.x(span.fromSlot) - grid.slot / 2, grid.x(span.toSlot) + grid.slot / 2);
  const text = span.run === span.lastRun ? `run ${span.run}` : `runs ${span.run}–${span.lastRun}`;
  // Names of runs that are close to each other would cover each other.
  if (room < 6 * text.length) return null;
  const shown = (
    <text x={middle} y={grid.y(span.lane) + 36} textAnchor="middle" style={{ ...READABLE, textDecoration: span.run === span.lastRun ? "underline" : undefined }} fill={MUTED}>
      {text}
    </text>
  );
  if (span.run !== span.lastRun) return shown;
  // The selected point has the same link: here the keyboard goes from mark to mark.
  return (
    <Link to={runPath(base, span.generation)} tabIndex={-1}>
      {shown}
    </Link>
  );
}

/** When the marks above were made. */
export function Times({ marks, grid }: { marks: readonly Mark[]; grid: Grid }) {
  const step = Math.max(1, Math.ceil(TIME_WIDTH / grid.slot));
  const shown = marks.filter((mark) => mark.kind !== "savepoint" && mark.slot % step === 0);
  return (
    <g aria-hidden="true">
      {shown.map(({ slot, entries: [entry] }) => (
        // A time in the middle of the first slot would begin outside of the picture.
        <text key={slot} x={Math.max(grid.x(slot), TIME_WIDTH / 2)} y={grid.height - 10} textAnchor="middle" style={READABLE} fill={MUTED}>
          {entry?.ended_at == null ? "" : formatTime(entry.ended_at, "short")}
        </text>
      ))}
    </g>
  );
}

interface MarkProps {
  mark: Mark;
  /** The middle of its slot. */
  x: number;
  y: number;
  /** Pixels of a slot. */
  slot: number;
  /** 1, or less where marks are close to each other. */
  scale: number;
  isSelected: boolean;
  isLabelled: boolean;
}

/** Savepoints of one point are next to each other, within the slot. */
function shiftOf({ index, count }: Mark["place"], slot: number): number {
  return (index - (count - 1) / 2) * Math.min(SAVEPOINT_WIDTH, slot / count);
}

export function MarkShape({ mark, x, y, slot, scale, isSelected, isLabelled }: MarkProps) {
  const [middle, centre] = [x + shiftOf(mark.place, slot), mark.kind === "savepoint" ? y - 20 : y];
  // A small mark is easier to hit; a mark with neighbours leaves them their room.
  const reach = mark.place.count > 1 ? SAVEPOINT_WIDTH / 2 : 14;
  return (
    <>
      <rect x={middle - reach * scale} y={centre - 11} width={2 * reach * scale} height={22} fill="transparent" />
      {isSelected && <circle cx={middle} cy={centre} r={13} fill="none" stroke={TEXT} strokeWidth={1.5} />}
      <g transform={scale < 1 ? `translate(${middle * (1 - scale)} ${centre * (1 - scale)}) scale(${scale})` : undefined}>
        <Shape mark={mark} x={middle} y={centre} />
      </g>
      {mark.label !== "" && isLabelled && (
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
            <Shape mark={{ key: "", kind, slot: 0, lane: 0, entries: [], label: "", undone, retained, newest: false, place: { index: 0, count: 1 } }} x={19} y={9} />
          </svg>
          {text}
        </Box>
      ))}
    </Box>
  );
}
