// Pages that change something: each change is a request to Airflow, sent once and as designed.
import { act, fireEvent, screen, waitFor, within } from "@testing-library/react";
import userEvent from "@testing-library/user-event";
import { afterEach, beforeEach, expect, it, vi } from "vitest";
import type { Asked } from "../approval";
import { CURRENT, dagRun, described, expectAccessible, family, HOSTILE, open, plan, planPage, point, question, restore, RUN, runSummary, savepoint, Server, state, task, timeline } from "../test-pages";

let server: Server;
let id = 0;
let job = "";

beforeEach(() => {
  // Answers are remembered by their address: each test has a job and DAGs of its own.
  id += 1;
  job = `jobs/flights-${id}`;
  server = new Server();
  Object.assign(server.answers, {
    [job]: state,
    [`${job}/points`]: { points: [], next_cursor: null, ...CURRENT },
    [`${job}/timeline`]: timeline,
    [`${job}/savepoints`]: { savepoints: [], older: false, elsewhere: [], ...CURRENT },
    [`${job}/family`]: { ...family, dags: family.dags.map((dag) => ({ ...dag, dag_id: name(dag.dag_id) })) },
    [`${job}/restore-plan`]: planPage,
    [`api/v2/dags/${name("flights")}`]: { dag_id: name("flights"), is_paused: true, next_dagrun_run_after: null },
    [path("/xcomEntries/return_value", "plan")]: { value: { plan, markdown: "", dag: null } },
    [run()]: { ...dagRun, dag_id: name("flights_recovery") },
    [`${run()}/hitlDetails`]: { hitl_details: [asked()], total_entries: 1 },
    [`${run()}/taskInstances`]: { task_instances: [task("plan", "success"), task("approve", "awaiting_input")] },
    "ui/auth/me": { id: "2", username: "oscar" },
  });
  server.start();
});

afterEach(() => {
  vi.useRealTimers();
  vi.unstubAllGlobals();
});

function name(dag: string): string {
  return `${dag}-${id}`;
}

function run(): string {
  return `api/v2/dags/${name("flights_recovery")}/dagRuns/${encodeURIComponent(RUN)}`;
}

function path(rest: string, task: string): string {
  return `${run()}/taskInstances/${task}${rest}`;
}

function asked() {
  const found = question();
  return { ...found, task_instance: { ...found.task_instance, dag_id: name("flights_recovery") } };
}

function page(rest: string): string {
  return `/${job}/${rest}`;
}

const recoveryRuns = () => `api/v2/dags/${name("flights_recovery")}/dagRuns`;

it("shows a plan with its losses, and refuses a blank reason", async () => {
  const { container } = open(page("restore?to=10"));
  expect(await screen.findByText(/1 checkpoint can no longer be restored: 11/)).toBeDefined();
  await expectAccessible(container);
  const request = screen.getByText<HTMLButtonElement>("Request the restore");
  fireEvent.change(screen.getByLabelText(/Why is this restore/), { target: { value: " \u200b " } });
  expect(request.disabled).toBe(true);
  expect(document.getElementById(request.getAttribute("aria-describedby") ?? "")?.textContent).toBe("A reason is required.");
});

it("asks for a plan of what is chosen, and sends exactly that, once, after a confirmation", async () => {
  server.answers[`POST ${recoveryRuns()}`] = { dag_run_id: RUN };
  open(page("restore?to=10"));
  const user = userEvent.setup();
  fireEvent.change(await screen.findByLabelText(/Why is this restore/), { target: { value: " bad data " } });
  await user.click(await screen.findByLabelText("fresh"));
  await user.selectOptions(screen.getByLabelText("Position of orders"), "earliest");
  const request = screen.getByText<HTMLButtonElement>("Request the restore");
  await waitFor(() => {
    expect(server.queries).toContain(`${job}/restore-plan?target=10&sinks=restore&drop=fresh&source_positions=orders%3Dearliest&claim_mode=no-claim`);
    expect(request.disabled).toBe(false);
  });
  expect(server.sent).toEqual([]);
  await user.click(request);
  expect(server.sent).toEqual([]);
  // Another job can have the same name.
  expect(screen.getByText(/asks the people who may answer its question to approve it/).textContent).toContain(state.job_root);
  await user.click(screen.getByText("Yes, request the restore"));
  expect(server.sent).toEqual([
    {
      method: "POST",
      path: recoveryRuns(),
      body: {
        logical_date: null,
        conf: {
          target: "10",
          sinks: "restore",
          keep_tables: null,
          drop: "fresh",
          new_names: null,
          source_positions: "orders=earliest",
          from_other_job: false,
          claim_mode: "no-claim",
          reason: "bad data",
          run: false,
          expected_plan: "d1ce",
        },
      },
    },
  ]);
  expect(await screen.findByRole("heading", { name: "Recovery" })).toBeDefined();
});

