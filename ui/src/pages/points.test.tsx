// Runs, checkpoints, filters of lists, and the charts of the page State.
import { act, fireEvent, screen, waitFor, within } from "@testing-library/react";
import userEvent from "@testing-library/user-event";
import { afterEach, beforeEach, expect, it, vi } from "vitest";
import type { CheckpointEntry, CheckpointPage, CheckpointSummary, JobState, OperatorDetails, OperatorMetrics, RunPage } from "../api";
import { phasesOf } from "../pictures/DurationBar";
import { attempt, CURRENT, described, expectAccessible, family, HOSTILE, open, point, restore, runSummary, savepoint, Server, state, timeline } from "../test-pages";
import { FakePlot } from "../test-uplot";

const checkpoint: CheckpointEntry = {
  kind: "checkpoint",
  checkpoint_id: 12,
  previous_checkpoint_id: null,
  undone: false,
  retained: true,
  integrity: "verified",
  generation: 9,
  ordinal: 2,
  run: 2,
  base_checkpoint_id: 10,
  branch: null,
  ended_at: "2026-01-31T03:00:00.000Z",
  duration_ms: 1000,
  increment_bytes: 500,
  full_bytes: 2470,
  files: 7,
  rows_in: 1234,
  rows_out: { out: 20 },
  compaction_bytes: 0,
  driver: "host:1",
  reason: null,
  status: "completed",
  failure: null,
  triggered_at: null,
  trigger_ms: 10,
  start_delay_ms: 300,
  alignment_ms: 0,
  sync_ms: 200,
  async_ms: 100,
  commit_ms: 30,
  publish_ms: 60,
  new_files: 2,
  manifest_bytes: 0,
  subtasks: {},
  code_hash: null,
  operators: {},
  sinks: {},
  cpu_ms: 20,
  storage_requests: 3,
  storage_read_bytes: 4,
  storage_written_bytes: 5,
};
const listed: CheckpointSummary = { ...point(12, 2), generation: 9, rows_in: 1234, full_bytes: 2470, live_bytes: 2000, retained: true };
const metrics: OperatorMetrics = {
  subtasks: 2,
  rows_in: 1234,
  rows_out: 1200,
  rows_filtered: 34,
  rows_late: 8,
  rows_dropped: 3,
  dead_letters: 1,
  state_bytes: 2470,
  live_bytes: 2000,
  state_entries: 600,
  live_entries: 500,
  state_entries_exact: false,
  function_ms: 1500,
  state_ms: 2500,
  store_ms: 3500,
  cpu_ms: 4500,
  busiest_subtask_rows: 1000,
  skew_ratio: 1.62,
  watermark_at: null,
  watermark_lag_ms: null,
  spread: { rows_in: { min: 234, avg: 617, max: 1000 } },
  busiest: [{ subtask: 1, rows_in: 1000, state_bytes: 1470, function_ms: 1200, cpu_ms: 4000 }],
};
const operator: OperatorDetails = {
  uid: "count",
  subtasks: 2,
  files: 3,
  size_bytes: 2470,
  live_bytes: null,
  states: ["total"],
  operator_states: [],
  metrics: null,
  parallelism: 2,
  key_names: ["customer"],
  key_types: ["long"],
  watermark_at: null,
  subtask_details: [
    { subtask: 0, first_key_group: 0, last_key_group: 63, backend: "dict", files: 1, size_bytes: 1000, live_bytes: 900, state_entries: 5, live_entries: 5 },
    { subtask: 1, first_key_group: 64, last_key_group: 127, backend: "dict", files: 2, size_bytes: 1470, live_bytes: null, state_entries: null, live_entries: null },
  ],
};
const source = (position: number) => ({ uid: "orders", description: null, offset: { file: position }, watermark_at: null, active_at: null, idle: null });
const page: CheckpointPage = { entry: checkpoint, description: null, operators: [operator], sources: [source(5)], ...CURRENT };
const before: CheckpointPage = { ...page, entry: { ...checkpoint, checkpoint_id: 10, base_checkpoint_id: null }, operators: [{ ...operator, size_bytes: 1000 }], sources: [source(3)] };

function withDescription(more: Partial<JobState>): JobState {
  const pin = { id: "p", checkpoint_id: 12, owner: { name: "ada", source: "os-user" as const, account: null }, reason: HOSTILE, pinned_at: null, expires_at: null };
  const description = { ...described, pins: [pin] };
  return { ...state, checkpoint_id: 13, description, ...more };
}

