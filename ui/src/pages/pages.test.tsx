import { ChakraProvider, defaultSystem } from "@chakra-ui/react";
import { act, render, screen, waitFor, within } from "@testing-library/react";
import userEvent from "@testing-library/user-event";
import { MemoryRouter } from "react-router-dom";
import { afterEach, beforeEach, expect, it, vi } from "vitest";
import { CURRENT, expectAccessible, gone, HOSTILE, job, list, open, savepoint, Server, state, tagOf, timeline } from "../test-pages";
import { JobOfDag } from "./JobOfDag";

let server: Server;

beforeEach(() => {
  server = new Server();
  Object.assign(server.answers, { jobs: list, "jobs/flights-1": state, "jobs/flights-1/points": { points: [], next_cursor: null, ...CURRENT }, "jobs/flights-1/timeline": timeline });
  server.start();
});

afterEach(() => {
  vi.restoreAllMocks();
  vi.useRealTimers();
  vi.unstubAllGlobals();
});

it("lists jobs with health, size and the missing savepoint, and those that cannot be read", async () => {
  const { container } = open("/");
  const rows = await screen.findAllByRole("row");
  const [, first, second] = rows;
  // What cannot be read is first.
  expect(first?.textContent).toContain("does not answer");
  expect(second).toHaveProperty("textContent", expect.stringMatching(/caught up.*12.*2\.5 kB.*not known.*never.*none planned/));
  expect(screen.getByRole("link", { name: HOSTILE }).getAttribute("href")).toBe("/jobs/flights-1");
  await expectAccessible(container);
});

it("says that a job has no savepoint only if that is known", async () => {
  // The list of jobs does not read all of a long history.
  server.answers.jobs = { jobs: [{ ...job, id: "a", history_complete: false }, { ...job, id: "b", savepoint_unknown: true }], searches: [] };
  open("/");
  await waitFor(() => {
    expect(screen.getAllByRole("row").slice(1).map((each) => within(each).getAllByRole("cell")[5]?.textContent)).toEqual(["never", "not known"]);
  });
});

it("says in the tab of a DAG why its job cannot be shown", async () => {
  const problem = { code: "config", message: "the job root is a template", facts: {}, hint: "write it without", exit_code: 2, retryable: false };
  server.answers["dags/flights/jobs"] = { jobs: [], searches: [{ location: HOSTILE, job_roots_count: 0, truncated: false, problem }] };
  const { container } = render(
    <ChakraProvider value={defaultSystem}>
      <MemoryRouter>
        <JobOfDag dagId="flights" base="" />
      </MemoryRouter>
    </ChakraProvider>,
  );
  expect((await screen.findByText(/is a template/)).textContent).toContain(HOSTILE);
  expect(container.querySelector("img")).toBeNull();
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
  server.answers.jobs = { jobs: Array.from({ length: 12 }, (_, index) => ({ ...job, id: `job-${index}`, job: `job ${index}` })), searches: [] };
  open("/");
  const field = await screen.findByRole("textbox", { name: "Name or job root" });
  await userEvent.setup().type(field, "11 flights");
  expect(screen.getAllByRole("row").length).toBe(2);
});

it("has the jobs of all pages, worst first, and finds those on later ones", async () => {
  const part = (first: number) => Array.from({ length: 6 }, (_, index) => ({ ...job, id: `job-${first + index}`, job: `job ${first + index}` }));
  server.answers.jobs = { jobs: part(0), next_cursor: "more", searches: [] };
  server.answers["jobs?cursor=more"] = { jobs: [...part(6), { ...gone, id: "job-99" }], next_cursor: null, searches: [] };
  open("/");
  await waitFor(() => {
    expect(screen.getAllByRole("row").length).toBe(14);
  });
  // What cannot be read is first, although it is on the last page.
  expect(screen.getAllByRole("row")[1]?.textContent).toContain("does not answer");
  await userEvent.setup().type(screen.getByRole("textbox", { name: "Name or job root" }), "job 11");
  expect(screen.getAllByRole("row").length).toBe(2);
});

