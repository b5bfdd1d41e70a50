// The pages on their own, without Airflow.
import { screen } from "@testing-library/react";
import userEvent from "@testing-library/user-event";
import { afterEach, beforeEach, expect, it, vi } from "vitest";
import { CURRENT, open, Server, state, timeline } from "../test-pages";

vi.mock("../api", async (original) => ({ ...(await original<typeof import("../api")>()), isStandalone: true }));

let server: Server;

beforeEach(() => {
  server = new Server();
  Object.assign(server.answers, { "jobs/alone": state, "jobs/alone/points": { points: [], next_cursor: null, ...CURRENT }, "jobs/alone/timeline": timeline });
  server.start();
});

afterEach(() => {
  vi.unstubAllGlobals();
});

it("says that the server does not know Airflow, and not that there is no DAG", async () => {
  const { container } = open("/jobs/alone");
  await userEvent.setup().click(await screen.findByText("Commands for a run, a savepoint and a stop"));
  expect(screen.getByText(/^This server does not know Airflow/)).toBeDefined();
  expect(container.textContent).not.toContain("No DAG");
  expect(container.textContent).not.toContain("No run is planned");
  expect(server.queries.filter((each) => each.includes("family") || each.startsWith("api/v2"))).toEqual([]);
});

it("explains the health of a job by keyboard", async () => {
  open("/jobs/alone");
  const word = await screen.findByText("caught up");
  const summary = word.closest("summary");
  expect(summary).not.toBeNull();
  await userEvent.setup().click(summary as HTMLElement);
  const legend = await screen.findByRole("group", { name: "What the health means" });
  expect([...legend.querySelectorAll("dt")].map((each) => each.textContent)).toEqual(["waits for approval", "restoring", "failing", "retrying", "starting", "late", "running", "stopped", "caught up", "idle"]);
});