let server: Server;
let id = 0;
let job = "";

beforeEach(() => {
  id += 1;
  job = `jobs/points-${id}`;
  server = new Server();
  Object.assign(server.answers, {
    [job]: withDescription({}),
    [`${job}/family`]: undefined,
    [`${job}/points`]: { points: [listed], next_cursor: null, ...CURRENT },
    [`${job}/timeline`]: { ...timeline, actions: [], checkpoints: Array.from({ length: 300 }, (_, index) => ({ ...point(index + 1, 1), rows_in: index + 1, undone: index === 298 })) },
    [`${job}/savepoints`]: { savepoints: [{ ...savepoint("weekly", "periodic"), checkpoint_id: 12 }], older: false, elsewhere: [], ...CURRENT },
    [`${job}/checkpoints/12`]: page,
    [`${job}/checkpoints/10`]: before,
    [`${job}/journal`]: { entries: [], jobs: [], next_cursor: null },
  });
  server.start();
  FakePlot.made.length = 0;
});

afterEach(() => {
  vi.useRealTimers();
  vi.unstubAllGlobals();
});

it("shows a checkpoint next to the page: who needs it, its subtasks, and what it changed", async () => {
  const { container } = open(`/${job}?point=12`);
  const dialog = await screen.findByRole("dialog", { name: "Checkpoint 12" });
  const needs = await within(dialog).findByRole("region", { name: "Who needs it" });
  await within(needs).findByRole("link", { name: "weekly" });
  expect(needs.textContent).toContain("one of 3 retained checkpoints");
  expect(needs.textContent).toContain(`ada reads it: ${HOSTILE}`);
  expect(within(dialog).getByRole("link", { name: "Restore to here: 12" }).getAttribute("href")).toBe(`/${job}/restore?to=12`);
  const difference = await within(dialog).findByRole("region", { name: "Difference between the checkpoints" });
  expect(difference.textContent).toContain("count1 kB → 2.5 kB (+1.5 kB) in files");
  expect(difference.textContent).toContain('source orders{"file":3} → {"file":5}');
  await userEvent.setup().click(within(dialog).getByText("2 subtasks of count"));
  const subtasks = await within(dialog).findByRole("region", { name: "Subtasks of count" });
  expect(subtasks.textContent).toContain("164–1271.5 kB in filesnot known2dict");
  expect(container.querySelector("img")).toBeNull();
  await expectAccessible(container);
});

/** The texts of a row's cells, by column. */
function cellsOf(table: HTMLElement, row: number): Record<string, string> {
  const titles = within(table).getAllByRole("columnheader").map((each) => each.textContent);
  const cells = within(within(table).getAllByRole("row")[row] as HTMLElement).getAllByRole("cell");
  return Object.fromEntries(titles.map((title, index) => [title, cells[index]?.textContent.replaceAll(/\s/gu, " ") ?? ""]));
}

const WORK = {
  ...{ "Rows in": "1,234", "Rows out": "1,200", Late: "8", "Dropped as late": "3", Filtered: "34", "Dead letters": "1" },
  ...{ "In functions": "1.5 sec", "In state": "2.5 sec", "In stores": "3.5 sec", CPU: "4.5 sec", Skew: "1.6" },
  ...{ State: "about 2 kB live; 2.5 kB in files", Entries: "about 600, at least 500 live", "Busiest subtasks of the last batch": "1: 1,000 rows, 1.5 kB" },
};

