import { expect, it } from "vitest";
import { point } from "../test-pages";
import { layOut } from "./timelineLayout";
import { centred, drawnSlots, edgesOf, Grid, isAtEnd, limited, MOST_VISIBLE, newestView, slotAt, viewBetween, zoomedView } from "./timelineView";

/** A timeline of that many marks: each checkpoint of another run. */
const of = (slots: number) => layOut(Array.from({ length: slots }, (_, index) => point(index + 1, index + 1)));
const wide = of(10_000);

it("begins at the newest slot", () => {
  const view = newestView(wide, 1200);
  expect(isAtEnd(wide, view)).toBe(true);
  expect(edgesOf(wide, view)[1]).toBe(9_999);
  expect(view.left + view.width).toBe(new Grid(wide, view.slot).width);
});

it("never draws more slots than a browser lays out at once", () => {
  const all = zoomedView(wide, newestView(wide, 1200), 0.0001);
  const [from, to] = drawnSlots(wide, all);
  expect(to - from).toBeLessThan(MOST_VISIBLE + 60);
  expect(to - from).toBeGreaterThan(MOST_VISIBLE - 1);
});

it("fits a short timeline into the window", () => {
  const short = of(30);
  const all = viewBetween(short, newestView(short, 1200), 0, 29);
  expect(edgesOf(short, all)).toEqual([0, 29]);
  expect(all.left).toBe(0);
});

it("keeps what is in the middle, or at the pointer, where it is when it zooms", () => {
  const before = centred(wide, newestView(wide, 1200), 5_000);
  const middle = ([from, to]: [number, number]) => (from + to) / 2;
  const after = zoomedView(wide, before, 2);
  expect(after.slot).toBe(2 * before.slot);
  expect(middle(edgesOf(wide, after))).toBeCloseTo(5_000);
  const around = zoomedView(wide, before, 2, 5_003);
  const place = (view: typeof before) => new Grid(wide, view.slot).x(5_003) - view.left;
  expect(place(around)).toBeCloseTo(place(before));
  expect(slotAt(around, place(around))).toBeCloseTo(5_003);
});

it("shows the slots between two", () => {
  const view = viewBetween(wide, newestView(wide, 1200), 100, 150);
  const [from, to] = edgesOf(wide, view);
  expect([from <= 100, to >= 150, to - from < 60]).toEqual([true, true, true]);
});

it("stays within the timeline", () => {
  expect(limited(wide, { slot: 64, left: -50, width: 1200 }).left).toBe(0);
  expect(limited(wide, { slot: 1e9, left: 0, width: 1200 }).slot).toBeLessThan(1200);
  const empty = of(0);
  expect(limited(empty, { slot: 64, left: 99, width: 1200 })).toEqual({ slot: 64, left: 0, width: 1200 });
  expect(isAtEnd(of(1), newestView(of(1), 300))).toBe(true);
});