it("says why a plan is refused, and requests nothing without one", async () => {
  server.answers[`${job}/restore-plan`] = Response.json({ error: { message: `there is no ${HOSTILE}`, hint: "choose another" } }, { status: 422 });
  const { container } = open(page("restore?to=nowhere"));
  expect((await screen.findByRole("alert")).textContent).toContain(HOSTILE);
  await userEvent.setup().type(screen.getByRole("textbox", { name: /Why is this restore/ }), "why");
  expect(screen.getByRole<HTMLButtonElement>("button", { name: "Request the restore" }).disabled).toBe(true);
  expect(container.querySelector("img")).toBeNull();
});

it("requests a restore without a plan if no run has stored the graph", async () => {
  server.answers[`${job}/restore-plan`] = { ...planPage, plan: null, replay: null, expected_plan: null, graph_known: false, graph_generation: null };
  server.answers[`POST ${recoveryRuns()}`] = { dag_run_id: RUN };
  open(page("restore?to=10"));
  const user = userEvent.setup();
  fireEvent.change(await screen.findByLabelText(/Why is this restore/), { target: { value: "why" } });
  expect(await screen.findByText("There is no plan without the job file")).toBeDefined();
  await user.click(screen.getByText("Request the restore"));
  await user.click(screen.getByText("Yes, request the restore"));
  expect(server.sent[0]?.body).toMatchObject({ conf: { target: "10", reason: "why", expected_plan: null } });
});

it("says in a sentence that Airflow refuses a restore", async () => {
  server.answers[`POST ${recoveryRuns()}`] = Response.json({ detail: "Forbidden" }, { status: 403 });
  open(page("restore?to=10"));
  const user = userEvent.setup();
  await user.type(await screen.findByRole("textbox", { name: /Why is this restore/ }), "why");
  const request = screen.getByRole<HTMLButtonElement>("button", { name: "Request the restore" });
  await waitFor(() => {
    expect(request.disabled).toBe(false);
  });
  await user.click(request);
  await user.click(screen.getByRole("button", { name: "Yes, request the restore" }));
  expect(await screen.findByText(/Airflow refuses this: Forbidden/)).toBeDefined();
});

it("shows the commands of a restore where no DAG runs the job", async () => {
  server.answers[`${job}/family`] = undefined;
  const command = (file: string) => `stateflow restore ${file} --job-root /jobs/flights --plan 10 --out plan.json`;
  const first = open(page("restore?to=10"));
  expect(await screen.findByText(command("JOB.py"))).toBeDefined();
  expect(screen.queryByRole("button", { name: "Request the restore" })).toBeNull();
  first.unmount();

  // The newest run that has recorded its job file.
  server.answers[job] = { ...state, runs: [runSummary(9), runSummary(8, { job_file: "flights.py" })] };
  const second = open(page("restore?to=10"));
  expect(await screen.findByText(command("flights.py"))).toBeDefined();
  second.unmount();

  // No command works for a point whose files are missing, or for a value that is refused.
  server.answers[`${job}/restore-plan`] = { ...planPage, checks: [{ name: "target-files", ok: false, text: "a file is missing" }] };
  const third = open(page("restore?to=10"));
  expect((await screen.findByText(/There are no commands/)).textContent).toContain("a file is missing");
  expect(screen.queryByText(/^stateflow restore/)).toBeNull();
  third.unmount();
  server.answers[`${job}/restore-plan`] = Response.json({ error: { message: "there is no such point", hint: null } }, { status: 422 });
  open(page("restore?to=11"));
  expect(await screen.findByText("There is no plan with these values")).toBeDefined();
  expect(screen.queryByText(/^stateflow restore/)).toBeNull();
});

it("shows the most rows that a plan without the job file can remove, without a red box for what is not known", async () => {
  const sinks = plan.sinks.map((sink) => ({ ...sink, read: false, rows_removed: null, rows_returned: null, others: [] }));
  const sources = plan.sources.map((source) => ({ ...source, available: null }));
  server.answers[`${job}/restore-plan`] = { ...planPage, plan: { ...plan, sinks, sources, dropped_checkpoint_ids: [] } };
  const { container } = open(page("restore?to=10"));
  const losses = await screen.findByRole("region", { name: "What is lost" });
  expect(losses.textContent).toContain("at most 1,300rows are removed from tables");
  expect(screen.getByRole("region", { name: "Tables before and after" }).textContent).toContain("at most 1,300 rows");
  expect(screen.queryByText("Lost for ever")).toBeNull();
  expect(screen.getByText("Nothing is known to be lost for ever.")).toBeDefined();
  expect(container.textContent).toContain("it takes about 4 min to read again");
  await expectAccessible(container);
});

