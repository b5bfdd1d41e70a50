// Which part of a timeline is visible, and where its slots and lanes are in pixels. Pure: the picture scrolls and draws.
import type { Arc, TimelineLayout } from "./timelineLayout";

const NARROWEST_LABEL = 64;
const LETTER = 6.5;
const LANE = 84;
const MARGIN = 56;
const ARC_STEP = 18;
/** More slots than these are never drawn at once: the overview shows all. */
export const MOST_VISIBLE = 250;
/** Slots before and after the visible ones that are drawn, too. */
const BESIDE = 3;
const MOST_ZOOM = 3;
/** How much larger one step of the zoom makes a picture. */
export const ZOOM = 1.6;

/** What of a timeline is visible. */
export interface View {
  /** Pixels between two slots. */
  slot: number;
  /** Pixels of the timeline left of the window. */
  left: number;
  /** Pixels of the window. */
  width: number;
}

/** Pixels between two slots at which each label has its place. */
export function labelledSlot({ marks }: TimelineLayout): number {
  const longest = marks.reduce((most, mark) => Math.max(most, mark.label.length), 0);
  return Math.max(NARROWEST_LABEL, longest * LETTER + 14);
}

/** Pixels of slots and lanes. */
export class Grid {
  readonly width: number;
  readonly height: number;
  private readonly top: number;

  constructor(
    { slots, lanes, arcs }: TimelineLayout,
    /** Pixels between two slots. */
    readonly slot: number,
  ) {
    const levels = arcs.reduce((most, arc) => Math.max(most, arc.level + 1), 0);
    this.top = 48 + levels * ARC_STEP;
    this.width = widthOf(slots, slot);
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

  /** How large marks are: smaller where they would touch each other. */
  get scale(): number {
    return Math.max(0.35, Math.min(1, this.slot / 22));
  }
}

function widthOf(slots: number, slot: number): number {
  return 2 * MARGIN + Math.max(0, slots - 1) * slot;
}

/** The least and the largest distance of slots: from all slots, but not too many, to a few. */
function slotLimits(layout: TimelineLayout, width: number): [number, number] {
  const labelled = labelledSlot(layout);
  const gaps = Math.max(1, Math.min(layout.slots - 1, MOST_VISIBLE));
  return [Math.min(labelled, Math.max(1, (width - 2 * MARGIN) / gaps)), MOST_ZOOM * labelled];
}

/** A view within its limits. */
export function limited(layout: TimelineLayout, { slot, left, width }: View): View {
  const [least, most] = slotLimits(layout, width);
  const allowed = Math.max(least, Math.min(slot, most));
  return { slot: allowed, left: Math.max(0, Math.min(left, widthOf(layout.slots, allowed) - width)), width };
}

/** The newest slots, with the labels of all. */
export function newestView(layout: TimelineLayout, width: number): View {
  return limited(layout, { slot: labelledSlot(layout), left: Number.MAX_SAFE_INTEGER, width });
}

/** Whether the newest slot is visible. */
export function isAtEnd(layout: TimelineLayout, { slot, left, width }: View): boolean {
  return left + width >= widthOf(layout.slots, slot) - MARGIN;
}

/** The slots at the edges of the window, between 0 and the last one. */
export function edgesOf({ slots }: TimelineLayout, view: View): [number, number] {
  const at = (x: number) => Math.max(0, Math.min(slots - 1, slotAt(view, x)));
  return [at(0), at(view.width)];
}

/** The slot at a place in the window, in pixels from its left edge; between two slots, a fraction. */
export function slotAt({ slot, left }: View, x: number): number {
  return (left + x - MARGIN) / slot;
}

/** A view with the same distance of slots, with a slot in its middle. */
export function centred(layout: TimelineLayout, view: View, slot: number): View {
  return limited(layout, { ...view, left: MARGIN + slot * view.slot - view.width / 2 });
}

/** A view that is larger or smaller around its middle, or around another slot. */
export function zoomedView(layout: TimelineLayout, view: View, factor: number, around?: number): View {
  const [from, to] = edgesOf(layout, view);
  const middle = around ?? (from + to) / 2;
  const [least, most] = slotLimits(layout, view.width);
  const slot = Math.max(least, Math.min(view.slot * factor, most));
  // The middle stays at its place in the window.
  const place = MARGIN + middle * view.slot - view.left;
  return limited(layout, { ...view, slot, left: MARGIN + middle * slot - place });
}

/** The view of the slots between two. */
export function viewBetween(layout: TimelineLayout, view: View, from: number, to: number): View {
  const gaps = Math.max(1, Math.abs(to - from));
  return centred(layout, limited(layout, { ...view, slot: (view.width - 2 * MARGIN) / gaps }), (from + to) / 2);
}

/** The slots that are drawn. */
export function drawnSlots(layout: TimelineLayout, view: View): [number, number] {
  const [from, to] = edgesOf(layout, view);
  return [Math.floor(from) - BESIDE, Math.ceil(to) + BESIDE];
}
