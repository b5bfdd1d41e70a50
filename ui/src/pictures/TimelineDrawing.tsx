import { type KeyboardEvent, type RefObject, useEffect, useMemo, useRef, useState } from "react";
import type { Mark, TimelineLayout } from "./timelineLayout";
import { describeMark, EdgeLine, MarkShape, RestoreArc, RunName, Times } from "./TimelineMarks";
import { drawnSlots, type Grid, labelledSlot, type View, ZOOM } from "./timelineView";

interface DrawingProps {
  layout: TimelineLayout;
  grid: Grid;
  view: View;
  selected: string | null;
  onSelect: (mark: Mark) => void;
  base: string;
  zoom: (factor: number, around?: number) => void;
  onHover: (mark: Mark | null) => void;
  /** Makes a mark visible. */
  show: (mark: Mark) => void;
}

/** Slots from left to right; a savepoint before the point that it was made of. */
function inReadingOrder({ marks }: TimelineLayout): Mark[] {
  return [...marks].sort((a, b) => a.slot - b.slot || Number(b.kind === "savepoint") - Number(a.kind === "savepoint"));
}

/** The visible part of a timeline. The arrow keys go from mark to mark, Enter selects one, + and - change the zoom. */
export function TimelineDrawing(props: DrawingProps) {
  const { layout, grid, view, selected, base } = props;
  const marks = useMemo(() => inReadingOrder(layout), [layout]);
  const { reachable, elements, onKeyDown, setFocused } = useKeys(marks, props);
  const [first, last] = drawnSlots(layout, view);
  const isDrawn = (from: number, to = from) => to >= first && from <= last;
  const labelStep = Math.max(1, Math.ceil(labelledSlot(layout) / grid.slot));
  return (
    <svg role="group" aria-label="Timeline" width={grid.width} height={grid.height} style={{ display: "block" }}>
      {layout.edges.filter((edge) => isDrawn(edge.fromSlot, edge.toSlot)).map((edge) => (
        <EdgeLine key={`${edge.fromSlot} ${edge.toSlot}`} edge={edge} grid={grid} />
      ))}
      {layout.arcs.filter((arc) => isDrawn(arc.toSlot, arc.fromSlot)).map((arc) => (
        <RestoreArc key={arc.key} arc={arc} grid={grid} view={view} />
      ))}
      {layout.runs.filter((span) => isDrawn(span.fromSlot, span.toSlot)).map((span) => (
        <RunName key={`${span.run} ${span.fromSlot}`} span={span} grid={grid} view={view} base={base} />
      ))}
      <Times marks={marks.filter(({ slot }) => isDrawn(slot))} grid={grid} />
      {marks.map(
        (mark, index) =>
          (isDrawn(mark.slot) || mark.key === reachable) && (
            <MarkButton
              key={mark.key}
              {...{ mark, grid, index, elements, onKeyDown, setFocused }}
              onSelect={props.onSelect}
              onHover={props.onHover}
              isSelected={mark.key === selected}
              isReachable={mark.key === reachable}
              isLabelled={mark.slot % labelStep === 0 || mark.newest || mark.key === selected}
            />
          ),
      )}
    </svg>
  );
}

/** The key of the mark that Tab reaches, and how the keyboard goes from mark to mark: to one that is not drawn, too. */
function useKeys(marks: readonly Mark[], { grid, view, zoom, onHover, onSelect, show }: DrawingProps) {
  const elements = useRef(new Map<string, SVGGElement>());
  const [focused, setFocused] = useState<string | null>(null);
  // A mark that the keyboard goes to, until it is drawn.
  const next = useRef<string | null>(null);
  const newest = marks.find((mark) => mark.newest)?.key;
  const reachable = marks.some(({ key }) => key === focused) ? focused : (newest ?? marks.at(-1)?.key ?? null);
  useEffect(() => {
    const element = next.current === null ? undefined : elements.current.get(next.current);
    if (element === undefined) return;
    next.current = null;
    element.focus({ preventScroll: true });
  });
  const onKeyDown = (event: KeyboardEvent, index: number) => {
    const mark = marks[index];
    if (mark === undefined) return;
    const zooms: Record<string, number> = { "+": ZOOM, "=": ZOOM, "-": 1 / ZOOM };
    const factor = zooms[event.key];
    const steps: Record<string, number> = { ArrowLeft: index - 1, ArrowRight: index + 1, Home: 0, End: marks.length - 1 };
    const target = marks[steps[event.key] ?? -1];
    if (event.key === "Escape") onHover(null);
    else if (event.key === "Enter" || event.key === " ") onSelect(mark);
    else if (factor !== undefined) zoom(factor, mark.slot);
    else if (target !== undefined) {
      next.current = target.key;
      setFocused(target.key);
      const x = grid.x(target.slot) - view.left;
      if (x < 20 || x > view.width - 20) show(target);
    } else return;
    event.preventDefault();
  };
  return { reachable, elements, onKeyDown, setFocused };
}

interface MarkButtonProps {
  mark: Mark;
  grid: Grid;
  index: number;
  elements: RefObject<Map<string, SVGGElement>>;
  onKeyDown: (event: KeyboardEvent, index: number) => void;
  setFocused: (key: string) => void;
  onSelect: (mark: Mark) => void;
  onHover: (mark: Mark | null) => void;
  isSelected: boolean;
  isReachable: boolean;
  isLabelled: boolean;
}

function MarkButton({ mark, grid, index, elements, onKeyDown, setFocused, onSelect, onHover, isSelected, isReachable, isLabelled }: MarkButtonProps) {
  return (
    <g
      ref={(element) => {
        if (element) elements.current.set(mark.key, element);
        else elements.current.delete(mark.key);
      }}
      role="button"
      aria-label={describeMark(mark)}
      aria-pressed={isSelected}
      tabIndex={isReachable ? 0 : -1}
      style={{ cursor: "pointer", outlineOffset: 2 }}
      onClick={() => {
        setFocused(mark.key);
        onSelect(mark);
      }}
      onPointerEnter={() => {
        onHover(mark);
      }}
      onPointerLeave={() => {
        onHover(null);
      }}
      onFocus={(event) => {
        if (event.currentTarget.matches(":focus-visible")) onHover(mark);
      }}
      onBlur={() => {
        onHover(null);
      }}
      onKeyDown={(event) => {
        onKeyDown(event, index);
      }}
    >
      <MarkShape mark={mark} x={grid.x(mark.slot)} y={grid.y(mark.lane)} slot={grid.slot} scale={grid.scale} isSelected={isSelected} isLabelled={isLabelled} />
    </g>
  );
}
