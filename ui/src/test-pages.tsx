// What the tests of pages share: a job, a server without a network, and how a page is opened.
import { ChakraProvider, defaultSystem } from "@chakra-ui/react";
import { render } from "@testing-library/react";
import axe from "axe-core";
import { MemoryRouter } from "react-router-dom";
import { expect, vi } from "vitest";
import { App } from "./App";
import type { DagRun, Question, TaskInstance } from "./airflow";
import type { ActionEntry, CheckpointSummary, JobFamily, JobList, JobRow, JobState, RestorePlan, RestorePlanPage, RunSummary, Savepoint, TimelinePage } from "./api";

export const HOSTILE = "<img src=x onerror=alert(1)>";
export const CURRENT = { history_complete: true, history_truncated: false, last_read_at: null, problem: null };

export const job: JobRow = {
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
  live_bytes: null,
  state_sizes: [
    { checkpoint_id: 10, ended_at: null, full_bytes: 1000, live_bytes: null },
    { checkpoint_id: 12, ended_at: null, full_bytes: 2470, live_bytes: null },
  ],
  backlog: null,
  backlog_unknown: "only the job file has the sources",
  next_run_at: null,
  savepoint: null,
  savepoint_unknown: false,
  failure: null,
  failed_start: null,
  ...CURRENT,
};
export const gone: JobRow = {
  ...job,
  id: "gone",
  health: null,
  job_root: "s3://gone",
  job: null,
  problem: { code: "storage", message: "the storage of the job root does not answer", facts: {}, hint: null, exit_code: 3, retryable: true },
};
export const list: JobList = { jobs: [job, gone], next_cursor: null, searches: [] };
/** The status of a job at checkpoint 13. */
export const described: NonNullable<JobState["description"]> = {
  job: "flights",
  job_uuid: "1",
  run: 3,
  generation: 9,
  head_seq: 12,
  checkpoint_id: 13,
  restored_checkpoint_id: null,
  label: "checkpoint 13",
  retained_checkpoint_ids: [10, 12, 13],
  pins: [],
  offsets: {},
  forked_from: null,
  shadow: false,
  restoring: null,
  background: [],
  quarantined: [],
  quarantined_count: 0,
  drained: false,
  origin: null,
  run_open: false,
  failure: null,
  failed_start: null,
  claimed_savepoints: [],
  code_hash: null,
  waiting: [],
  progress: null,
  restore_open: false,
};
export const state: JobState = {
  ...job,
  description: null,
  newest: null,
  restore: null,
  runs: [],
  operators: [],
  sources: [],
  sinks: {},
  undone_count: 1,
  history_changed: null,
  savepoint_integrity: null,
  failure: { generation: 9, failed_at: null, code: "corrupt-input", message: HOSTILE },
};
export const point = (id: number, run: number): CheckpointSummary => ({
  kind: "checkpoint",
  failure: null,
  live_bytes: null,
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
export const restore: ActionEntry = {
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
export function runSummary(generation: number, more: Partial<RunSummary> = {}): RunSummary {
  return {
    generation,
    run: null,
    driver: null,
    reason: null,
    attempt: null,
    is_open: false,
    requested_by: null,
    stateflow: null,
    started_at: null,
    startup_ms: null,
    base_checkpoint_id: null,
    parallelism: null,
    job_file: null,
    job_file_sha256: null,
    job_file_modified_at: null,
    graph_sha256: null,
    first_checkpoint_id: null,
    last_checkpoint_id: null,
    checkpoints: 0,
    aborted: 0,
    rows_in: 0,
    first_triggered_at: null,
    last_ended_at: null,
    failure: null,
    ...more,
  };
}
export const timeline: TimelinePage = { runs: [], checkpoints: [point(10, 1), point(12, 2)], actions: [restore], older: false, next_cursor: null, ...CURRENT };

/** The ETag of an answer. */
export function tagOf(answer: unknown): string {
  return `"${encodeURIComponent(JSON.stringify(answer))}"`;
}

/** A request that changes something. */
export interface Sent {
  method: string;
  path: string;
  body: unknown;
}

/** Answers by path: `jobs/…` of the API, `api/v2/…` of Airflow, both without a query unless there is one with it. */
export class Server {
  readonly answers: Record<string, unknown> = {};
  /** Paths with their ETags. */
  readonly requests: string[] = [];
  /** Paths with their queries. */
  readonly queries: string[] = [];
  readonly sent: Sent[] = [];

  /** Takes the place of the network. */
  start(): void {
    vi.stubGlobal("fetch", (address: string, options: { headers: Headers; method?: string; body?: string }) => this.answer(address, options));
  }

  private answer(address: string, { headers, method, body }: { headers: Headers; method?: string; body?: string }): Promise<Response> {
    const whole = address.replace(/^.*api\/v1\//, "").replace(/^.*(api\/v2\/|ui\/auth\/)/, "$1");
    const path = whole.replace(/\?.*/, "");
    this.queries.push(whole);
    if (method !== undefined) this.sent.push({ method, path, body: JSON.parse(body ?? "null") });
    else this.requests.push(`${path} ${headers.get("If-None-Match") ?? ""}`.trim());
    const found = method === undefined ? (this.answers[whole] ?? this.answers[path]) : this.answers[`${method} ${path}`];
    if (found instanceof Error) return Promise.reject(found);
    // An answer that does not come, or comes later.
    if (found instanceof Promise) return found as Promise<Response>;
    if (found instanceof Response) return Promise.resolve(found.clone());
    if (found === undefined) return Promise.resolve(Response.json({ error: { message: "there is no such job", hint: null } }, { status: 404 }));
    const tag = tagOf(found);
    if (headers.get("If-None-Match") === tag) return Promise.resolve(new Response(null, { status: 304 }));
    return Promise.resolve(Response.json(found, { headers: { ETag: tag } }));
  }
}

export function open(path: string) {
  return render(
    <ChakraProvider value={defaultSystem}>
      <MemoryRouter initialEntries={[path]}>
        <App base="" />
      </MemoryRouter>
    </ChakraProvider>,
  );
}

export async function expectAccessible(container: Element) {
  // jsdom has no layout, so it knows no colours.
  const { violations } = await axe.run(container, { rules: { "color-contrast": { enabled: false }, region: { enabled: false } } });
  expect(violations.map(({ id, nodes }) => [id, nodes[0]?.html])).toEqual([]);
}

export const plan: RestorePlan = {
  job: "flights",
  job_uuid: "u",
  target_sha256: "s",
  head_seq: 12,
  generation: 9,
  ordinal: 3,
  checkpoint_id: 12,
  target: "10",
  target_label: `checkpoint 10 ${HOSTILE}`,
  target_checkpoint_id: 10,
  target_committed_at: "2026-01-31T03:00:00.000Z",
  savepoint_path: null,
  savepoint_made_at: null,
  undone: false,
  foreign: false,
  parent_job: null,
  parent_job_uuid: null,
  parallelism: 2,
  operators: ["count"],
  graph: { maps: [], sources: [], drop: [], positions_at: null, moves: [], dropped: [], old_max_parallelism: null, max_parallelism: null },
  made_at: null,
  code_hash: null,
  claim_mode: "no-claim",
  mode: "restore",
  states: [
    { uid: "count", action: "matched", target_bytes: 1000, current_bytes: 2470, olds: [], current_parallelism: 2, target_parallelism: 2 },
    { uid: "fresh", action: "new", target_bytes: 0, current_bytes: 0, olds: [], current_parallelism: null, target_parallelism: 2 },
  ],
  sources: [{ uid: "orders", current_offset: { file: 5 }, target_offset: null, available: true, files: 4, action: "kept", old: null }],
  sinks: [
    { uid: "out", kind: "table", mode: "restore", table_id: "t", table: "/tables/out", current_version: 7, target_version: 5, read: true, rows_removed: 1234, rows_returned: 0, rows_written_since: 1300, others: ["a", "b"] },
  ],
  left: [],
  dropped_checkpoint_ids: [11, 12],
  saved: [{ checkpoint_id: 12, savepoint: "before-restore" }],
  rows_again: 5000,
  checkpoints_after: 2,
  run_open: false,
  restore_open: false,
  job_file: "/jobs/flights.py",
  job_file_changed_at: null,
  code_difference: HOSTILE,
  job_file_difference: `--- a\n+++ b\n-old\n+${HOSTILE}`,
};

export const planPage: RestorePlanPage = {
  plan,
  cautions: [{ about: "table of out", text: HOSTILE }],
  replay: "The next run reads the input since the target again.",
  replay_ms: 240_000,
  checks: [{ name: "no run is active", ok: true, text: "the run ended" }],
  expected_plan: "d1ce",
  graph_known: true,
  generation: 9,
  ...CURRENT,
};

export const family: JobFamily = {
  may_read_state: true,
  questions: [],
  dags: (["run", "savepoint", "retention", "recovery"] as const).map((role) => ({
    dag_id: role === "run" ? "flights" : `flights_${role}`,
    role,
    may_trigger: true,
    may_pause: true,
    may_answer: true,
    is_paused: role === "run",
  })),
};

/** A try of the task that runs the job, in a DAG run. */
export function attempt(number: number, run = "r"): RunSummary["attempt"] {
  return { dag_id: "flights", dag_run_id: run, task_id: "run", try_number: number };
}

export const RUN = "manual__2026-01-31T03:00:00+00:00_x";

export const dagRun: DagRun = {
  dag_run_id: RUN,
  dag_id: "flights_recovery",
  state: "running",
  start_date: "2026-01-31T03:00:00Z",
  end_date: null,
  triggering_user_name: "uma",
  conf: { reason: HOSTILE },
};

export function task(id: string, state: string | null): TaskInstance {
  return { task_id: id, dag_id: "flights_recovery", dag_run_id: RUN, map_index: -1, state, try_number: 1, start_date: null, end_date: null };
}

/** The question of the recovery DAG, which waits for an answer. */
export function question(): Question {
  return {
    options: ["Approve", "Reject"],
    subject: `Restore flights to ${HOSTILE}?`,
    body: `# ${HOSTILE}\n\n**Requested by**: uma, who cannot approve it`,
    params: { note: { value: null } },
    assigned_users: [],
    created_at: "2026-01-31T03:00:00Z",
    responded_by_user: null,
    responded_at: null,
    chosen_options: null,
    params_input: {},
    response_received: false,
    task_instance: task("approve", "awaiting_input"),
  };
}

/** A savepoint of checkpoint 10. */
export function savepoint(name: string, origin: string): Savepoint {
  return {
    name,
    id: name,
    path: `/jobs/flights/savepoints/${name}`,
    job: "flights",
    checkpoint_id: 10,
    offsets: {},
    size_bytes: 1000,
    origin,
    made_at: "2026-01-31T03:00:00.000Z",
    made_from: null,
    format: "native",
    claimed_by: null,
    claimed_at: null,
    job_uuid: "1",
    by: null,
    requested_by: null,
    reason: null,
    note: null,
    committed_at: null,
    drained: false,
    max_parallelism: 128,
    code_hash: null,
    operators: [],
    sinks: {},
    record_integrity: "verified",
  };
}