it("shows what each operator of a checkpoint has done, and its subtasks, also of one that is not kept", async () => {
  const entry = { ...checkpoint, operators: { count: metrics }, sinks: { out: { rows: 20, written_bytes: 3000, files: 2, publish_ms: 60 } } };
  const kept = { ...operator, live_bytes: 2000, metrics };
  Object.assign(server.answers, {
    [`${job}/checkpoints/12`]: { ...page, entry, operators: [kept] },
    [`${job}/checkpoints/11`]: { ...page, entry: { ...entry, checkpoint_id: 11, retained: false }, operators: [] },
    [job]: withDescription({ operators: [kept] }),
  });
  for (const shown of [12, 11]) {
    const { container, unmount } = open(`/${job}/journal?point=${shown}`);
    const dialog = await screen.findByRole("dialog", { name: `Checkpoint ${shown}` });
    expect(cellsOf(await within(dialog).findByRole("region", { name: "Operators of the checkpoint" }), 1)).toMatchObject(WORK);
    expect(cellsOf(within(dialog).getByRole("region", { name: "Output of the checkpoint" }), 1)).toMatchObject({ Sink: "out", Rows: "20", Size: "3 kB", Publication: "60 ms" });
    await userEvent.setup().click(within(dialog).getByText("2 subtasks of count"));
    const spread = await within(dialog).findByRole("region", { name: "Spread over the subtasks of count" });
    expect(cellsOf(spread, 1)).toMatchObject({ Least: "234", Average: "617", Most: "1,000" });
    const subtasks = within(dialog).getByRole("region", { name: "Subtasks of count" });
    expect(cellsOf(subtasks, shown === 12 ? 2 : 1)).toMatchObject({ Subtask: "1", "Rows in": "1,000", "In functions": "1.2 sec", CPU: "4 sec" });
    await expectAccessible(container);
    unmount();
  }
  open(`/${job}`);
  expect(cellsOf(await screen.findByRole("region", { name: "Operators at the newest checkpoint" }), 1)).toMatchObject(WORK);
});

it("shows where each sink stands, its target, and what it may lack", async () => {
  const sink = { table_id: "t", version: 7, checkpoint_id: 12, description: "DeltaSink", location: HOSTILE, metrics: { rows: 20, written_bytes: 3000, files: 2, publish_ms: 60 }, pending_checkpoint_ids: [] };
  const behind = { table_id: "u", version: null, checkpoint_id: null, description: null, location: null, metrics: null, pending_checkpoint_ids: [7, 8, 9, 10, 11, 12, 13] };
  server.answers[job] = withDescription({ sinks: { out: sink, late: behind } });
  const { container } = open(`/${job}`);
  const table = await screen.findByRole("region", { name: "Sinks at the newest checkpoint" });
  const lacks = "Not known to be published";
  expect(cellsOf(table, 1)).toEqual({ Sink: "out", "Writes to": `DeltaSink ${HOSTILE} Copy`, Version: "7", "Published up to": "checkpoint 12", Rows: "20", Size: "3 kB", Files: "2", Publication: "60 ms", [lacks]: "none" });
  expect(cellsOf(table, 2)).toMatchObject({ "Writes to": "u ", Version: "not known", "Published up to": "nothing yet", [lacks]: "checkpoint 9, checkpoint 10, checkpoint 11, checkpoint 12, checkpoint 13, and 2 before" });
  expect(container.querySelector("img")).toBeNull();
});

it("shows how far a run is in a batch that takes long, with its try and the time of the report", async () => {
  const progress = { reported_at: "2026-01-31T03:00:00.000Z", ordinal: 4, batch_started_at: "2026-01-31T02:59:00.000Z", batches: 3, rows_in: 5000, driver: "host:1", reason: null };
  server.answers[job] = withDescription({ description: { ...described, run_open: true, progress }, runs: [runSummary(9, { run: 2, is_open: true, attempt: attempt(2) })] });
  open(`/${job}`);
  const batch = await screen.findByRole("region", { name: "The batch that is running" });
  const facts = (name: string) => within(batch).getByText(name, { selector: "dt" }).nextElementSibling?.textContent;
  expect([facts("Rows read before it"), facts("Host and process"), facts("Try")]).toEqual(["5,000 rows, by the completed batches", "host:1", "2"]);
  expect(facts("Its begin")).toContain("2:59:00");
  expect(facts("Reported")).toContain("3:00:00");
});

it("says after a restore who restored the point and why, until a run makes a checkpoint", async () => {
  server.answers[job] = withDescription({ checkpoint_id: 10, label: "checkpoint 10", run: 1, generation: 11, newest: { ...checkpoint, checkpoint_id: 10, generation: 3, run: 1 }, restore });
  const { container } = open(`/${job}`);
  const link = await screen.findByRole("link", { name: "restored" });
  expect(link.getAttribute("href")).toBe(`/${job}/timeline?mark=restore:11`);
  const sentence = link.closest("p")?.textContent.replaceAll(/\s+/gu, " ") ?? "";
  expect(sentence).toContain("stands at checkpoint 10, restored ");
  expect(sentence).toContain(`by oscar (claimed name, account root@host), requested by uma: ${HOSTILE}. It was committed `);
  expect(sentence).toContain(" by run 1. Input waiting");
  expect(container.querySelector("img")).toBeNull();
});