it("says that nothing changes for the present point", async () => {
  const sinks = plan.sinks.map((sink) => ({ ...sink, read: false, rows_removed: 0, others: [] }));
  const sources = plan.sources.map((source) => ({ ...source, target_offset: source.current_offset }));
  const here = { ...plan, target_checkpoint_id: 12, dropped_checkpoint_ids: [], states: plan.states.slice(0, 1), sinks, sources, rows_again: 0, checkpoints_after: 0 };
  server.answers[`${job}/restore-plan`] = { ...planPage, replay_ms: 0, plan: here };
  open(page("restore?to=12"));
  expect(await screen.findByText("Nothing changes: the job is at this point")).toBeDefined();
  expect([screen.queryByRole("alert"), screen.queryByRole("region", { name: "What is lost" })]).toEqual([null, null]);
});

it("asks for no position of a source before one is entered", async () => {
  open(page("restore?to=10"));
  const user = userEvent.setup();
  await user.selectOptions(await screen.findByLabelText("Position of orders"), "other");
  const field = screen.getByLabelText<HTMLInputElement>("Position of orders as text");
  expect(field.value).toBe("");
  // A word that is also a choice does not take the field away.
  await user.type(field, "latest");
  await user.type(screen.getByLabelText("Position of orders as text"), "x");
  await waitFor(() => {
    expect(server.queries.at(-1)).toContain("source_positions=orders%3Dlatestx");
  });
  await user.selectOptions(screen.getByLabelText("Position of orders"), "");
  await waitFor(() => {
    expect(server.queries.at(-1)).not.toContain("source_positions");
  });
});

it("chooses the point in the timeline, before a deployment, before a time, or up to a position", async () => {
  const runs = [
    runSummary(1, { job_file_sha256: "a", started_at: "2026-01-31T01:00:00.000Z" }),
    runSummary(2, { job_file_sha256: "b", started_at: "2026-01-31T12:22:00.000Z", base_checkpoint_id: 10, run: 2, job_file: "flights.py" }),
  ];
  server.answers[`${job}/timeline`] = { ...timeline, runs };
  server.answers[job] = { ...state, description: described, sources: [{ uid: "orders", description: null, offset: { file: 5 }, watermark_at: null, active_at: null, idle: null }] };
  const { container, unmount } = open(page("restore"));
  const before = await screen.findByRole("region", { name: "Before a deployment" });
  expect(before.textContent.replaceAll(/\s/gu, " ")).toContain("Before the deployment of Jan 31, 2026, 12:22:00 PM: flights.py changed with run 2");
  expect(within(before).getByRole("link", { name: "Restore to here: 10" }).getAttribute("href")).toBe(page("restore?to=10"));
  const picture = screen.getByRole("group", { name: "Timeline" });
  const user = userEvent.setup();
  await user.click(within(picture).getByRole("button", { name: /the present state/ }));
  expect(screen.getByText("The job is at this point.")).toBeDefined();
  await expectAccessible(container);
  await user.click(within(picture).getByRole("button", { name: /checkpoint 10/ }));
  expect(await screen.findByRole("heading", { name: /to checkpoint 10$/ })).toBeDefined();
  unmount();

  const first = open(page("restore"));
  const moment = await screen.findByLabelText("Before a time");
  expect(document.getElementById(moment.getAttribute("aria-describedby") ?? "")?.textContent).toContain("UTC");
  fireEvent.change(moment, { target: { value: "2026-01-31T03:00" } });
  await user.click(screen.getByRole("button", { name: "Use the last point before this time" }));
  expect(await screen.findByRole("heading", { name: /to before:2026-01-31T03:00:00Z$/ })).toBeDefined();
  first.unmount();

  open(page("restore"));
  const position = await screen.findByLabelText("Number in its position");
  await user.type(position, "x");
  expect(screen.getByRole<HTMLButtonElement>("button", { name: /up to this position/ }).disabled).toBe(true);
  fireEvent.change(position, { target: { value: "7" } });
  await user.click(screen.getByRole("button", { name: /up to this position/ }));
  expect(await screen.findByRole("heading", { name: /to before:orders=7$/ })).toBeDefined();
});