it("says so as long as it has not all jobs", async () => {
  server.answers.jobs = { jobs: [{ ...job, job: "first" }], next_cursor: "never", searches: [] };
  server.answers["jobs?cursor=never"] = new Promise(() => undefined);
  open("/");
  expect(await screen.findByText(/Further jobs are being read/)).toBeDefined();
  server.answers["jobs?cursor=never"] = undefined;
});

it("says that there is no job root, and how to correct that", async () => {
  const missing = { ...gone, id: "typo-1", job_root: "/data/typo", problem: { code: "unknown-job", message: "there is no job root at file:///data/typo", facts: {}, hint: "correct the address", exit_code: 4, retryable: false } };
  server.answers.jobs = { jobs: [missing], next_cursor: null, searches: [] };
  server.answers["jobs/typo-1"] = { ...state, ...missing };
  const first = open("/");
  expect((await screen.findByText(/there is no job root at/)).textContent).toContain("correct the address");
  expect(screen.queryByRole("link", { name: /typo/ })).toBeNull();
  first.unmount();
  open("/jobs/typo-1");
  expect((await screen.findByRole("alert")).textContent).toContain("correct the address");
  expect(screen.queryByRole("navigation", { name: "Pages of the job" })).toBeNull();
});

it("names the folders in which no job was found, and those that do not exist", async () => {
  const problem = { code: "config", message: "the folder does not exist", facts: {}, hint: "create it", exit_code: 2, retryable: false };
  const search = { location: "/data/empty", job_roots_count: 0, truncated: false, problem: null };
  server.answers.jobs = { jobs: [], next_cursor: null, searches: [search, { ...search, location: "/data/typo", problem }] };
  open("/");
  expect((await screen.findByText(/Job roots below \/data\/typo cannot be found/)).closest("[role=status]")?.textContent).toContain("create it");
  expect(screen.getByText(/looked for below \/data\/empty/)).toBeDefined();
});

it("reads older savepoints when the reader wants them, or a link names one", async () => {
  const page = (name: string, next: string | null) => ({ savepoints: [savepoint(name, "manual")], older: next !== null, next_cursor: next, elsewhere: [], ...CURRENT });
  server.answers["jobs/flights-1/savepoints"] = page("newest", "one");
  server.answers["jobs/flights-1/savepoints?cursor=one"] = page("older", "two");
  server.answers["jobs/flights-1/savepoints?cursor=two"] = page("oldest", null);
  const cards = () => ["newest", "older", "oldest"].filter((name) => screen.queryAllByText(name).length > 0);
  const first = open("/jobs/flights-1/savepoints");
  const user = userEvent.setup();
  await user.click(await screen.findByRole("button", { name: "Read older savepoints" }));
  await waitFor(() => {
    expect(cards()).toEqual(["newest", "older"]);
  });
  first.unmount();
  open("/jobs/flights-1/savepoints?savepoint=oldest");
  await waitFor(() => {
    expect(cards()).toEqual(["newest", "older", "oldest"]);
  });
  expect(screen.queryByRole("button", { name: "Read older savepoints" })).toBeNull();
});