it("says which sizes a chart has", async () => {
  const part = timeline.checkpoints.map((each) => ({ ...each, full_bytes: 5000, live_bytes: 2000 }));
  const nameOf = async (address: string, checkpoints: typeof part) => {
    Object.assign(server.answers, { [address]: withDescription({}), [`${address}/points`]: server.answers[`${job}/points`], [`${address}/timeline`]: { ...timeline, checkpoints } });
    const made = FakePlot.made.length;
    const { unmount } = open(`/${address}`);
    const charts = await screen.findByRole("region", { name: "Charts of the checkpoints" });
    const text = within(charts).getByText("State").parentElement?.textContent;
    // The plots are made after the page is drawn.
    await waitFor(() => {
      expect(FakePlot.made.length).toBeGreaterThanOrEqual(made + 3);
    });
    const values = FakePlot.made.at(-3)?.data[1];
    unmount();
    return [text, values];
  };
  expect(await nameOf(`${job}-live`, part)).toEqual(["State (live size)", [2000, 2000]]);
  expect(await nameOf(`${job}-files`, part.map((each) => ({ ...each, live_bytes: null as never })))).toEqual(["State (size of files)", [5000, 5000]]);
});

it("closes the checkpoint, and says that one that is not kept is not needed", async () => {
  server.answers[`${job}/checkpoints/11`] = { ...page, entry: { ...checkpoint, checkpoint_id: 11, retained: false, base_checkpoint_id: null }, operators: [] };
  open(`/${job}/journal?point=11&person=uma`);
  const dialog = await screen.findByRole("dialog", { name: "Checkpoint 11" });
  expect(await within(dialog).findByText(/^Not needed: /)).toBeDefined();
  expect(within(dialog).queryByRole("link", { name: /Restore to here/ })).toBeNull();
  await userEvent.setup().click(within(dialog).getByRole("button", { name: "Close" }));
  expect(screen.queryByRole("dialog")).toBeNull();
  // The rest of the address stays.
  expect(screen.getByRole<HTMLInputElement>("textbox", { name: "Person" }).value).toBe("uma");
});

it("says that a checkpoint is not needed only once all savepoints are known", async () => {
  Object.assign(server.answers, {
    [`${job}/checkpoints/11`]: { ...page, entry: { ...checkpoint, checkpoint_id: 11, retained: false, base_checkpoint_id: null }, operators: [] },
    [`${job}/savepoints`]: new Promise(() => undefined),
  });
  const needs = async () => within(await screen.findByRole("dialog", { name: "Checkpoint 11" })).findByRole("region", { name: "Who needs it" });
  const first = open(`/${job}?point=11`);
  expect(await within(await needs()).findByText("Its savepoints are being read.")).toBeDefined();
  expect((await needs()).textContent).not.toContain("Not needed");
  first.unmount();

  server.answers[`${job}/savepoints`] = undefined;
  const second = open(`/${job}?point=11`);
  expect(await within(await needs()).findByText(/cannot be read now/)).toBeDefined();
  expect((await needs()).textContent).not.toContain("Not needed");
  second.unmount();

  server.answers[`${job}/savepoints`] = { savepoints: [], older: true, elsewhere: [], ...CURRENT };
  const third = open(`/${job}?point=11`);
  expect(await within(await needs()).findByText(/older savepoint/)).toBeDefined();
  expect((await needs()).textContent).not.toContain("Not needed");
  third.unmount();

  const [restore] = timeline.actions;
  server.answers[`${job}/savepoints`] = { savepoints: [], older: false, elsewhere: [{ ...restore, kind: "savepoint", facts: { path: "s3://backup/weekly" } }], ...CURRENT };
  open(`/${job}?point=11`);
  expect(await within(await needs()).findByText("s3://backup/weekly")).toBeDefined();
  expect((await needs()).textContent).not.toContain("Not needed");
});