it("lists all points that can be restored page by page, with the rows after each, and savepoints", async () => {
  const kept = (id: number) => ({ ...point(id, 1), kind: "checkpoint", retained: true });
  // A restore of a kept checkpoint has made none of its own; that of a savepoint has.
  const back = { ...restore, seq: 11, checkpoint_id: 10, restored_checkpoint_id: 10, retained: true };
  const ofSavepoint = { ...restore, seq: 9, checkpoint_id: 9, restored_checkpoint_id: 3, retained: true };
  Object.assign(server.answers, {
    [job]: { ...state, checkpoint_id: 12 },
    [`${job}/timeline`]: timeline,
    [`${job}/points`]: { points: [kept(12), back, kept(10), ofSavepoint], next_cursor: "older", ...CURRENT },
    [`${job}/savepoints`]: { savepoints: [savepoint("weekly", "manual")], older: false, elsewhere: [], ...CURRENT },
  });
  open(page("restore"));
  const table = await screen.findByRole("region", { name: "Points to restore" });
  expect(server.queries).toContain(`${job}/points?retained=true&undone=false`);
  const [, first, second, ...others] = within(table).getAllByRole("row");
  await waitFor(() => {
    expect(first?.textContent).toMatch(/checkpoint 10.*1 byte1/);
  });
  expect(second?.textContent).toContain("checkpoint 9");
  expect(within(table).getAllByRole("columnheader").map((title) => title.textContent)).toEqual(["Point", "Made", "State", "Rows after it"]);
  // In the first cell, which a phone shows without scrolling.
  expect(within(first as HTMLElement).getAllByRole("cell")[0]?.textContent).toBe("checkpoint 10Restore to here");
  expect(others).toEqual([]);
  expect(within(table).getAllByRole("link").map((link) => link.getAttribute("href"))).toEqual([page("restore?to=10"), page("restore?to=9")]);
  expect((await screen.findByRole("region", { name: "Savepoints to restore" })).textContent).toContain("savepoint weekly");
  await userEvent.setup().click(screen.getByRole("button", { name: "Older" }));
  expect(server.queries.at(-1)).toBe(`${job}/points?retained=true&undone=false&cursor=older`);
});

it("lets an approver read the losses first, and sends the answer with the note", async () => {
  server.answers[`PATCH ${path("/-1/hitlDetails", "approve")}`] = {};
  const { container } = open(page(`approval/${encodeURIComponent(RUN)}`));
  const losses = await screen.findByRole("region", { name: "What is lost" });
  expect(losses.textContent).toContain("2commits of other writers are undone");
  expect(screen.getByRole("region", { name: "Difference from the job file of the newest run" }).textContent).toContain(`+${HOSTILE}`);
  expect(await screen.findByText(/still valid/)).toBeDefined();
  expect(container.querySelector("img")).toBeNull();
  await expectAccessible(container);
  const user = userEvent.setup();
  await user.type(screen.getByRole("textbox", { name: "Note" }), "seen");
  await user.click(screen.getByRole("button", { name: "Approve" }));
  expect(server.sent).toEqual([{ method: "PATCH", path: path("/-1/hitlDetails", "approve"), body: { chosen_options: ["Approve"], params_input: { note: "seen" } } }]);
});

it("covers the losses with the buttons only once they were seen", async () => {
  let show = () => undefined as unknown;
  vi.stubGlobal(
    "IntersectionObserver",
    class {
      constructor(changed: (entries: { isIntersecting: boolean }[]) => void) {
        show = () => {
          changed([{ isIntersecting: true }]);
        };
      }
      observe = () => undefined;
      disconnect = () => undefined;
    },
  );
  open(page(`approval/${encodeURIComponent(RUN)}`));
  const losses = await screen.findByRole("region", { name: "What is lost" });
  const answer = screen.getByRole("region", { name: "Answer" });
  expect(losses.compareDocumentPosition(answer) & Node.DOCUMENT_POSITION_FOLLOWING).toBeTruthy();
  expect(answer.style.position).toBe("static");
  act(() => {
    show();
  });
  expect(answer.style.position).toBe("sticky");
});

it("says that the point of a plan is gone, and leads to the others", async () => {
  server.answers[job] = { ...state, description: { ...described, retained_checkpoint_ids: [12] } };
  open(page(`approval/${encodeURIComponent(RUN)}`));
  expect(await screen.findByText("The plan is outdated: the job no longer keeps checkpoint 10")).toBeDefined();
  expect(screen.getByRole<HTMLButtonElement>("button", { name: "Approve" }).disabled).toBe(true);
  expect(screen.getByRole("link", { name: "Choose another point" }).getAttribute("href")).toBe(page("restore"));
});

it("shows the first line of what Airflow refuses, and the rest folded", async () => {
  // As jsonschema writes it into the answer of Airflow 3.3.
  const detail = `Invalid input for param note: 5 is not of type 'string', 'null'\n\nFailed validating 'type' in schema:\n    {'type': ['string', 'null'], 'description': '${HOSTILE}'}\n\nOn instance:\n    5`;
  server.answers[`PATCH ${path("/-1/hitlDetails", "approve")}`] = Response.json({ detail }, { status: 400 });
  const { container } = open(page(`approval/${encodeURIComponent(RUN)}`));
  const user = userEvent.setup();
  await user.click(await screen.findByRole("button", { name: "Approve" }));
  const alert = (await screen.findByText("Airflow refuses the values: Invalid input for param note: 5 is not of type 'string', 'null'")).closest("[role=alert]") as HTMLElement;
  expect(alert.textContent).not.toContain("schema");
  await user.click(within(alert).getByText("The whole message"));
  expect(alert.textContent).toContain(`'description': '${HOSTILE}'`);
  expect(container.querySelector("img")).toBeNull();
});

