// The graph, and the comparison and retention of savepoints.
import { act, fireEvent, screen, waitFor, within } from "@testing-library/react";
import userEvent from "@testing-library/user-event";
import { afterEach, beforeEach, expect, it, vi } from "vitest";
import type { GraphPage, OperatorStatus, RetentionPreview, SavepointDiff } from "../api";
import { CURRENT, described, expectAccessible, family, HOSTILE, open, planPage, point, restore, runSummary, savepoint, Server, state, timeline } from "../test-pages";

const operator: OperatorStatus = { uid: "count", subtasks: 2, files: 3, size_bytes: 2470, live_bytes: 2000, states: ["total"], operator_states: [], metrics: null };

const graph: GraphPage = {
  checkpoint_id: 12,
  operators: [operator],
  graph_generation: 9,
  graph_run: 2,
  checkpoint_generation: 9,
  checkpoint_run: 2,
  watermarks: { count: "2026-01-31T03:00:00.000Z" },
  sources: [{ uid: "orders", description: null, offset: { file: 5 }, watermark_at: null, active_at: null, idle: null }],
  graph: {
    job: "flights",
    parallelism: 2,
    max_parallelism: 128,
    on_spark: true,
    sources: [{ uid: "orders", reads: HOSTILE, columns: "Order(customer long)", bounded: true }],
    levels: [
      {
        number: 1,
        tasks: 2,
        chains: [
          {
            uid: "count",
            function: "Count",
            inputs: [{ rows: "orders", from_uids: ["orders"], key: ["customer long"], order_by: [], broadcast: false }],
            output: "Total",
            side_outputs: ["late"],
            states: [{ name: "total", kind: "value", key_type: null, value_type: "long", time_to_live: "3 d after each write" }],
            unknown_because: null,
            sinks: [{ uid: "out", sink: HOSTILE, rows: "count", from_uids: ["count"], delivery: "exactly-once", location: "s3://lake/out" }],
            relay: false,
            windows: null,
          },
        ],
      },
    ],
  },
  ...CURRENT,
};

const diff: SavepointDiff = {
  old: { ...savepoint("a", "periodic"), sinks: { out: { table_id: "t", version: 3, checkpoint_id: 10 } } },
  new: { ...savepoint("b", "manual"), offsets: { orders: { file: 5 } }, sinks: { out: { table_id: "t", version: 5, checkpoint_id: 12 } } },
  operators: [
    {
      uid: "count",
      old_bytes: 1000,
      new_bytes: 2500,
      old_entries: 5,
      new_entries: 2,
      added_files: 2,
      removed_files: 1,
      common_files: 3,
      added_bytes: 2000,
      removed_bytes: 500,
      common_bytes: 500,
      states: [{ name: HOSTILE, kind: "value", old_type: "int", new_type: "long" }],
    },
  ],
  ...CURRENT,
};

const preview: RetentionPreview = { checkpoints: [10, 11], savepoints: ["a"], freed_bytes: 62900, ...CURRENT };

let server: Server;

beforeEach(() => {
  server = new Server();
  Object.assign(server.answers, {
    "jobs/flights": state,
    "jobs/flights/family": family,
    "jobs/flights/graph": graph,
    "jobs/flights/points": { points: [], next_cursor: null, ...CURRENT },
    "jobs/flights/savepoints": {
      savepoints: [savepoint("a", "periodic"), { ...savepoint("b", "manual"), record_integrity: "changed" }, { ...savepoint("c", "periodic"), record_integrity: null }],
      older: false,
      elsewhere: [],
      ...CURRENT,
    },
    "jobs/flights/savepoint-diff": diff,
    "jobs/flights/retention-preview": preview,
    "api/v2/dags/flights_retention/details": {
      params: Object.fromEntries(Object.entries({ retain: null, savepoints: 7, max_age: "30d", tables: true, dispose: null, reason: null, preview: false }).map(([name, value]) => [name, { value }])),
    },
  });
  server.start();
});

afterEach(() => {
  vi.restoreAllMocks();
  vi.unstubAllGlobals();
});