it("keeps times in UTC in the address, and shows them in the zone of the reader", async () => {
  localStorage.setItem("timezone", JSON.stringify("Asia/Tokyo"));
  const first = open(`/${job}?since=2026-01-31T02:00:00.000Z`);
  const since = await screen.findByLabelText<HTMLInputElement>("Since");
  expect(since.value).toBe("2026-01-31T11:00");
  await waitFor(() => {
    expect(server.queries).toContain(`${job}/points?since=2026-01-31T02%3A00%3A00.000Z`);
  });
  fireEvent.change(since, { target: { value: "2026-02-01T00:00" } });
  await waitFor(() => {
    expect(server.queries.at(-1)).toBe(`${job}/points?since=2026-01-31T15%3A00%3A00.000Z`);
  });
  // A reader elsewhere sees the same instant.
  localStorage.setItem("timezone", JSON.stringify("America/New_York"));
  fireEvent.change(screen.getByLabelText("Branch"), { target: { value: "true" } });
  await waitFor(() => {
    expect(server.queries.at(-1)).toBe(`${job}/points?undone=true&since=2026-01-31T15%3A00%3A00.000Z`);
  });
  expect(since.value).toBe("2026-01-31T10:00");
  first.unmount();
  localStorage.clear();
});

it("asks once for the history of a job, says whether the record of its savepoint is verified, and counts only tables that are restored", async () => {
  const saved = { name: "weekly", checkpoint_id: 12, made_at: null, by: null, requested_by: null, origin: "manual", path: null, size_bytes: null };
  const restoring = { seq: 13, target_label: "checkpoint 10", by: null, requested_by: null, reason: null, requested_at: null, tables: { out: 5, audit: null }, restored_tables: [] };
  server.answers[job] = withDescription({ savepoint: saved, savepoint_integrity: "verified", description: { ...described, restoring } });
  open(`/${job}`);
  expect(await screen.findByText("✓ Its record in the history is verified.")).toBeDefined();
  await screen.findByRole("region", { name: "Charts of the checkpoints" });
  expect(server.queries.filter((query) => query === `${job}/timeline`).length).toBe(1);
  expect(screen.getByText("0 of 1 table restored.")).toBeDefined();
});

it("says that a restore has begun and not ended, only while it has", async () => {
  server.answers[job] = withDescription({ description: { ...described, restore_open: true } });
  const first = open(`/${job}`);
  expect(await screen.findByText("A restore has claimed the job and has not ended")).toBeDefined();
  first.unmount();
  server.answers[job] = withDescription({ checkpoint_id: 14 });
  open(`/${job}`);
  await waitFor(() => {
    expect(screen.queryByText("A restore has claimed the job and has not ended")).toBeNull();
  });
});

it("reads the savepoints of a job only where they are shown, not on the page State at each checkpoint", async () => {
  vi.useFakeTimers({ shouldAdvanceTime: true });
  open(`/${job}`);
  await screen.findByRole("region", { name: "Charts of the checkpoints" });
  server.answers[job] = withDescription({ checkpoint_id: 14 });
  await vi.advanceTimersByTimeAsync(61_000);
  expect((await screen.findAllByRole("link", { name: "14" })).length).toBeGreaterThan(0);
  expect(server.queries.filter((query) => query.includes("savepoints"))).toEqual([]);
});

it("does not say that nothing is undone while records of the history are missing", async () => {
  server.answers[job] = withDescription({ undone_count: 0, history_complete: false });
  const first = open(`/${job}`);
  expect(await screen.findByText(/Nothing is undone as far as the history is read/)).toBeDefined();
  first.unmount();
  server.answers[job] = withDescription({ undone_count: 2, history_complete: false });
  open(`/${job}`);
  expect(await screen.findByText("at least 2 checkpoints")).toBeDefined();
});

it("goes back in the charts part by part, with one part in memory", async () => {
  const part = (first: number, next: string | null) => ({ ...timeline, actions: [], older: next !== null, next_cursor: next, checkpoints: Array.from({ length: 30 }, (_, index) => point(first + index, 1)) });
  server.answers[`${job}/timeline`] = part(61, "one");
  open(`/${job}`);
  const charts = await screen.findByRole("region", { name: "Charts of the checkpoints" });
  const shown = () => within(charts).getByText(/^checkpoints /).textContent;
  const user = userEvent.setup();
  const ask = async (button: string, query: string, first: number) => {
    await user.click(within(charts).getByRole("button", { name: button }));
    await waitFor(() => {
      expect(server.queries.at(-1)).toBe(`${job}/timeline?${query}`);
      expect(shown()).toContain(`checkpoints ${first} to ${first + 29}`);
    });
  };
  await ask("Show older records", "limit=2000", 61);
  server.answers[`${job}/timeline`] = part(31, "two");
  await ask("Show older records", "limit=2000&cursor=one", 31);
  server.answers[`${job}/timeline`] = part(1, null);
  await ask("Show older records", "limit=2000&cursor=two", 1);
  expect(within(charts).queryByRole("button", { name: "Show older records" })).toBeNull();
  server.answers[`${job}/timeline`] = part(31, "two");
  await ask("Show newer records", "limit=2000&cursor=one", 31);
});

