import { ChakraProvider, defaultSystem } from "@chakra-ui/react";
import { act, render, screen, within } from "@testing-library/react";
import userEvent from "@testing-library/user-event";
import axe from "axe-core";
import { MemoryRouter } from "react-router-dom";
import { afterEach, beforeEach, expect, it, vi } from "vitest";
import { App } from "../App";
import type { ActionEntry, JobList, JobRow, JobState, TimelinePage, TimelinePoint } from "../api";

const HOSTILE = "<img src=x onerror=alert(1)>";
const CURRENT = { history_complete: true, history_truncated: false, last_read_at: null, problem: null };

const job: JobRow = {
  id: "flights-1",
  job_root: "/jobs/flights",
  job: HOSTILE,
  job_uuid: "1",
  health: { word: "caught-up", unknown: [] },
  generation: 9,
  run: 2,
  checkpoint_id: 12,
  label: "checkpoint 12",
  committed_at: "2026-01-31T03:00:00.000Z",
  full_bytes: 2470,
  state_sizes: [
    { checkpoint_id: 10, ended_at: null, full_bytes: 1000 },
    { checkpoint_id: 12, ended_at: null, full_bytes: 2470 },
  ],
  backlog: null,
  backlog_unknown: "only the job file has the sources",
  savepoint: null,
  failure: null,
  failed_start: null,
  ...CURRENT,
};
const gone: JobRow = {
  ...job,
  id: "gone",
  health: null,
  job_root: "s3://gone",
  job: null,
  problem: { code: "storage", message: "the storage of the job root does not answer", facts: {}, hint: null, exit_code: 3, retryable: true },
};
const list: JobList = { jobs: [job, gone], searches: [] };
const state: JobState = {
  ...job,
  description: null,
  newest: null,
  runs: [],
  operators: [],
  sources: [],
  sinks: {},
  pending: [],
  undone_count: 1,
  history_changed: null,
  failure: { generation: 9, failed_at: null, code: "corrupt-input", message: HOSTILE },
};
const point = (id: number, run: number): TimelinePoint => ({
  checkpoint_id: id,
  previous_checkpoint_id: null,
  generation: run,
  run,
  ordinal: 1,
  branch: null,
  status: "completed",
  ended_at: "2026-01-31T03:00:00.000Z",
  duration_ms: 1,
  rows_in: 1,
  increment_bytes: 1,
  full_bytes: 1,
  undone: false,
  retained: id === 10,
  integrity: null,
});
const restore: ActionEntry = {
  kind: "restore",
  checkpoint_id: 11,
  restored_checkpoint_id: 10,
  undone: false,
  retained: false,
  integrity: null,
  seq: 11,
  ended_at: "2026-01-31T03:01:00.000Z",
  by: { name: "oscar", source: "claim", account: "root@host" },
  requested_by: { name: "uma", source: "airflow-user", account: null },
  reason: HOSTILE,
  note: null,
  duration_ms: null,
  size_bytes: null,
  facts: {},
};
const timeline: TimelinePage = { runs: [], branches: [], checkpoints: [point(10, 1), point(12, 2)], actions: [restore], older: false, ...CURRENT };

let answers: Record<string, unknown>;
const requests: string[] = [];