it("shows the graph with sizes and keys, also as tables and by keyboard", async () => {
  const { container } = open("/jobs/flights/graph");
  const picture = await screen.findByRole("group", { name: "Graph of the job" });
  const nodes = within(picture).getAllByRole("button");
  expect(nodes.map((node) => node.getAttribute("aria-label"))).toEqual(["source, orders", "operator, count, about 2 kB live", "sink, out"]);
  expect(nodes.map((node) => node.getAttribute("tabindex"))).toEqual(["0", "-1", "-1"]);
  expect(screen.getByRole("region", { name: "Connections" }).textContent).toContain("source ordersoperator countcustomer long");
  const plan = screen.getByRole("region", { name: "Physical plan" });
  expect(plan.textContent).toContain("total (value of long; kept 3 d after each write)about 2 kB liveTotal; side output late");
  act(() => {
    nodes[0]?.focus();
  });
  await userEvent.setup().keyboard("{ArrowRight}{ArrowRight}{Enter}");
  const selected = screen.getByRole("region", { name: "Selected node" });
  expect(selected.textContent).toContain(`${HOSTILE} s3://lake/out`);
  expect(within(selected).getByRole("button", { name: "Copy the location of out" })).toBeDefined();
  expect(container.querySelector("img")).toBeNull();
  await expectAccessible(container);
});

it("shows how many rows a second each operator has read in a checkpoint, or how many rows while its duration is not known", async () => {
  const metrics = { rows_in: 1234 };
  server.answers["jobs/rated"] = state;
  server.answers["jobs/rated/graph"] = { ...graph, operators: [{ ...operator, metrics }] };
  server.answers["jobs/rated/checkpoints/12"] = { entry: { ...point(12, 2), duration_ms: 500 } };
  const remarks = () => screen.queryAllByRole("button", { name: /^operator, count/ }).map((node) => node.getAttribute("aria-label"));
  const first = open("/jobs/rated/graph");
  await waitFor(() => {
    expect(remarks()).toEqual(["operator, count, about 2 kB live, 2,468 rows/s"]);
  });
  first.unmount();
  server.answers["jobs/rated/graph"] = { ...graph, checkpoint_id: 13, operators: [{ ...operator, metrics }] };
  open("/jobs/rated/graph");
  await waitFor(() => {
    expect(remarks()).toEqual(["operator, count, about 2 kB live, 1,234 rows"]);
  });
});

it("says whose graph is shown, and whose numbers", async () => {
  /** The text of the page once it has the sentence: before, it has the answer that was known. */
  const show = async (more: Partial<GraphPage>, query: string, sentence: string) => {
    server.answers["jobs/flights/graph"] = { ...graph, ...more };
    const { container, unmount } = open(`/jobs/flights/graph${query}`);
    const text = () => container.textContent.replaceAll(/\s+/gu, " ");
    await waitFor(() => {
      expect(text()).toContain(sentence);
    });
    const found = text();
    unmount();
    return found;
  };
  expect(await show({}, "?checkpoint=12", "The graph is the one of run 2. Sizes and rates are of checkpoint 12 of run 2.")).not.toContain("is not stored");
  await show({ graph_generation: 3, graph_run: 1 }, "?checkpoint=12", "The graph of run 2 is not storedThis is the graph of the nearest run before it");
  await show({ graph_generation: 14, graph_run: 3 }, "?checkpoint=12", "the nearest run after it");
  // Without a choice, the newest graph is wanted.
  expect(await show({ graph_generation: 14, graph_run: 3 }, "", "The graph is the one of run 3.")).not.toContain("is not stored");
  server.answers["jobs/flights/checkpoints/12"] = { entry: { ...restore, checkpoint_id: 12 }, description: null, operators: [], sources: [], ...CURRENT };
  await show({ graph_generation: 14, graph_run: 3, checkpoint_generation: 13, checkpoint_run: null }, "?checkpoint=12", "checkpoint 12, which a restore made.");
});

it("says that no run has stored the graph", async () => {
  server.answers["jobs/flights/graph"] = { ...graph, graph: null };
  open("/jobs/flights/graph");
  expect(await screen.findByText("No run has stored the graph of this job yet")).toBeDefined();
});

it("shows whether the records of savepoints are as they were recorded, and how their files are verified", async () => {
  open("/jobs/flights/savepoints");
  const cards = await screen.findAllByRole("article");
  await within(cards[0] as HTMLElement).findByText("✓ Its record in the history is verified.");
  expect(within(cards[1] as HTMLElement).getByText("Its record in the history was changed.")).toBeDefined();
  expect(within(cards[2] as HTMLElement).getByText(/has no record of it/)).toBeDefined();
  expect(cards[0]?.textContent).toContain("1 kB in its own files; it shares no file with a checkpoint.");
  await userEvent.setup().click(screen.getByText("Verify the files of a"));
  expect(screen.getByText("stateflow savepoint verify a --job-root /jobs/flights")).toBeDefined();
});