it("lets a person choose among several DAGs of the same job root, and says which one it triggers", async () => {
  const dags = family.dags.map((dag) => ({ ...dag, dag_id: name(dag.dag_id) }));
  const others = family.dags.map((dag) => ({ ...dag, dag_id: name(`other-${dag.dag_id}`), is_paused: false }));
  server.answers[`${job}/family`] = { ...family, dags: [...dags, ...others] };
  server.answers[`POST api/v2/dags/${name("other-flights")}/dagRuns`] = { dag_run_id: RUN };
  const { container, unmount } = open(page(""));
  const user = userEvent.setup();
  const field = await screen.findByLabelText<HTMLSelectElement>("DAG that runs the job");
  expect(field.value).toBe(name("flights"));
  expect(screen.getByRole<HTMLButtonElement>("button", { name: "Run now" }).disabled).toBe(true);
  await user.selectOptions(field, name("other-flights"));
  await expectAccessible(container);
  await user.click(screen.getByRole("button", { name: "Run now" }));
  expect(screen.getByText(new RegExp(`This triggers ${name("other-flights")}:`))).toBeDefined();
  await user.click(screen.getByRole("button", { name: "Yes, run now" }));
  expect(server.sent.map((each) => each.path)).toEqual([`api/v2/dags/${name("other-flights")}/dagRuns`]);
  unmount();

  // A run of any of them makes a plan outdated.
  server.answers[`POST api/v2/dags/${name("other-flights_recovery")}/dagRuns`] = { dag_run_id: RUN };
  open(page("restore?to=10"));
  expect((await screen.findAllByText(`${name("other-flights")} is not paused`)).length).toBeGreaterThan(0);
  fireEvent.change(screen.getByLabelText(/Why is this restore/), { target: { value: "why" } });
  await user.selectOptions(screen.getByLabelText("DAG that restores the job"), name("other-flights_recovery"));
  const request = screen.getByRole<HTMLButtonElement>("button", { name: "Request the restore" });
  await waitFor(() => {
    expect(request.disabled).toBe(false);
  });
  await user.click(request);
  await user.click(screen.getByRole("button", { name: "Yes, request the restore" }));
  expect(server.sent.at(-1)?.path).toBe(`api/v2/dags/${name("other-flights_recovery")}/dagRuns`);
  await waitFor(() => {
    expect(server.queries).toContain(`api/v2/dags/${name("other-flights_recovery")}/dagRuns/${encodeURIComponent(RUN)}`);
  });
});

it("disables the approval for the requester, with the reason", async () => {
  server.answers[run()] = { ...dagRun, triggering_user_name: "oscar" };
  open(page(`approval/${encodeURIComponent(RUN)}`));
  const approve = await screen.findByRole<HTMLButtonElement>("button", { name: "Approve" });
  await waitFor(() => {
    expect(approve.disabled).toBe(true);
  });
  const why = document.getElementById(approve.getAttribute("aria-describedby") ?? "");
  expect(why?.textContent).toContain("another person");
  expect(screen.getByRole<HTMLButtonElement>("button", { name: "Reject" }).disabled).toBe(false);
});

it("disables both answers for a person without the right", async () => {
  server.answers[`${job}/family`] = { ...family, dags: family.dags.map((dag) => ({ ...dag, dag_id: name(dag.dag_id), may_answer: false })) };
  open(page(`approval/${encodeURIComponent(RUN)}`));
  const approve = await screen.findByRole<HTMLButtonElement>("button", { name: "Approve" });
  expect([approve.disabled, screen.getByRole<HTMLButtonElement>("button", { name: "Reject" }).disabled]).toEqual([true, true]);
});

it("says that a plan is outdated, and leads to another one", async () => {
  server.answers[job] = { ...state, generation: 10, run: 12, runs: [runSummary(10, { run: 12 })] };
  open(page(`approval/${encodeURIComponent(RUN)}`));
  expect(await screen.findByText("The plan is outdated by run 12: plan again")).toBeDefined();
  expect(screen.getByRole<HTMLButtonElement>("button", { name: "Approve" }).disabled).toBe(true);
  expect(screen.getByRole("link", { name: "Plan the restore again" }).getAttribute("href")).toBe(page("restore?to=10"));
});