it("divides the duration of a checkpoint into its phases", () => {
  const phases = phasesOf(checkpoint);
  expect(phases.map(({ name, ms }) => [name, ms])).toEqual([
    ["trigger", 10],
    ["rows", 300],
    ["snapshot", 200],
    ["storing files", 100],
    ["commit", 30],
    ["publication", 60],
    ["other batches", 300],
  ]);
  expect(phases.reduce((sum, { ms }) => sum + ms, 0)).toBe(checkpoint.duration_ms);
});

it("says where the job stands, by which try, and since when nothing is undone", async () => {
  const failure = { generation: 8, failed_at: null, code: "storage", message: "" };
  const runs = [runSummary(9, { run: 2, reason: "flights/r/run/2", attempt: attempt(2) }), runSummary(8, { run: 1, reason: "flights/r/run/1", attempt: attempt(1), failure })];
  server.answers[job] = withDescription({ runs, newest: checkpoint, next_run_at: new Date(Date.now() + 5 * 60_000 + 5_000).toISOString() });
  server.answers[`${job}/points`] = { points: [{ ...timeline.actions[0], ended_at: "2026-01-31T13:19:00.000Z" }], next_cursor: null, ...CURRENT };
  const { container } = open(`/${job}`);
  const sentence = await waitFor(() => {
    const found = [...container.querySelectorAll("p")].find((each) => each.textContent.includes("stands at"));
    expect(found?.textContent).toContain("Nothing undone since");
    return found?.textContent ?? "";
  });
  expect(sentence).toContain("by run 2 (try 2; try 1 failed: storage)");
  expect(sentence).toContain("Input waiting: not known.");
  expect(sentence.replaceAll(/\s/gu, " ")).toContain("Jan 31, 2026, 1:19:00 PM; before that, 1 checkpoint of its history is undone.");
  expect(sentence).toContain("The next run is planned in 5 min.");
  expect(server.queries).toContain(`${job}/points?kind=restore&limit=1`);
});

it("asks for the points that a person wants, and keeps the filters in the address", async () => {
  server.answers[`${job}/points`] = { points: [listed], next_cursor: "older", ...CURRENT };
  open(`/${job}?retained=true&since=2026-01-31T02:00&generation=5`);
  const user = userEvent.setup();
  const filters = await screen.findByRole("region", { name: "Filters of the points" });
  await waitFor(() => {
    expect(server.queries).toContain(`${job}/points?retained=true&generation=5&since=2026-01-31T02%3A00%3A00.000Z`);
  });
  const runs = within(filters).getByLabelText<HTMLSelectElement>("Run");
  expect(runs.value).toBe("5");
  await user.selectOptions(runs, "");
  await waitFor(() => {
    expect(server.queries.at(-1)).toBe(`${job}/points?retained=true&since=2026-01-31T02%3A00%3A00.000Z`);
  });
  await user.click(await screen.findByRole("button", { name: "Older" }));
  await waitFor(() => {
    expect(server.queries.at(-1)).toContain("cursor=older");
  });
  await user.selectOptions(within(filters).getByLabelText("Branch"), "true");
  // Other filters begin at the first page.
  await waitFor(() => {
    expect(server.queries.at(-1)).toBe(`${job}/points?undone=true&retained=true&since=2026-01-31T02%3A00%3A00.000Z`);
  });
  await user.click(within(filters).getByRole("button", { name: "Remove the filters" }));
  await waitFor(() => {
    expect(server.queries.at(-1)).toBe(`${job}/points`);
  });
});

