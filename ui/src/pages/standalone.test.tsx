// The pages on their own: no Airflow, and a token of the server.
import { screen, waitFor } from "@testing-library/react";
import userEvent from "@testing-library/user-event";
import { afterEach, beforeEach, expect, it, vi } from "vitest";
import type * as Shared from "../test-pages";

let shared: typeof Shared;
let server: Shared.Server;

beforeEach(async () => {
  vi.resetModules();
  vi.stubEnv("MODE", "standalone");
  shared = await import("../test-pages");
  server = new shared.Server();
  server.start();
});

afterEach(() => {
  sessionStorage.clear();
  vi.unstubAllEnvs();
  vi.unstubAllGlobals();
});

const refused = (message: string) => Response.json({ error: { message, hint: null } }, { status: 401 });

it("knows no next run, and speaks of no DAG", async () => {
  server.answers.jobs = { ...shared.list, jobs: [{ ...shared.job, job: "flights" }] };
  const { container } = shared.open("/");
  await screen.findByRole("link", { name: "flights" });
  expect(screen.queryByRole("columnheader", { name: "Next run" })).toBeNull();
  await userEvent.setup().click(screen.getByText("Actions", { selector: "summary" }));
  expect(container.textContent).not.toContain("No DAG");
});

it("asks for the token, says that one is wrong only after one was entered, and takes it without blanks around it", async () => {
  server.answers.jobs = refused("the server requires a token");
  shared.open("/");
  const field = await screen.findByLabelText("Token of the server");
  expect(screen.getByText(/--token-file/)).toBeDefined();
  expect(screen.queryByText(/not the token/)).toBeNull();
  const user = userEvent.setup();
  await user.type(field, "  wrong {Enter}");
  expect(await screen.findByText(/not the token/)).toBeDefined();
  expect(sessionStorage.getItem("stateflow-token")).toBe("wrong");
  server.answers.jobs = { ...shared.list, jobs: [{ ...shared.job, job: "flights" }] };
  await user.clear(field);
  await user.type(field, "right{Enter}");
  await waitFor(() => {
    expect(screen.getByRole("link", { name: "flights" })).toBeDefined();
  });
});

function offerJob(): void {
  const { CURRENT, state, timeline } = shared;
  Object.assign(server.answers, { "jobs/alone": state, "jobs/alone/points": { points: [], next_cursor: null, ...CURRENT }, "jobs/alone/timeline": timeline });
}

it("says that the server does not know Airflow, and not that there is no DAG", async () => {
  offerJob();
  const { container } = shared.open("/jobs/alone");
  await userEvent.setup().click(await screen.findByText("Commands for a run, a savepoint and a stop"));
  expect(screen.getByText(/^This server does not know Airflow/)).toBeDefined();
  expect(container.textContent).not.toContain("No DAG");
  expect(container.textContent).not.toContain("No run is planned");
  expect(server.queries.filter((each) => each.includes("family") || each.startsWith("api/v2"))).toEqual([]);
});

it("explains the health of a job by keyboard", async () => {
  offerJob();
  shared.open("/jobs/alone");
  const word = await screen.findByText("caught up");
  const summary = word.closest("summary");
  expect(summary).not.toBeNull();
  await userEvent.setup().click(summary as HTMLElement);
  const legend = await screen.findByRole("group", { name: "What the health means" });
  expect([...legend.querySelectorAll("dt")].map((each) => each.textContent)).toEqual(["waits for approval", "restoring", "failing", "retrying", "starting", "late", "running", "stopped", "caught up", "idle"]);
});
