// The picture of the history: how a reader moves in it, and what it draws.
import { fireEvent, screen, waitFor, within } from "@testing-library/react";
import userEvent from "@testing-library/user-event";
import { afterEach, beforeEach, expect, it, vi } from "vitest";
import type { ActionEntry, TimelinePage } from "../api";
import { layOut } from "../pictures/timelineLayout";
import { ticksOf } from "../pictures/TimelineOverview";
import { CURRENT, expectAccessible, HOSTILE, open, point, restore, Server, state } from "../test-pages";
import { isBelow } from "../targets";

let server: Server;
let id = 0;
let job = "";

function serve(page: Partial<TimelinePage>): void {
  server.answers[`${job}/timeline`] = { runs: [], checkpoints: [], actions: [], older: false, ...CURRENT, ...page };
}

beforeEach(() => {
  id += 1;
  job = `jobs/timeline-${id}`;
  server = new Server();
  server.answers[job] = state;
  server.start();
});

afterEach(() => {
  vi.unstubAllGlobals();
});

const marks = () => within(screen.getByRole("group", { name: "Timeline" })).getAllByRole("button");
const names = () => marks().map((mark) => /checkpoints? [^,]*/.exec(mark.getAttribute("aria-label") ?? "")?.[0]);
const visible = () => screen.getByRole("slider", { name: "Visible part of the timeline" });

it("draws only what is visible of thousands of checkpoints, and reaches the others by the keyboard", async () => {
  // Each run has made one checkpoint, so that none are collapsed within a run.
  serve({ checkpoints: Array.from({ length: 2000 }, (_, index) => point(index + 1, index + 1)) });
  open(`/${job}/timeline`);
  await screen.findByRole("group", { name: "Timeline" });
  const user = userEvent.setup();
  // Runs are collapsed at first, as they are many.
  await user.click(screen.getByRole("button", { name: "Collapse runs", pressed: true }));
  expect(marks().length).toBeLessThan(40);
  expect(names().at(-1)).toBe("checkpoint 2000");
  await user.click(screen.getByRole("button", { name: "All" }));
  expect(marks().length).toBeLessThan(320);
  expect(visible().getAttribute("aria-valuemax")).toBe("1999");

  await user.click(screen.getByRole("button", { name: "Newest" }));
  marks().at(-1)?.focus();
  await user.keyboard("{Home}");
  await waitFor(() => {
    expect(document.activeElement?.getAttribute("aria-label")).toContain("checkpoint 1,");
  });
  await user.keyboard("{ArrowRight}{ArrowRight}{Enter}");
  expect(screen.getByRole("heading", { name: "Checkpoint 3" })).toBeDefined();
  const shown = names().length;
  await user.keyboard("----");
  expect(names().length).toBeGreaterThan(shown);
});

it("shows older parts of a history, in which no point is the present state", async () => {
  const named: ActionEntry = { ...restore, kind: "savepoint", seq: 5, checkpoint_id: 5, restored_checkpoint_id: null, facts: { savepoint: "weekly", savepoint_id: "s" } };
  serve({ checkpoints: [point(21, 3), point(22, 3)], actions: [{ ...named, kind: "dispose", seq: 22, checkpoint_id: null }], older: true, next_cursor: "older" });
  const { container } = open(`/${job}/timeline`);
  await screen.findByRole("button", { name: /the present state/ });
  const user = userEvent.setup();
  await user.click(screen.getByRole("button", { name: "Show older records" }));
  await waitFor(() => {
    expect(server.queries.at(-1)).toBe(`${job}/timeline?limit=2000`);
  });
  // A restore after this part has undone checkpoint 6.
  serve({ checkpoints: [point(4, 1), point(5, 1), { ...point(6, 2), undone: true }], actions: [named], older: false, next_cursor: null });
  await user.click(await screen.findByRole("button", { name: "Show older records" }));
  await waitFor(() => {
    expect(names()).toContain("checkpoint 6");
  });
  expect(server.queries.at(-1)).toBe(`${job}/timeline?limit=2000&cursor=older`);
  const labels = marks().map((mark) => mark.getAttribute("aria-label") ?? "");
  expect(labels.some((label) => label.includes("the present state"))).toBe(false);
  expect(labels.filter((label) => label.includes("undone")).map((label) => /checkpoint \d+/.exec(label)?.[0])).toEqual(["checkpoint 6"]);
  expect(screen.queryByRole("button", { name: "Show older records" })).toBeNull();
  // A record of the newest part says that it is deleted.
  await user.click(screen.getByRole("button", { name: /^savepoint weekly/ }));
  expect(screen.getByRole("heading", { name: "Savepoint weekly" })).toBeDefined();
  expect(screen.queryByRole("link", { name: /^Restore to here/ })).toBeNull();
  await expectAccessible(container);
});