it("shows the newest checkpoints in charts that are zoomed and moved together", async () => {
  open(`/${job}`);
  const charts = await screen.findByRole("region", { name: "Charts of the checkpoints" });
  const shown = () => within(charts).getByText(/^checkpoints /).textContent;
  expect(shown()).toContain("checkpoints 201 to 300");
  const [, rows] = FakePlot.made.slice(-3);
  expect(rows?.data[1]?.at(-1)).toBe(300);
  // An undone checkpoint is a bar of another series.
  expect([rows?.data[1]?.[298], rows?.data[2]?.[298]]).toEqual([null, 299]);
  const user = userEvent.setup();
  await user.click(within(charts).getByRole("button", { name: "Zoom in" }));
  expect(shown()).toContain("checkpoints 226 to 275");
  await user.click(within(charts).getByRole("button", { name: "Later" }));
  expect(shown()).toContain("checkpoints 251 to 300");
  await user.click(within(charts).getByRole("button", { name: "All" }));
  expect(shown()).toContain("checkpoints 1 to 300");
  expect(FakePlot.made.slice(-3).map(({ scales }) => scales.x)).toEqual([1, 2, 3].map(() => ({ min: -0.6, max: 299.6 })));
  act(() => {
    if (rows !== undefined) rows.select = { left: 9.5, top: 0, width: 30, height: 0 };
    rows?.options.hooks?.setSelect?.[0]?.(rows as never);
  });
  expect(shown()).toContain("checkpoints 11 to 40");
});

it("shows a run with its start-up, tries, job file and checkpoints", async () => {
  const failure = { generation: 8, failed_at: null, code: "storage", message: "" };
  const tries = [runSummary(8, { run: 1, reason: "flights/r/run/1", attempt: attempt(1), failure }), runSummary(9, { run: 2, reason: "flights/r/run/2", attempt: attempt(2), startup_ms: 2500 })];
  const run: RunPage = {
    run: runSummary(9, {
      run: 2,
      reason: "flights/r/run/2",
      attempt: attempt(2),
      requested_by: { name: "uma", source: "airflow-user", account: null },
      startup_ms: 2500,
      started_at: "2026-01-31T03:00:00.000Z",
      last_ended_at: "2026-01-31T03:02:00.000Z",
      base_checkpoint_id: 10,
      first_checkpoint_id: 11,
      last_checkpoint_id: 12,
      checkpoints: 2,
      job_file: HOSTILE,
      job_file_sha256: "abcdef0123456789",
    }),
    may_read_code: true,
    job_file: `text ${HOSTILE}`,
    previous_job_file_sha256: "0123456789abcdef",
    job_file_difference: `--- a\n+++ b\n+${HOSTILE}`,
    tries,
    failed_starts: [{ generation: 8, failed_at: null, code: "config", message: "a wrong setting" }],
    progress: { reported_at: null, ordinal: 4, batch_started_at: null, batches: 3, rows_in: 5000, driver: "host:1", reason: null },
    checkpoints: [listed],
    older: true,
    ...CURRENT,
  };
  server.answers[`${job}/runs/9`] = run;
  server.answers[`${job}/family`] = family;
  const { container } = open(`/${job}/runs/9`);
  expect(await screen.findByRole("heading", { name: "Run 2" })).toBeDefined();
  const facts = (name: string) => screen.getByText(name, { selector: "dt" }).nextElementSibling?.textContent;
  expect([facts("Start-up"), facts("Duration after the start-up"), facts("Try"), facts("Checkpoints")]).toEqual(["2.5 sec", "2 min", "2", "2: 11 to 12"]);
  expect((await screen.findByRole("link", { name: "DAG run r in Airflow" })).getAttribute("href")).toBe("/dags/flights/runs/r");
  expect(screen.getByRole("link", { name: "uma" }).getAttribute("href")).toBe(`/${job}/journal?person=uma`);
  expect(screen.getByRole("region", { name: "Tries" }).textContent).toContain("Try 1: run 1; it failed: storage");
  expect(facts("Generation")).toContain("9");
  expect([facts("Batch"), facts("Rows read before it"), facts("Host and process")]).toEqual(["number 4, after 3 completed batches", "5,000 rows, by the completed batches", "host:1"]);
  expect(screen.getByRole("region", { name: "Failed starts" }).textContent).toContain("config: a wrong setting");
  expect(screen.getByRole("region", { name: "Difference from the job file of the run before" }).textContent).toContain(`+${HOSTILE}`);
  expect(screen.getByRole("link", { name: "All checkpoints of the run" }).getAttribute("href")).toBe(`/${job}?generation=9`);
  expect(container.querySelector("img")).toBeNull();
  await expectAccessible(container);
});