/** Opens the question of another DAG than the recovery's, with what its task has pushed about it. */
function openQuestion(dag: string, subject: string, about: Asked | null) {
  const asks = { ...asked(), subject, task_instance: { ...asked().task_instance, dag_id: name(dag) } };
  const run = `api/v2/dags/${name(dag)}/dagRuns/${encodeURIComponent(RUN)}`;
  server.answers[`${run}/hitlDetails`] = { hitl_details: [asks], total_entries: 1 };
  if (about !== null) server.answers[`${run}/taskInstances/approve/xcomEntries/asked`] = { value: about };
  return open(page(`approval/${encodeURIComponent(RUN)}?dag=${name(dag)}`));
}

it("shows in numbers what a retention deletes, and what of it is gone already", async () => {
  server.answers[job] = { ...state, description: { ...described, retained_checkpoint_ids: [10, 12] } };
  server.answers[`${job}/savepoints`] = { savepoints: [], older: false, next_cursor: null, elsewhere: [], ...CURRENT };
  const { container } = openQuestion("flights_retention", "Delete?", { checkpoints: [10, 11], savepoints: [HOSTILE], generation: null });
  const losses = await screen.findByRole("region", { name: "What is lost" });
  expect(losses.textContent).toContain("2checkpoints are deleted that would be kept10, 11");
  expect(losses.textContent).toContain(`1savepoint is deleted that would be kept${HOSTILE}`);
  expect((await screen.findByText(/Deleted already/)).textContent).toBe(`Deleted already: checkpoint 11, savepoint ${HOSTILE}`);
  expect(screen.getByText("The question as text").closest("details")?.open).toBe(false);
  expect(container.querySelector("img")).toBeNull();
  await expectAccessible(container);
});

it("says that a stop is still valid", async () => {
  openQuestion("flights_savepoint", "Stop flights?", { checkpoints: [], savepoints: [], generation: state.generation });
  expect(await screen.findByText(/still valid/)).toBeDefined();
  expect(screen.getByRole<HTMLButtonElement>("button", { name: "Approve" }).disabled).toBe(false);
});

it("warns of a stop that closes open windows, and shows its text", async () => {
  openQuestion("flights_savepoint", "Stop flights?", { checkpoints: [], savepoints: [], generation: state.generation, drain: true });
  expect(await screen.findByText(/timer fires first/)).toBeDefined();
  expect(screen.queryByText(/Nothing is lost/)).toBeNull();
  expect(screen.getByText("The question as text").closest("details")?.open).toBe(true);
});

it("refuses the approval of a stop of a run that is not the newest one any more", async () => {
  openQuestion("flights_savepoint", "Stop flights?", { checkpoints: [], savepoints: [], generation: 1 });
  expect((await screen.findByRole("alert")).textContent).toContain("The request is outdated by");
  expect(screen.getByRole<HTMLButtonElement>("button", { name: "Approve" }).disabled).toBe(true);
  expect(screen.getByRole<HTMLButtonElement>("button", { name: "Reject" }).disabled).toBe(false);
});

it("shows who has answered first, also to a person whose answer came later", async () => {
  open(page(`approval/${encodeURIComponent(RUN)}`));
  const reject = await screen.findByRole("button", { name: "Reject" });
  server.answers[`PATCH ${path("/-1/hitlDetails", "approve")}`] = Response.json({ detail: "Human-in-the-loop detail has already been updated" }, { status: 409 });
  server.answers[`${run()}/hitlDetails`] = {
    hitl_details: [{ ...asked(), response_received: true, chosen_options: ["Approve"], responded_by_user: { id: "2", name: "oscar" }, task_instance: { ...asked().task_instance, state: "success" } }],
    total_entries: 1,
  };
  await userEvent.setup().click(reject);
  expect((await screen.findByText("Approved")).closest("[role]")?.textContent).toContain("By oscar");
  expect(screen.queryByRole("button", { name: "Reject" })).toBeNull();
});

it("shows a question without a plan as text", async () => {
  const { container } = openQuestion("flights_savepoint", "Stop flights?", null);
  expect(await screen.findByRole("heading", { name: "Stop flights?" })).toBeDefined();
  expect(screen.getByText(/Requested by/).textContent).toContain(`# ${HOSTILE}`);
  expect(container.querySelector("img")).toBeNull();
});