it("compares two savepoints", async () => {
  const { container } = open("/jobs/flights/savepoints?from=a&to=b");
  const table = await screen.findByRole("region", { name: "State in both savepoints" });
  expect(table.textContent).toContain("1 kB → 2.5 kB (+1.5 kB)");
  expect(table.textContent).toContain("5 → 2 (−3)");
  expect(table.textContent).toContain("2 added, 1 removed, 3 in both");
  expect(table.textContent).toContain("value: int → long");
  expect(screen.getByRole("region", { name: "Positions in both savepoints" }).textContent).toContain('source ordersnone{"file":5}table of outversion 3version 5');
  expect(server.queries).toContain("jobs/flights/savepoint-diff?from=a&to=b");
  expect(container.querySelector("img")).toBeNull();
  await expectAccessible(container);
});

it("says that a comparison needs two savepoints, and that an unknown number is not known", async () => {
  const first = open("/jobs/flights/savepoints?from=a&to=b");
  const table = await screen.findByRole("region", { name: "State in both savepoints" });
  expect(table.textContent).not.toContain("not known");
  first.unmount();
  server.answers["jobs/flights/savepoint-diff"] = { ...diff, operators: diff.operators.map((each) => ({ ...each, old_bytes: null, old_entries: null, new_entries: null })) };
  const second = open("/jobs/flights/savepoints?from=b&to=c");
  expect((await screen.findByRole("region", { name: "State in both savepoints" })).textContent).toContain("none → not known");
  second.unmount();
  server.answers["jobs/flights/savepoints"] = { savepoints: [savepoint("a", "periodic")], older: false, elsewhere: [], ...CURRENT };
  open("/jobs/flights/savepoints?from=a");
  expect(await within(await screen.findByRole("region", { name: "Comparison" })).findByText(/a comparison needs two/)).toBeDefined();
  expect(screen.queryByLabelText("To")).toBeNull();
});

it("shows the limits of the DAG, what they delete, and sends all of them", async () => {
  server.answers["POST api/v2/dags/flights_retention/dagRuns"] = { dag_run_id: "r" };
  open("/jobs/flights/savepoints");
  // After the family and the form of the DAG.
  const slider = await screen.findByLabelText(/Periodic savepoints to keep/, undefined, { timeout: 10_000 });
  // Not without the limit by age, which a DAG run would apply in any case.
  await waitFor(() => {
    expect(server.queries).toContain("jobs/flights/retention-preview?savepoints=7&max_age=30d");
  });
  expect(screen.getByLabelText<HTMLInputElement>("Largest age of periodic savepoints").value).toBe("30d");
  fireEvent.change(slider, { target: { value: "1" } });
  expect(await screen.findByText(/This deletes 2 checkpoints \(10, 11\) and 1 savepoint \(a\)/)).toBeDefined();
  await waitFor(() => {
    expect(server.queries).toContain("jobs/flights/retention-preview?savepoints=1&max_age=30d");
    expect(screen.getByText<HTMLButtonElement>("Apply this retention").disabled).toBe(false);
  });
  const user = userEvent.setup();
  await user.click(screen.getByText("Apply this retention"));
  expect(screen.getByText(/the approval of a person who may answer its question/)).toBeDefined();
  await user.click(screen.getByText("Yes, apply this retention"));
  expect(server.sent).toEqual([{ method: "POST", path: "api/v2/dags/flights_retention/dagRuns", body: { logical_date: null, conf: { retain: null, savepoints: 1, max_age: "30d", preview: false, tables: false } } }]);
});

