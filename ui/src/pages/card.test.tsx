// The card on Airflow's first page.
import { ChakraProvider, defaultSystem } from "@chakra-ui/react";
import { render, screen } from "@testing-library/react";
import { MemoryRouter } from "react-router-dom";
import { afterEach, beforeEach, expect, it, vi } from "vitest";
import { expectAccessible, job, Server } from "../test-pages";
import { JobsCard } from "./Jobs";

let server: Server;

beforeEach(() => {
  server = new Server();
  server.start();
});

afterEach(() => {
  vi.unstubAllGlobals();
  vi.restoreAllMocks();
});

function show() {
  return render(
    <ChakraProvider value={defaultSystem}>
      <MemoryRouter>
        <JobsCard base="/plugin/stateflow" />
      </MemoryRouter>
    </ChakraProvider>,
  );
}

const unreachable = new Error("no network");

// One test: an answer is remembered by its address.
it("says in a line that the jobs cannot be read, alone and above the rows of before, and shows nothing without jobs", async () => {
  server.answers.jobs = unreachable;
  const first = show();
  expect((await screen.findByRole("status")).textContent).toContain("cannot be read now");
  expect(screen.queryByRole("row")).toBeNull();
  await expectAccessible(first.container);
  first.unmount();
  server.answers.jobs = { jobs: [{ ...job, job: "flights" }], searches: [] };
  const second = show();
  await screen.findByRole("link", { name: "flights" });
  expect(screen.queryByRole("status")).toBeNull();
  second.unmount();
  server.answers.jobs = unreachable;
  const third = show();
  expect((await screen.findByRole("status")).textContent).toContain("outdated");
  expect(screen.getByRole("link", { name: "flights" })).toBeDefined();
  await expectAccessible(third.container);
  third.unmount();
  server.answers.jobs = { jobs: [], searches: [] };
  const { container } = show();
  await vi.waitFor(() => {
    expect(container.textContent).toBe("");
  });
});

it("leads to the journal of all jobs, and tells a job from its namesake that it does not show", async () => {
  const others = Array.from({ length: 5 }, (_, index) => ({ ...job, id: `job-${index}`, job: `a ${index}`, job_root: `/jobs/${index}` }));
  server.answers.jobs = { jobs: [...others, { ...job, job: "a 0", job_root: "/jobs/z", health: { word: "idle", unknown: [] } }], searches: [] };
  show();
  expect((await screen.findByText("/jobs/0")).closest("td")?.textContent).toBe("a 0/jobs/0");
  expect(screen.queryByText("/jobs/1")).toBeNull();
  expect(screen.getAllByRole("row").length).toBe(6);
  expect(screen.getByRole("link", { name: "Journal" }).getAttribute("href")).toBe("/plugin/stateflow/journal");
});

it("says on the page of others that the card failed", async () => {
  vi.spyOn(console, "error").mockReturnValue();
  server.answers.jobs = { jobs: [{ ...job, state_sizes: null }], searches: [] };
  show();
  expect((await screen.findByRole("alert")).querySelector("button")?.textContent).toContain("Reload");
});
