import { Box, Button, Flex } from "@chakra-ui/react";
import { type KeyboardEvent, type ReactNode, type RefObject, useCallback, useEffect, useLayoutEffect, useMemo, useRef, useState } from "react";
import { TimelineCard } from "./TimelineCard";
import type { Mark, TimelineLayout } from "./timelineLayout";
import { describeMark, EdgeLine, MarkShape, RestoreArc, RunName, Times } from "./TimelineMarks";
import { TimelineOverview } from "./TimelineOverview";
import { centred, drawnSlots, edgesOf, Grid, isAtEnd, labelledSlot, limited, newestView, slotAt, type View, viewBetween, zoomedView } from "./timelineView";

/** Until the browser has laid the page out. */
const WIDTH_AT_FIRST = 1200;
const ZOOM = 1.6;
const WHEEL_ZOOM = 1.15;

interface Props {
  layout: TimelineLayout;
  /** Key of the selected mark. */
  selected: string | null;
  onSelect: (mark: Mark) => void;
  /** The path of the job's pages. */
  base: string;
  /** Further buttons above the picture. */
  buttons: ReactNode;
}

/**
 * The history of a job: runs as lines, checkpoints as dots, savepoints as diamonds, restores as arcs back to their base,
 * undone branches below. The arrow keys go from mark to mark, Enter selects one, + and - change the zoom. Only what is
 * visible is drawn; the overview below it shows all, and what is visible.
 */
export function TimelinePicture({ layout, selected, onSelect, base, buttons }: Props) {
  const { box, view, move, follow } = useView(layout, selected);
  const grid = new Grid(layout, view.slot);
  const [hovered, setHovered] = useState<Mark | null>(null);
  const zoom = (factor: number, around?: number) => {
    move(zoomedView(layout, view, factor, around));
  };
  useWheel(box, (factor, x) => {
    zoom(factor, slotAt(view, x));
  });
  const [from, to] = edgesOf(layout, view);
  return (
    <Box>
      <Flex gap={2} wrap="wrap" mb={2}>
        {buttons}
        <Zoom
          label="Zoom in"
          onClick={() => {
            zoom(ZOOM);
          }}
        />
        <Zoom
          label="Zoom out"
          onClick={() => {
            zoom(1 / ZOOM);
          }}
        />
        <Zoom
          label="All"
          onClick={() => {
            move(viewBetween(layout, view, 0, layout.slots - 1));
          }}
        />
        <Zoom
          label="Newest"
          onClick={() => {
            move(newestView(layout, view.width));
          }}
        />
      </Flex>
      <Box position="relative" borderWidth="1px" borderRadius="md" bg="bg">
        <Box
          ref={box}
          overflowX="auto"
          onScroll={() => {
            setHovered(null);
            follow();
          }}
        >
          <Drawing
            {...{ layout, grid, view, selected, onSelect, base, zoom }}
            onHover={setHovered}
            show={(mark) => {
              move(centred(layout, view, mark.slot));
            }}
          />
        </Box>
        {hovered !== null && <TimelineCard mark={hovered} x={grid.x(hovered.slot) - view.left} y={grid.y(hovered.lane)} width={view.width} />}
      </Box>
      <TimelineOverview
        layout={layout}
        from={from}
        to={to}
        onChoose={(first, last) => {
          move(viewBetween(layout, view, first, last));
        }}
        onMove={(middle) => {
          move(centred(layout, view, middle));
        }}
        zoom={zoom}
      />
    </Box>
  );
}

/** Calls for a turn of the wheel with Ctrl, which two fingers on a touchpad send, too; `x` is the place in the element. */
function useWheel(box: RefObject<HTMLDivElement | null>, zoom: (factor: number, x: number) => void): void {
  const newest = useRef(zoom);
  useEffect(() => {
    newest.current = zoom;
  });
  useEffect(() => {
    const element = box.current;
    if (element === null) return;
    const onWheel = (event: WheelEvent) => {
      if (!event.ctrlKey) return;
      // Otherwise the browser would zoom the page.
      event.preventDefault();
      newest.current(event.deltaY < 0 ? WHEEL_ZOOM : 1 / WHEEL_ZOOM, event.clientX - element.getBoundingClientRect().left);
    };
    element.addEventListener("wheel", onWheel, { passive: false });
    return () => {
      element.removeEventListener("wheel", onWheel);
    };
  }, [box]);
}

function Zoom({ label, onClick }: { label: string; onClick: () => void }) {
  return (
    <Button size="sm" variant="outline" onClick={onClick}>
      {label}
    </Button>
  );
}

interface Scrolled {
  /** The element that scrolls. */
  box: RefObject<HTMLDivElement | null>;
  view: View;
  /** Scrolls to another view. */
  move: (view: View) => void;
  /** Follows what a reader has scrolled. */
  follow: () => void;
}

/** An element that scrolls, and what it shows of the timeline: at first the selected mark, or the newest one, which it follows. */
function useView(layout: TimelineLayout, selected: string | null): Scrolled {
  const box = useRef<HTMLDivElement>(null);
  const [view, setView] = useState(() => {
    const [start, newest] = [layout.marks.find(({ key }) => key === selected), newestView(layout, WIDTH_AT_FIRST)];
    return start === undefined ? newest : centred(layout, newest, start.slot);
  });
  // Whether the element has to scroll to the view. A reader who scrolls is ahead of the view: they are not brought back.
  const isMoved = useRef(true);
  const move = useCallback((next: View | ((known: View) => View)) => {
    isMoved.current = true;
    setView(next);
  }, []);
  const before = useRef(layout);
  const resize = useRef<(width: number) => void>(() => undefined);
  useEffect(() => {
    const old = before.current;
    before.current = layout;
    resize.current = (width) => {
      move((known) => limited(layout, { ...known, width, left: isAtEnd(layout, known) ? Number.MAX_SAFE_INTEGER : known.left }));
    };
    // What is new is on the right: whoever looks there sees it, and others keep their place.
    if (old !== layout) move((known) => limited(layout, { ...known, left: isAtEnd(old, known) ? Number.MAX_SAFE_INTEGER : known.left }));
  }, [layout, move]);
  useEffect(() => {
    const element = box.current;
    if (element === null) return;
    const observer = new ResizeObserver(() => {
      if (element.clientWidth > 0) resize.current(element.clientWidth);
    });
    observer.observe(element);
    return () => {
      observer.disconnect();
    };
  }, []);
  useLayoutEffect(() => {
    if (box.current !== null && isMoved.current) box.current.scrollLeft = view.left;
    isMoved.current = false;
  }, [view]);
  const follow = () => {
    const left = box.current?.scrollLeft ?? 0;
    setView((known) => (Math.abs(known.left - left) < 1 ? known : limited(layout, { ...known, left })));
  };
  return { box, view, move, follow };
}

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

function Drawing(props: DrawingProps) {
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
      <MarkShape mark={mark} x={grid.x(mark.slot)} y={grid.y(mark.lane)} scale={grid.scale} isSelected={isSelected} isLabelled={isLabelled} />
    </g>
  );
}