it("asks for the deletion of a savepoint with a reason, which a person who may answer approves", async () => {
  server.answers["POST api/v2/dags/flights_retention/dagRuns"] = { dag_run_id: "r" };
  const { container } = open("/jobs/flights/savepoints?savepoint=b");
  const card = await screen.findByRole("article", { name: "Savepoint b" });
  expect(card.getAttribute("aria-current")).toBe("true");
  const user = userEvent.setup();
  await user.click(within(card).getByText("Delete b"));
  const request = await within(card).findByRole<HTMLButtonElement>("button", { name: "Request the deletion of b" });
  await waitFor(() => {
    expect(request.disabled).toBe(false);
  });
  expect(within(card).getByText(/This deletes 1 savepoint, b, of 1 kB for ever/)).toBeDefined();
  await user.click(request);
  await user.click(within(card).getByRole("button", { name: "Yes, request the deletion of b" }));
  expect((await within(card).findByRole("alert")).textContent).toContain("A reason is required");
  expect(server.sent).toEqual([]);
  fireEvent.change(within(card).getByLabelText(/Reason for the deletion/), { target: { value: " the upgrade is done " } });
  await expectAccessible(container);
  await user.click(within(card).getByRole("button", { name: "Yes, request the deletion of b" }));
  expect(server.sent).toEqual([
    { method: "POST", path: "api/v2/dags/flights_retention/dagRuns", body: { logical_date: null, conf: { retain: null, savepoints: null, max_age: null, preview: false, tables: false, dispose: "b", reason: "the upgrade is done" } } },
  ]);
  const approve = await within(card).findByRole("link", { name: "A person who may answer its question has to approve the deletion." });
  expect(approve.getAttribute("href")).toBe("/jobs/flights/approval/r?dag=flights_retention");
});

it("requests no deletion from a DAG that does not delete single savepoints, and shows the command for a claimed one", async () => {
  const claimed = { ...savepoint("b", "manual"), claimed_by: { job: HOSTILE, job_uuid: "2" }, claimed_at: "2026-01-31T03:00:00.000Z" };
  Object.assign(server.answers, {
    "jobs/other": state,
    "jobs/other/family": { ...family, dags: family.dags.map((dag) => ({ ...dag, dag_id: `other_${dag.role}` })) },
    "jobs/other/savepoints": { savepoints: [savepoint("a", "manual"), claimed], older: false, elsewhere: [], ...CURRENT },
    "jobs/other/retention-preview": preview,
    "api/v2/dags/other_retention/details": { params: { retain: { value: 3 } } },
  });
  const { container } = open("/jobs/other/savepoints");
  const user = userEvent.setup();
  await user.click(await screen.findByText("Delete a"));
  const request = await screen.findByRole<HTMLButtonElement>("button", { name: "Request the deletion of a" });
  await waitFor(() => {
    expect(document.getElementById(request.getAttribute("aria-describedby") ?? "")?.textContent).toBe("other_retention does not delete single savepoints.");
  });
  expect(request.disabled).toBe(true);
  await user.click(screen.getByText("Delete b"));
  expect(screen.getByText("stateflow savepoint dispose b --job-root /jobs/flights --claimed")).toBeDefined();
  expect(screen.queryByRole("button", { name: "Request the deletion of b" })).toBeNull();
  expect(container.querySelector("img")).toBeNull();
});

it("shows commands that only list, and then those that delete, where no DAG does it", async () => {
  server.answers["jobs/flights/family"] = { ...family, dags: [] };
  open("/jobs/flights/savepoints");
  const section = await screen.findByRole("region", { name: "Retention" });
  await within(section).findByText("stateflow gc --job-root /jobs/flights --dry-run");
  const shown = within(section).getAllByText(/only list|delete it:|^stateflow gc/).map((each) => each.textContent);
  expect(shown).toEqual(["These commands only list what would be deleted:", "stateflow gc --job-root /jobs/flights --dry-run", "These commands delete it:", "stateflow gc --job-root /jobs/flights"]);
});

it("takes a uid that every object has for the name that it is", async () => {
  const ofUid = JSON.parse(JSON.stringify(graph).replaceAll('"count"', '"constructor"').replaceAll('"orders"', '"constructor"')) as GraphPage;
  const answers = { "": state, "/family": family, "/graph": { ...ofUid, watermarks: {} }, "/savepoints": server.answers["jobs/flights/savepoints"] };
  for (const [path, answer] of Object.entries(answers)) server.answers[`jobs/named${path}`] = answer;
  const sinks = { constructor: { table_id: "t", version: 5 } } as unknown as SavepointDiff["old"]["sinks"];
  server.answers["jobs/named/savepoint-diff"] = { ...diff, old: { ...diff.old, offsets: {}, sinks: {} }, new: { ...diff.new, offsets: { constructor: 7 }, sinks } };
  const first = open(`/jobs/named/graph?node=${encodeURIComponent("operator constructor")}`);
  const node = await screen.findByRole("region", { name: "Selected node" });
  expect(node.textContent).toContain("operator constructor");
  expect(node.textContent).not.toContain("Watermark");
  first.unmount();
  open("/jobs/named/savepoints?from=a&to=b");
  expect((await screen.findByRole("region", { name: "Positions in both savepoints" })).textContent).toContain("source constructornone7table of constructornoneversion 5");
});