it("offers no restore to a checkpoint that only a reader keeps", async () => {
  serve({ checkpoints: [{ ...point(1, 1), retained: true }, { ...point(2, 1), retained: true, undone: true }, point(4, 2)], actions: [{ ...restore, seq: 3, checkpoint_id: 3, restored_checkpoint_id: 1 }] });
  open(`/${job}/timeline`);
  const user = userEvent.setup();
  await user.click(await screen.findByRole("button", { name: /^checkpoint 2,/ }));
  expect(screen.queryByRole("link", { name: /^Restore to here/ })).toBeNull();
  await user.click(screen.getByRole("button", { name: /^checkpoint 1,/ }));
  expect(screen.getByRole("link", { name: "Restore to here: 1" })).toBeDefined();
});

it("moves and zooms by the strip of the whole timeline", async () => {
  serve({ checkpoints: Array.from({ length: 100 }, (_, index) => point(index + 1, index + 1)) });
  const { container } = open(`/${job}/timeline`);
  await screen.findByRole("group", { name: "Timeline" });
  const strip = visible();
  expect(strip.getAttribute("aria-valuetext")).toMatch(/to 100$/);
  strip.focus();
  await userEvent.setup().keyboard("{Home}");
  expect(names()[0]).toBe("checkpoint 1");
  // The strip is as wide as 100 marks.
  vi.spyOn(strip, "getBoundingClientRect").mockReturnValue(new DOMRect(0, 0, 1000, 40));
  Object.assign(strip, { setPointerCapture: () => undefined });
  const drag = (from: number, to: number) => {
    // jsdom's events of pointers have no places.
    const event = (type: string, clientX: number) => fireEvent(strip, new MouseEvent(type, { bubbles: true, clientX }));
    event("pointerdown", from);
    event("pointermove", to);
    event("pointerup", to);
  };
  drag(600, 650);
  expect(names().filter((name) => name !== "checkpoint 100").at(0)).toMatch(/checkpoint 5[4-9]/);
  expect(strip.getAttribute("aria-valuenow")).toBe("62");
  // The window itself is dragged.
  drag(625, 725);
  expect(strip.getAttribute("aria-valuenow")).toBe("72");
  // A click shows its place.
  drag(100, 100);
  expect(strip.getAttribute("aria-valuenow")).toBe("10");
  const scrolled = screen.getByRole("group", { name: "Timeline" }).parentElement as HTMLElement;
  const shown = marks().length;
  const turned = (ctrlKey: boolean) => fireEvent.wheel(scrolled, { deltaY: 100, ctrlKey, clientX: 600 });
  // Without Ctrl, the page scrolls.
  expect([turned(false), marks().length]).toEqual([true, shown]);
  expect(turned(true)).toBe(false);
  turned(true);
  turned(true);
  expect(marks().length).toBeGreaterThan(shown);
  await expectAccessible(container);
});

it("shows a card of what the pointer is at, with both people of an approval", async () => {
  const back = { ...restore, seq: 17, checkpoint_id: 17, note: "looks right" };
  serve({ checkpoints: [10, 11, 12, 13, 14, 15, 16, 18].map((each) => point(each, each)), actions: [back] });
  const { container } = open(`/${job}/timeline`);
  const mark = await screen.findByRole("button", { name: /^restore 17/ });
  const user = userEvent.setup();
  await user.hover(mark);
  const card = screen.getByText("Restore, checkpoint 17", { selector: "p" }).parentElement;
  expect(card?.textContent).toContain("oscar (claimed name, account root@host), requested by uma");
  expect(card?.textContent).toContain(`reason: ${HOSTILE}note: looks right`);
  await user.unhover(mark);
  expect(screen.queryByText("Restore, checkpoint 17", { selector: "p" })).toBeNull();
  expect(container.querySelector("svg[aria-label=Timeline]")?.textContent).toContain("uma, approved by oscar: ");
  expect(container.querySelector("img")).toBeNull();
});