it("says that a run is not known, and refuses an address that names none", async () => {
  open(`/${job}/runs/77`);
  expect((await screen.findByRole("alert")).textContent).toContain("Not found");
  open(`/${job}/runs/x`);
  expect(await screen.findByText("This address names no run")).toBeDefined();
});

it("leads from the journal of all jobs to each savepoint, and copies its path", async () => {
  const [restore] = timeline.actions;
  const entry = { ...restore, id: "flights-2", job: "flights", kind: "savepoint", facts: { savepoint: "weekly", origin: "manual", path: "s3://backup/weekly" } };
  server.answers.journal = { entries: [entry], jobs: [], next_cursor: null };
  const { container } = open("/journal");
  const table = await screen.findByRole("region", { name: "Journal" });
  expect(within(table).getByRole("link", { name: "weekly" }).getAttribute("href")).toBe("/jobs/flights-2/savepoints?savepoint=weekly");
  expect(cellsOf(table, 1)).toMatchObject({ Facts: "origin: manual s3://backup/weekly Copy" });
  await expectAccessible(container);
  const user = userEvent.setup();
  await user.click(within(table).getByRole("button", { name: "Copy the path of weekly" }));
  expect(await navigator.clipboard.readText()).toBe("s3://backup/weekly");
});

it("lists who asked and who approved, from where to where, with the rows that were removed", async () => {
  const [restore] = timeline.actions;
  if (restore === undefined) throw new Error("the timeline has no restore");
  const entries = [
    { ...restore, id: `points-${id}`, job: "flights", integrity: "changed", facts: { previous_checkpoint_id: 12, rows_removed: 1234, kept_tables: ["audit"] } },
    { ...restore, id: `points-${id}`, job: "flights", kind: "new-kind", seq: 9, restored_checkpoint_id: null, checkpoint_id: null, requested_by: null },
  ];
  server.answers[`${job}/journal`] = { entries, jobs: [], next_cursor: null };
  server.answers[`${job}/journal.csv`] = new Response("csv");
  const saved = vi.spyOn(URL, "createObjectURL").mockReturnValue("blob:x");
  const released = vi.spyOn(URL, "revokeObjectURL").mockReturnValue();
  const clicked = vi.spyOn(HTMLAnchorElement.prototype, "click").mockReturnValue();
  const { container } = open(`/${job}/journal?person=osc`);
  const table = await screen.findByRole("region", { name: "Journal" });
  // The journal has the number of the plan.
  expect(within(table).getByRole("columnheader", { name: "Rows removed (plan)" })).toBeDefined();
  const [, row, other] = within(table).getAllByRole("row");
  expect(within(row as HTMLElement).getAllByRole("cell").slice(1, 9).map((cell) => cell.textContent)).toEqual([
    "uma",
    "oscar (claimed name, account root@host)",
    "restored",
    "12 → 10",
    "1,234",
    HOSTILE,
    "",
    "changed",
  ]);
  expect(within(other as HTMLElement).getAllByRole("cell")[3]?.textContent).toBe("new kind");
  // A run records its own start and end: a filter for these would find nothing.
  expect([...screen.getByLabelText<HTMLSelectElement>("Action").options].map((each) => each.value)).toEqual(["", "restore", "rejection", "savepoint", "dispose", "retention", "stop", "fork", "relocate"]);
  await expectAccessible(container);
  const user = userEvent.setup();
  await user.selectOptions(screen.getByLabelText("Action"), "restore");
  fireEvent.change(screen.getByLabelText("Until"), { target: { value: "2026-02-01T00:00" } });
  await waitFor(() => {
    expect(server.queries.at(-1)).toBe(`${job}/journal?kind=restore&person=osc&until=2026-02-01T00%3A00%3A00.000Z`);
  });
  await user.click(await screen.findByRole("button", { name: "Download as CSV" }));
  // The file has what the page shows.
  expect(server.queries.at(-1)).toBe(`${job}/journal.csv?kind=restore&person=osc&until=2026-02-01T00%3A00%3A00.000Z&limit=20000`);
  await waitFor(() => {
    expect(clicked).toHaveBeenCalledOnce();
  });
  [saved, released, clicked].forEach((spy) => {
    spy.mockRestore();
  });
});