beforeEach(() => {
  answers = { jobs: list, "jobs/flights-1": state, "jobs/flights-1/points": { points: [], next_cursor: null, ...CURRENT }, "jobs/flights-1/timeline": timeline };
  requests.length = 0;
  vi.stubGlobal("fetch", (address: string, { headers }: { headers: Headers }) => {
    const path = address.replace(/^.*api\/v1\//, "").replace(/\?.*/, "");
    requests.push(`${path} ${headers.get("If-None-Match") ?? ""}`.trim());
    const found = answers[path];
    if (found instanceof Error) return Promise.reject(found);
    if (found === undefined) return Promise.resolve(Response.json({ error: { message: "there is no such job", hint: null } }, { status: 404 }));
    const tag = `"${JSON.stringify(found).length}"`;
    if (headers.get("If-None-Match") === tag) return Promise.resolve(new Response(null, { status: 304 }));
    return Promise.resolve(Response.json(found, { headers: { ETag: tag } }));
  });
});

afterEach(() => {
  vi.useRealTimers();
  vi.unstubAllGlobals();
});

function open(path: string) {
  return render(
    <ChakraProvider value={defaultSystem}>
      <MemoryRouter initialEntries={[path]}>
        <App base="" />
      </MemoryRouter>
    </ChakraProvider>,
  );
}

async function expectAccessible(container: Element) {
  // jsdom has no layout, so it knows no colours.
  const { violations } = await axe.run(container, { rules: { "color-contrast": { enabled: false }, region: { enabled: false } } });
  expect(violations.map(({ id, nodes }) => [id, nodes[0]?.html])).toEqual([]);
}

it("lists jobs with health, size and the missing savepoint, and those that cannot be read", async () => {
  const { container } = open("/");
  const rows = await screen.findAllByRole("row");
  const [, first, second] = rows;
  // What cannot be read is first.
  expect(first?.textContent).toContain("does not answer");
  expect(second).toHaveProperty("textContent", expect.stringMatching(/caught up.*12.*2\.5 kB.*not known.*never/));
  expect(screen.getByRole("link", { name: HOSTILE }).getAttribute("href")).toBe("/jobs/flights-1");
  await expectAccessible(container);
});

it("shows texts of jobs as text", async () => {
  const { container } = open("/jobs/flights-1");
  expect((await screen.findAllByText(HOSTILE)).length).toBeGreaterThan(1);
  expect(container.querySelector("img")).toBeNull();
  expect(screen.getByRole("alert").textContent).toContain("corrupt-input");
  await expectAccessible(container);
});

it("filters many jobs by name and job root", async () => {
  answers.jobs = { jobs: Array.from({ length: 12 }, (_, index) => ({ ...job, id: `job-${index}`, job: `job ${index}` })), searches: [] };
  open("/");
  const field = await screen.findByRole("textbox", { name: "Name or job root" });
  await userEvent.setup().type(field, "11 flights");
  expect(screen.getAllByRole("row").length).toBe(2);
});

it("says that there are no jobs", async () => {
  answers.jobs = { jobs: [], searches: [] };
  open("/");
  // The answer of the test before is shown first.
  expect(await screen.findByText("There are no jobs here")).toBeDefined();
});

it("says why a job cannot be shown, and names unknown addresses", async () => {
  open("/jobs/other");
  expect((await screen.findByRole("alert")).textContent).toContain("there is no such job");
  open("/nowhere/at/all");
  expect(await screen.findByRole("heading", { name: "Unknown address" })).toBeDefined();
});

it("asks again with the ETag, and keeps an answer as outdated while the server does not answer", async () => {
  vi.useFakeTimers({ shouldAdvanceTime: true });
  open("/jobs/flights-1/timeline");
  await screen.findByRole("group", { name: "Timeline" });
  await act(() => vi.advanceTimersByTimeAsync(10_000));
  expect(requests).toContain(`jobs/flights-1/timeline "${JSON.stringify(timeline).length}"`);
  answers["jobs/flights-1/timeline"] = new TypeError("network");
  await act(() => vi.advanceTimersByTimeAsync(10_000));
  expect(screen.getByText("This may be outdated")).toBeDefined();
  expect(screen.getByRole("group", { name: "Timeline" })).toBeDefined();
});

it("goes along the timeline with the arrow keys, and shows what is selected with its command", async () => {
  const { container } = open("/jobs/flights-1/timeline");
  const picture = await screen.findByRole("group", { name: "Timeline" });
  const user = userEvent.setup();
  const [first, second, third] = within(picture).getAllByRole("button");
  expect([first, second, third].map((mark) => mark?.getAttribute("tabindex"))).toEqual(["-1", "-1", "0"]);
  act(() => {
    third?.focus();
  });
  await user.keyboard("{ArrowLeft}{Enter}");
  const details = screen.getByRole("region", { name: "Selected point" });
  expect(details.textContent).toContain("oscar (claimed name, account root@host), requested by uma");
  expect(details.textContent).toContain(HOSTILE);
  await user.keyboard("{Home}{Enter}");
  expect(details.textContent).toContain("stateflow restore JOB.py --job-root /jobs/flights --plan 10 --out plan.json");
  await expectAccessible(container);
});
