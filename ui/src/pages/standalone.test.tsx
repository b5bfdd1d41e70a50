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
  expect(container.textContent).not.toMatch(/DAG|Airflow/);
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
