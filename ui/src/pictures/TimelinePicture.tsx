import { Box, Button, Flex } from "@chakra-ui/react";
import { type ReactNode, type RefObject, useCallback, useEffect, useLayoutEffect, useRef, useState } from "react";
import { TimelineCard } from "./TimelineCard";
import { TimelineDrawing } from "./TimelineDrawing";
import type { Mark, TimelineLayout } from "./timelineLayout";
import { TimelineOverview } from "./TimelineOverview";
import { centred, edgesOf, Grid, isAtEnd, limited, newestView, slotAt, type View, viewBetween, ZOOM, zoomedView } from "./timelineView";

/** Until the browser has laid the page out. */
const WIDTH_AT_FIRST = 1200;
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
 * undone branches below. The arrow keys go from mark to mark, Enter selects one, + and - change the zoom. Only the
 * visible part is drawn; the overview below it shows all, and marks the visible part.
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
          <TimelineDrawing
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
    // New records are on the right: a reader who looks there sees them, and others keep their place.
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