it("follows a recovery to its end, and offers what comes next", async () => {
  vi.useFakeTimers({ shouldAdvanceTime: true });
  const { container } = open(page(`recovery/${encodeURIComponent(RUN)}`));
  const steps = await screen.findByRole("list", { name: "Steps of the recovery" });
  const current = () => within(steps).getAllByRole("listitem").filter((step) => step.getAttribute("aria-current") === "step").map((step) => step.textContent);
  await waitFor(() => {
    expect(current()[0]).toContain("2. Approvalwaits");
  });
  expect(within(steps).getByRole("link", { name: "Answer the question" }).getAttribute("href")).toContain("/approval/");
  await expectAccessible(container);

  const restoring = { seq: 13, target_label: "", by: null, requested_by: null, reason: null, requested_at: null, tables: { out: 5, audit: 2 }, restored_tables: ["audit"] };
  server.answers[job] = { ...state, description: { ...described, restoring } };
  server.answers[`${run()}/taskInstances`] = { task_instances: [task("plan", "success"), task("approve", "success"), task("restore", "running")] };
  await vi.advanceTimersByTimeAsync(11_000);
  expect(await screen.findByText("Table 2 of 2")).toBeDefined();

  server.answers[`${run()}/taskInstances`] = { task_instances: ["plan", "approve", "restore", "verify"].map((each) => task(each, "success")).concat(task("run", "skipped")) };
  server.answers[`${run()}/hitlDetails`] = { hitl_details: [{ ...asked(), response_received: true, chosen_options: ["Approve"], responded_by_user: { id: "2", name: "oscar" } }], total_entries: 1 };
  server.answers[run()] = { ...dagRun, dag_id: name("flights_recovery"), state: "success" };
  await vi.advanceTimersByTimeAsync(6_000);
  expect(await screen.findByRole("link", { name: "Undo this restore: before-restore" })).toBeDefined();
  expect(screen.getByText("1 table restored.")).toBeDefined();
  expect(steps.textContent).toContain("By oscar");
  expect(within(steps).getByText("2. Approved by oscar")).toBeDefined();
  expect(screen.getByRole<HTMLButtonElement>("button", { name: "Unpause" }).disabled).toBe(false);
  // Its DAG run would wait.
  expect(screen.getByRole<HTMLButtonElement>("button", { name: "Run now" }).disabled).toBe(true);
});

it("shows how many of the files since the target the run after a restore has read, and in which batch it is", async () => {
  const backlog = { measured_at: null, rows: null, files: 9, size_bytes: null, exact: true, oldest_at: null, rows_per_second: null, catch_up_ms: null, sources: [] };
  const progress = { reported_at: null, ordinal: 4, batch_started_at: null, batches: 3, rows_in: 5000, driver: "host:1", reason: null };
  const [source] = plan.sources;
  server.answers[path("/xcomEntries/return_value", "plan")] = { value: { plan: { ...plan, sources: [{ ...source, files: 12 }] }, markdown: "", dag: null } };
  server.answers[job] = { ...state, backlog, description: { ...described, run_open: true, progress } };
  server.answers[`${run()}/taskInstances`] = { task_instances: ["plan", "approve", "restore", "verify"].map((each) => task(each, "success")).concat(task("run", "running")) };
  open(page(`recovery/${encodeURIComponent(RUN)}`));
  expect(await screen.findByText("3 of 12 files read again")).toBeDefined();
  expect(screen.getByText(/The run has completed 3 batches with 5,000 rows, and is in batch 4\./)).toBeDefined();
});

it("shows why a step failed", async () => {
  server.answers[run()] = { ...dagRun, dag_id: name("flights_recovery"), state: "failed" };
  server.answers[`${run()}/taskInstances`] = { task_instances: [{ ...task("plan", "failed"), dag_id: name("flights_recovery") }] };
  server.answers[path("/logs/1", "plan")] = {
    content: [{ event: "starting", level: "info" }, { event: `[config] there is no ${HOSTILE}`, level: "error" }, { event: "Task failed with exception", level: "error" }],
    continuation_token: null,
  };
  const { container } = open(page(`recovery/${encodeURIComponent(RUN)}`));
  expect((await screen.findByText(/\[config\] there is no/)).textContent).toContain(HOSTILE);
  expect(container.querySelector("img")).toBeNull();
});

it("asks once before each action, says what comes next, and shows its result", async () => {
  server.answers[`api/v2/dags/${name("flights_savepoint")}/dagRuns/${encodeURIComponent(RUN)}`] = { ...dagRun, dag_id: name("flights_savepoint"), state: "failed" };
  server.answers[`POST api/v2/dags/${name("flights_savepoint")}/dagRuns`] = { dag_run_id: RUN };
  open(page(""));
  const user = userEvent.setup();
  await user.click(await screen.findByRole("button", { name: "Stop with savepoint" }));
  await user.type(screen.getByRole("textbox", { name: "Name of the savepoint" }), "before-upgrade");
  await user.click(screen.getByRole("button", { name: "Yes, stop with savepoint" }));
  expect(server.sent.map(({ body }) => body)).toEqual([
    { logical_date: null, conf: { name: "before-upgrade", reason: null, origin: "manual", format: "default", stop: true, drain: false } },
  ]);
  // The job may let the requester approve.
  expect(screen.queryByText(/[Aa]nother person/)).toBeNull();
  expect((await screen.findByRole("link", { name: /approve the stop/ })).getAttribute("href")).toContain(`dag=${name("flights_savepoint")}`);
  expect(await screen.findByText(/The DAG run has failed/)).toBeDefined();
});