/** Fields whose texts are not those of a job: words that the API has, and times. */
const WORDS = /^(?:kind|origin|status|word|unknown|mode|action|claim_mode|role|format|delivery|source|next_cursor|.*integrity|.*_at)$/;
/** Objects whose keys are names. */
const BY_NAME = /^(?:sinks|offsets)$/;

/** An answer with a hidden character at the end of each name and each other text. */
function hiding(value: unknown, name = ""): unknown {
  if (typeof value === "string") return WORDS.test(name) ? value : `${value}\u202e`;
  if (Array.isArray(value)) return value.map((each) => hiding(each, typeof each === "string" ? name : ""));
  if (value === null || typeof value !== "object") return value;
  return Object.fromEntries(Object.entries(value).map(([key, each]) => [BY_NAME.test(name) ? `${key}\u202e` : key, hiding(each, key)]));
}

it.each([
  ["", "count\\u202e"],
  ["/timeline", "img src=x onerror=alert(1)>\\u202e"],
  ["/graph?node=operator%20count%E2%80%AE", "operator count\\u202e"],
  ["/savepoints?from=a&to=b", "table of out\\u202e"],
  ["/restore?to=10", "flights\\u202e"],
  ["/journal", "weekly\\u202e"],
  ["/runs/9", "job.py\\u202e"],
])("shows no hidden character of a job root whose names were not checked: %s", async (path, shown) => {
  const sinks = { out: { table_id: "t", version: 5, checkpoint_id: 12, description: "table", location: "/tables/out", metrics: null, pending_checkpoint_ids: [] } };
  const answers = {
    "": { ...state, newest: null, operators: [operator], sources: graph.sources, sinks, description: described },
    "/points": { points: [point(12, 2), restore], next_cursor: null, ...CURRENT },
    "/timeline": timeline,
    "/graph": { ...graph, watermarks: {} },
    "/savepoints": server.answers["jobs/flights/savepoints"],
    "/savepoint-diff": diff,
    "/retention-preview": preview,
    "/restore-plan": planPage,
    "/journal": { entries: [{ ...restore, id: "hiding", job: "flights", kind: "savepoint", facts: { savepoint: "weekly" } }], jobs: [], next_cursor: null },
    "/runs/9": { run: runSummary(9, { job_file: "job.py", driver: "host:1", reason: "by hand" }), tries: [], failed_starts: [], progress: null, checkpoints: [], older: false, may_read_code: true, job_file: "build()", previous_job_file_sha256: null, job_file_difference: null, ...CURRENT },
  };
  for (const [rest, answer] of Object.entries(answers)) server.answers[`jobs/hiding${rest}`] = hiding(answer);
  server.answers["jobs/hiding/family"] = family;
  const { container } = open(`/jobs/hiding${path}`);
  await waitFor(() => {
    expect(container.textContent).toContain(shown);
  });
  const seen = [...container.querySelectorAll("*")].flatMap((each) => ["title", "aria-label", "aria-valuetext", "placeholder"].map((name) => each.getAttribute(name)));
  const all = [container.textContent, document.title, ...seen].join("\n");
  expect(all).toContain("\\u202e");
  expect(all).not.toContain("\u202e");
});

it("shows a fault of one page in its place, until another page is wanted", async () => {
  vi.spyOn(console, "error").mockReturnValue();
  Object.assign(server.answers, { "jobs/broken": { ...state, failure: null }, "jobs/broken/family": family, "jobs/broken/graph": { ...graph, graph: { ...graph.graph, levels: null } } });
  open("/jobs/broken/graph");
  const alert = await screen.findByRole("alert");
  expect(alert.textContent).toContain("TypeError");
  expect(within(alert).getByRole("button", { name: "Reload the page" })).toBeDefined();
  await userEvent.setup().click(screen.getByRole("link", { name: "Savepoints" }));
  await waitFor(() => {
    expect(screen.queryByRole("alert")?.textContent ?? "").not.toContain("TypeError");
  });
});