it("says that there are no jobs", async () => {
  server.answers.jobs = { jobs: [], searches: [] };
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

it("leads from a message to the restore wizard of a job, by its id or name", async () => {
  server.answers.jobs = { jobs: [{ ...job, job: "flights" }], searches: [] };
  const first = open("/restore?job=flights&to=12");
  expect(await screen.findByRole("heading", { name: /to checkpoint 12$/ })).toBeDefined();
  first.unmount();
  open("/restore?job=flights-1&to=12");
  expect(await screen.findByRole("heading", { name: /to checkpoint 12$/ })).toBeDefined();
  const question = open(`/approval?job=flights&dag=a%26b&run=${encodeURIComponent("manual__2026-01-31T00:00:00+00:00")}`);
  // The job has no such DAG; the question is asked of the job's own address.
  expect(await screen.findByText("This job has no such DAG")).toBeDefined();
  question.unmount();
  open(`/restore?job=${encodeURIComponent(HOSTILE)}`);
  expect((await screen.findByText(/There is no job/)).textContent).toContain(HOSTILE);
});

it("does not choose one of several jobs with the name in a link", async () => {
  const other = { ...job, id: "flights-2", job_root: "/data/other", job: "twins" };
  server.answers.jobs = { jobs: [{ ...job, job: "twins" }, other], searches: [] };
  open("/restore?job=twins&to=12");
  expect(await screen.findByText(/Several jobs have the name twins/)).toBeDefined();
  expect(screen.getByRole("link", { name: "/data/other" }).getAttribute("href")).toContain("/jobs/flights-2/restore?to=12");
});

it("chooses no job by its name before all job roots were read, and none that may be another", async () => {
  const named = { ...job, id: "flights-3", job: "late" };
  server.answers.jobs = { jobs: [named, { ...gone, problem: null }], next_cursor: null, searches: [] };
  const first = open("/restore?job=late&to=12");
  expect(await screen.findByText(/not all job roots have been read/)).toBeDefined();
  first.unmount();
  server.answers.jobs = { jobs: [named, gone], next_cursor: null, searches: [] };
  open("/restore?job=late&to=12");
  expect(await screen.findByText(/One of them may be the job/)).toBeDefined();
  expect(screen.getAllByRole("link").map((each) => each.getAttribute("href"))).toEqual(["/jobs/flights-3/restore?to=12", "/jobs/gone/restore?to=12"]);
});

it("asks again with the ETag, and keeps an answer as outdated while the server does not answer", async () => {
  vi.useFakeTimers({ shouldAdvanceTime: true });
  open("/jobs/flights-1/timeline");
  await screen.findByRole("group", { name: "Timeline" });
  await act(() => vi.advanceTimersByTimeAsync(10_000));
  expect(server.requests).toContain(`jobs/flights-1/timeline ${tagOf(timeline)}`);
  server.answers["jobs/flights-1/timeline"] = new TypeError("network");
  await act(() => vi.advanceTimersByTimeAsync(10_000));
  expect(screen.getByText("This may be outdated")).toBeDefined();
  expect(screen.getByRole("group", { name: "Timeline" })).toBeDefined();
});

it("goes along the timeline with the arrow keys, and shows what is selected with the link to its restore", async () => {
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
  expect(within(details).getByRole("link", { name: "Restore to here: 10" }).getAttribute("href")).toBe("/jobs/flights-1/restore?to=10");
  await expectAccessible(container);
});

it("says that a page failed where it would be empty", async () => {
  vi.spyOn(console, "error").mockReturnValue();
  server.answers.jobs = { jobs: [{ ...job, state_sizes: null }], searches: [] };
  server.answers["dags/broken/jobs"] = { jobs: null, searches: [] };
  const first = open("/");
  expect((await screen.findByRole("alert")).textContent).toContain("TypeError");
  first.unmount();
  render(
    <ChakraProvider value={defaultSystem}>
      <MemoryRouter>
        <JobOfDag dagId="broken" base="" />
      </MemoryRouter>
    </ChakraProvider>,
  );
  expect((await screen.findByRole("alert")).textContent).toContain("TypeError");
});

it("shows the job root once, below the name, which another job can have", async () => {
  server.answers["jobs/rooted"] = { ...state, job_root: "/jobs/\u202erooted" };
  open("/jobs/rooted");
  await screen.findByRole("region", { name: "State" });
  expect(screen.getAllByText("/jobs/\\u202erooted")).toHaveLength(1);
  expect(screen.getByRole("button", { name: "Copy the path of the job root" })).toBeDefined();
});
