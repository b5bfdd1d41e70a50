import { ChakraProvider, defaultSystem } from "@chakra-ui/react";
import { act, render, screen, waitFor, within } from "@testing-library/react";
import userEvent from "@testing-library/user-event";
import { MemoryRouter } from "react-router-dom";
import { afterEach, beforeEach, expect, it, vi } from "vitest";
import { CURRENT, expectAccessible, HOSTILE, job, list, open, Server, state, tagOf, timeline } from "../test-pages";
import { JobOfDag } from "./JobOfDag";

let server: Server;

beforeEach(() => {
  server = new Server();
  Object.assign(server.answers, { jobs: list, "jobs/flights-1": state, "jobs/flights-1/points": { points: [], next_cursor: null, ...CURRENT }, "jobs/flights-1/timeline": timeline });
  server.start();
});

afterEach(() => {
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