it("links runs, people and checkpoints, and offers no restore to a savepoint that is deleted", async () => {
  const saved: ActionEntry = { ...restore, kind: "savepoint", seq: 10, checkpoint_id: 10, restored_checkpoint_id: null, facts: { savepoint: "weekly", savepoint_id: "s" } };
  const deleted: ActionEntry = { ...saved, kind: "dispose", checkpoint_id: null };
  const checkpoints = [{ ...point(10, 1), retained: false }, point(12, 2)];
  serve({ checkpoints, actions: [saved] });
  const { unmount } = open(`/${job}/timeline`);
  const user = userEvent.setup();
  await user.click(await screen.findByRole("button", { name: /^savepoint weekly/ }));
  expect(screen.getByRole("link", { name: "Restore to here: weekly" })).toBeDefined();
  const details = screen.getByRole("region", { name: "Selected point" });
  expect(within(details).getByRole("link", { name: "uma" }).getAttribute("href")).toBe(`/${job}/journal?person=uma`);
  await user.click(screen.getByRole("button", { name: /^checkpoint 12/ }));
  expect(within(details).getByRole("link", { name: "run 2" }).getAttribute("href")).toBe(`/${job}/runs/2`);
  expect(within(details).getByRole("link", { name: /^Operators/ }).getAttribute("href")).toContain("point=12");
  unmount();

  serve({ checkpoints, actions: [saved, deleted] });
  open(`/${job}/timeline?mark=savepoint:10@${encodeURIComponent(saved.ended_at ?? "")}`);
  expect(await screen.findByRole("heading", { name: "Savepoint weekly" })).toBeDefined();
  await waitFor(() => {
    expect(screen.queryByRole("link", { name: /^Restore to here/ })).toBeNull();
  });
});

it("restores a savepoint outside of the job root by its path", async () => {
  const saved: ActionEntry = { ...restore, kind: "savepoint", seq: 10, checkpoint_id: 10, restored_checkpoint_id: null };
  const failed: ActionEntry = { ...restore, kind: "failure", seq: 1, checkpoint_id: null, restored_checkpoint_id: null, ended_at: "2026-01-31T02:00:00.000Z" };
  const named = (savepoint: string, path: string, seq: number) => ({ ...saved, seq, facts: { savepoint, savepoint_id: savepoint, path } });
  serve({ checkpoints: [{ ...point(10, 1), retained: false }, point(12, 2)], actions: [failed, named("inside", "file:///jobs/flights/savepoints/inside", 10), named("outside", "/jobs/flights-backup/outside", 11)] });
  const { unmount } = open(`/${job}/timeline`);
  const user = userEvent.setup();
  await user.click(await screen.findByRole("button", { name: /^savepoint outside/ }));
  expect(screen.getByRole("link", { name: "Restore to here: /jobs/flights-backup/outside" })).toBeDefined();
  await user.click(screen.getByRole("button", { name: /^savepoint inside/ }));
  expect(screen.getByRole("link", { name: "Restore to here: inside" })).toBeDefined();
  expect(visible().getAttribute("aria-valuetext")).toMatch(/^from the beginning to /);
  unmount();

  server.answers[`${job}/savepoints`] = { savepoints: [], older: false, elsewhere: [], ...CURRENT };
  open(`/${job}/restore`);
  await user.click(await screen.findByRole("button", { name: /^savepoint outside/ }));
  expect(await screen.findByRole("heading", { name: /to \/jobs\/flights-backup\/outside$/ })).toBeDefined();
});

it("compares a path with a job root, as a URI or not", () => {
  // As the storage of a folder writes its URI.
  expect(isBelow("file:///data/my%20jobs/savepoints/a", "/data/my jobs")).toBe(true);
  expect(isBelow("s3://bucket/jobs/savepoints/a", "s3://bucket/jobs/")).toBe(true);
  expect(["file:///jobs/flights-backup/a", "s3://jobs/flights/a", "file:///jobs/%zz", ""].map((each) => isBelow(each, "/jobs/flights"))).toEqual([false, false, false, false]);
});

it("draws a long history as a path of each colour", () => {
  const layout = layOut([point(1, 1), point(2, 2), { ...point(3, 3), status: "aborted", checkpoint_id: null, previous_checkpoint_id: 2 }, { ...restore, checkpoint_id: 4, seq: 4, restored_checkpoint_id: 1 }]);
  const ticks = ticksOf(layout);
  expect([...ticks.keys()].sort()).toEqual(["blue-solid", "gray-500", "purple-solid", "red-solid"]);
  expect(ticks.get("blue-solid")).toBe("M0.5,12v8");
  // Checkpoint 2 is undone, and lower.
  expect(ticks.get("gray-500")).toBe("M1.5,26v8");
});
