import { Box } from "@chakra-ui/react";
import { type KeyboardEvent, type PointerEvent, useMemo, useRef, useState } from "react";
import type { Mark, TimelineLayout } from "./timelineLayout";
import { ZOOM } from "./timelineView";

const HEIGHT = 40;
const SIZES: Record<Mark["kind"], readonly [string, number, number]> = {
  checkpoint: ["blue-solid", 12, 8],
  group: ["blue-solid", 12, 8],
  aborted: ["red-solid", 2, 8],
  restore: ["purple-solid", 6, 14],
  savepoint: ["green-solid", 2, 8],
  failure: ["red-solid", 2, 8],
  rejection: ["red-solid", 2, 8],
  action: ["gray-500", 2, 6],
};

/** The ticks of all marks: a path for each colour, so that a long history is a few elements. */
export function ticksOf({ marks }: TimelineLayout): Map<string, string> {
  const paths = new Map<string, string>();
  for (const { kind, slot, undone } of marks) {
    const [token, top, height] = SIZES[kind];
    const colour = undone && token === "blue-solid" ? "gray-500" : token;
    const y = undone ? top + 14 : top;
    paths.set(colour, `${paths.get(colour) ?? ""}M${slot + 0.5},${y}v${height}`);
  }
  return paths;
}

interface Props {
  layout: TimelineLayout;
  /** The slots at the edges of the picture. */
  from: number;
  to: number;
  /** Shows the slots between two. */
  onChoose: (from: number, to: number) => void;
  /** Shows a slot in the middle of the picture. */
  onMove: (middle: number) => void;
  zoom: (factor: number) => void;
}

/** A drag: from the slot where it began to the one where it is. Inside the window it moves it, elsewhere it chooses a part. */
interface Drag {
  begin: number;
  at: number;
  moves: boolean;
}

/** The whole timeline in one strip, with the visible part as a window: drag the window, or drag over another part to see that. */
export function TimelineOverview({ layout, from, to, onChoose, onMove, zoom }: Props) {
  const strip = useRef<SVGSVGElement>(null);
  const [drag, setDrag] = useState<Drag | null>(null);
  const ticks = useMemo(() => ticksOf(layout), [layout]);
  const slots = Math.max(1, layout.slots);
  const slotAt = (event: PointerEvent) => {
    const { left, width } = strip.current?.getBoundingClientRect() ?? { left: 0, width: 1 };
    return Math.max(0, Math.min(slots - 1, ((event.clientX - left) / Math.max(1, width)) * slots - 0.5));
  };
  const middle = (from + to) / 2;
  const onKeyDown = (event: KeyboardEvent) => {
    const step = Math.max(1, (to - from) / 4);
    const places: Record<string, number> = { ArrowLeft: middle - step, ArrowRight: middle + step, Home: 0, End: slots - 1, PageUp: middle + (to - from), PageDown: middle - (to - from) };
    const place = places[event.key];
    if (place !== undefined) onMove(Math.max(0, Math.min(slots - 1, place)));
    else if (event.key === "+" || event.key === "=") zoom(ZOOM);
    else if (event.key === "-") zoom(1 / ZOOM);
    else return;
    event.preventDefault();
  };
  const label = (slot: number) => layout.marks.findLast((mark) => mark.slot <= slot && mark.label !== "")?.label ?? "the beginning";
  return (
    <Box
      asChild
      display="block"
      width="full"
      height={`${HEIGHT}px`}
      mt={2}
      borderWidth="1px"
      borderRadius="md"
      cursor="crosshair"
      touchAction="none"
    >
      <svg
        ref={strip}
        viewBox={`0 0 ${slots} ${HEIGHT}`}
        preserveAspectRatio="none"
        role="slider"
        tabIndex={0}
        aria-label="Visible part of the timeline"
        aria-valuemin={0}
        aria-valuemax={slots - 1}
        aria-valuenow={Math.round(middle)}
        aria-valuetext={`from ${label(from)} to ${label(to)}`}
        onKeyDown={onKeyDown}
        onPointerDown={(event) => {
          event.currentTarget.setPointerCapture(event.pointerId);
          const at = slotAt(event);
          setDrag({ begin: at, at, moves: at >= from && at <= to });
        }}
        onPointerMove={(event) => {
          if (drag === null) return;
          const at = slotAt(event);
          if (drag.moves) onMove(Math.max(0, Math.min(slots - 1, middle + at - drag.at)));
          setDrag({ ...drag, at });
        }}
        onPointerUp={() => {
          if (drag !== null && !drag.moves) {
            // A click is not a part.
            if (Math.abs(drag.at - drag.begin) < slots / 100) onMove(drag.at);
            else onChoose(Math.min(drag.begin, drag.at), Math.max(drag.begin, drag.at));
          }
          setDrag(null);
        }}
        onPointerCancel={() => {
          setDrag(null);
        }}
      >
        <rect x={from} y={0} width={Math.max(slots / 200, to - from + 1)} height={HEIGHT} fill="var(--chakra-colors-blue-subtle)" />
        {[...ticks].map(([colour, path]) => (
          <path key={colour} d={path} fill="none" stroke={`var(--chakra-colors-${colour})`} strokeWidth={2} vectorEffect="non-scaling-stroke" />
        ))}
        <rect x={from} y={0} width={Math.max(slots / 200, to - from + 1)} height={HEIGHT} fill="none" stroke="var(--chakra-colors-fg-muted)" strokeWidth={1} vectorEffect="non-scaling-stroke" />
        {drag !== null && !drag.moves && (
          <rect x={Math.min(drag.begin, drag.at)} y={0} width={Math.abs(drag.at - drag.begin)} height={HEIGHT} fill="var(--chakra-colors-purple-solid)" opacity={0.3} />
        )}
      </svg>
    </Box>
  );
}