it("shows which names of savepoints the form of the DAG takes, as its refusal says it", async () => {
  const path = `POST api/v2/dags/${name("flights_savepoint")}/dagRuns`;
  server.answers[path] = new Response(JSON.stringify({ detail: "Invalid input for param name: ['Name: 1 to 100 letters'] was expected" }), { status: 400 });
  open(page(""));
  const user = userEvent.setup();
  await user.click(await screen.findByRole("button", { name: "Savepoint" }));
  fireEvent.change(screen.getByRole("textbox", { name: "Name of the savepoint" }), { target: { value: " a b " } });
  await user.click(screen.getByRole("button", { name: "Yes, savepoint" }));
  expect(await screen.findByText(/Name: 1 to 100 letters/)).toBeDefined();
  expect(server.sent).toMatchObject([{ body: { conf: { name: "a b" } } }]);
});

it("unpauses the DAG that runs the job", async () => {
  server.answers[`PATCH api/v2/dags/${name("flights")}`] = {};
  open(page(""));
  const user = userEvent.setup();
  await user.click(await screen.findByRole("button", { name: "Unpause" }));
  await user.click(screen.getByRole("button", { name: "Yes, unpause" }));
  expect(server.sent).toEqual([{ method: "PATCH", path: `api/v2/dags/${name("flights")}`, body: { is_paused: false } }]);
});

it("disables actions with the reason for a person who may not trigger", async () => {
  server.answers[`${job}/family`] = { ...family, dags: family.dags.map((dag) => ({ ...dag, dag_id: name(dag.dag_id), may_trigger: false, may_pause: false })) };
  open(page(""));
  const buttons = await Promise.all(["Run now", "Savepoint", "Stop with savepoint", "Unpause"].map((label) => screen.findByRole<HTMLButtonElement>("button", { name: label })));
  for (const button of buttons) {
    expect(button.disabled).toBe(true);
    expect(document.getElementById(button.getAttribute("aria-describedby") ?? "")?.textContent).toContain("right");
  }
});

it("leads from a job to the question that waits", async () => {
  const waiting = { dag_id: name("flights_recovery"), dag_run_id: RUN, subject: question().subject, asked_at: question().created_at };
  server.answers[`${job}/family`] = { ...family, questions: [waiting] };
  open(page(""));
  const links = await screen.findAllByRole("link", { name: question().subject });
  expect(links.map((link) => link.getAttribute("href"))).toEqual([`${page("approval/")}${encodeURIComponent(RUN)}?dag=${name("flights_recovery")}`]);
});

it("shows an approver the characters that would hide or turn a text", async () => {
  const hidden = "a\u202eb\u2066c\u001bd\u200be";
  const seen = "a\\u202eb\\u2066c\\u001bd\\u200be";
  server.answers[run()] = { ...dagRun, dag_id: name("flights_recovery"), conf: { reason: hidden }, triggering_user_name: hidden };
  const shown = { ...plan, target_label: hidden, job_file: hidden, code_difference: hidden, job_file_difference: `--- a\n+++ b\n+${hidden}` };
  const cautions = [{ about: hidden, text: hidden }];
  server.answers[path("/xcomEntries/return_value", "plan")] = { value: { plan: shown, cautions, replay: hidden, markdown: "", dag: null } };
  const asks = { ...asked(), subject: hidden, body: hidden, assigned_users: [{ id: "1", name: hidden }] };
  server.answers[`${run()}/hitlDetails`] = { hitl_details: [asks], total_entries: 1 };
  const { container } = open(page(`approval/${encodeURIComponent(RUN)}`));
  expect((await screen.findByRole("region", { name: "Difference from the job file of the newest run" })).textContent).toBe(`--- a+++ b+${seen}`);
  expect(screen.getByText(`Reason: ${seen}`)).toBeDefined();
  expect(screen.getByRole("heading", { name: seen })).toBeDefined();
  expect(container.textContent).not.toMatch(/[\p{Cc}\p{Cf}]/u);
});

it("has no new name and no position for a uid that every object has", async () => {
  server.answers[job] = { ...state, sources: [{ uid: "constructor", description: null, offset: null, watermark_at: null, active_at: null, idle: null }] };
  open(page("restore?to=10"));
  expect((await screen.findByLabelText<HTMLInputElement>("New name of constructor")).value).toBe("");
  expect(screen.getByLabelText<HTMLSelectElement>("Position of constructor").value).toBe("");
});
