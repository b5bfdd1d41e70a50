// What the pages read: the types of the answers of `api/v1`, and the hook that keeps an answer current.
import { useCallback, useEffect, useMemo, useState } from "react";
import type { components, operations } from "./generated/api";

type Schemas = components["schemas"];
export type ActionEntry = Schemas["ActionEntry"];
export type Backlog = Schemas["JobBacklog"];
export type Caution = Schemas["Caution"];
export type ChainExplanation = Schemas["ChainExplanation"];
export type CheckpointEntry = Schemas["CheckpointEntry"];
export type CheckpointPage = Schemas["CheckpointPage"];
export type ComparedOperator = Schemas["ComparedOperator"];
/** A checkpoint in a list, without its operators and subtasks. */
export type CheckpointSummary = Schemas["CheckpointSummary"];
/** A record in a list. */
export type Entry = CheckpointSummary | ActionEntry;
export type FamilyDag = Schemas["FamilyDag"];
export type Freshness = Schemas["Freshness"];
export type GraphPage = Schemas["GraphPage"];
export type Health = Schemas["Health"];
export type InputExplanation = Schemas["InputExplanation"];
export type JobExplanation = Schemas["JobExplanation"];
export type JobFamily = Schemas["JobFamily"];
export type JobList = Schemas["JobList"];
export type JobRow = Schemas["JobRow"];
export type JobState = Schemas["JobState"];
export type JournalEntry = Schemas["JournalEntry"];
export type JournalKind = NonNullable<NonNullable<operations["journal"]["parameters"]["query"]>["kind"]>;
export type JournalPage = Schemas["JournalPage"];
export type OpenQuestion = Schemas["OpenQuestion"];
export type OperatorMetrics = Schemas["OperatorMetrics"];
export type OperatorStatus = Schemas["OperatorStatus"];
export type OperatorDetails = Schemas["OperatorDetails"];
export type Person = Schemas["Requester"];
export type PointPage = Schemas["PointPage"];
export type RestorePlan = Schemas["RestorePlan"];
export type RestorePlanPage = Schemas["RestorePlanPage"];
export type RetentionPreview = Schemas["RetentionPreview"];
export type PendingRestore = Schemas["PendingRestore"];
export type RunProgress = Schemas["RunProgress"];
export type RunPage = Schemas["RunPage"];
export type RunSummary = Schemas["RunSummary"];
export type Savepoint = Schemas["SavepointRow"];
export type SavepointDiff = Schemas["SavepointDiff"];
export type SavepointPage = Schemas["SavepointPage"];
export type SinkChange = Schemas["SinkChange"];
export type SinkMetrics = Schemas["SinkMetrics"];
export type SinkStatus = Schemas["SinkStatus"];
export type SourceChange = Schemas["SourceChange"];
export type SourceStatus = Schemas["SourceStatus"];
export type StateChange = Schemas["StateChange"];
export type TimelinePage = Schemas["TimelinePage"];

/** Whether an object was made of all records of a history. */
export function isWhole({ history_complete: complete, history_truncated: truncated }: Freshness): boolean {
  return complete && !truncated;
}

/** What an object of an answer has for a name; not what every object has, such as for the uid `constructor`. */
export function entryOf<T>(values: Readonly<Record<string, T>>, name: string): T | undefined {
  return Object.hasOwn(values, name) ? values[name] : undefined;
}

// The bundle is served next to `api/`: this holds behind any path prefix, and in Airflow's page.
const bundle = import.meta.url;
/** Whether the pages are on their own: their server asks for a token, where Airflow has a session. */
export const isStandalone = import.meta.env.MODE === "standalone";
const TOKEN = "stateflow-token";

/** The address of an answer of the API. */
function apiAddress(path: string): string {
  return new URL(`api/v1/${path}`, bundle).href;
}

/** An address of Airflow, whose plugin serves the bundle as `stateflow/plugin.js` below Airflow's own base. */
export function airflowAddress(path: string): string {
  return new URL(`../${path}`, bundle).href;
}

/** Whether a token was entered, be it the right one or not. */
export function hasToken(): boolean {
  return sessionStorage.getItem(TOKEN) !== null;
}

/** Keeps a token until the browser's tab is closed. */
export function rememberToken(token: string): void {
  // One that was copied from a terminal often has a blank or the end of the line.
  sessionStorage.setItem(TOKEN, token.trim());
  // All that wait for an answer ask again.
  window.dispatchEvent(new Event(TOKEN));
}

/** Why an answer is missing. */
export interface Problem {
  status: number | null;
  message: string;
  hint: string | null;
}

/** An answer as far as it is known. */
export interface Resource<T> {
  /** The newest answer; null before the first one. */
  value: T | null;
  /** When it was last known to be current, in milliseconds since 1970. */
  checkedAt: number | null;
  /** Why the last request failed; with a value, that value may be outdated. */
  problem: Problem | null;
  reload: () => void;
}

interface Answer {
  value: unknown;
  etag: string | null;
  checkedAt: number;
}

// A page that is opened again shows its last answer at once.
const known = new Map<string, Answer>();
const MOST_KNOWN = 20;

function remember(address: string, answer: Answer): void {
  known.delete(address);
  known.set(address, answer);
  const oldest = known.keys().next().value;
  if (known.size > MOST_KNOWN && oldest !== undefined) known.delete(oldest);
}

export const NO_ANSWER: Problem = { status: null, message: "the server does not answer", hint: null };

/** Why a request failed, in sentences of the API or of Airflow. */
export async function problemOf(response: Response): Promise<Problem> {
  const text = await response.text();
  try {
    const { error, detail } = JSON.parse(text) as { error?: { message?: string; hint?: string | null }; detail?: unknown };
    if (error?.message) return { status: response.status, message: error.message, hint: error.hint ?? null };
    const found = detailText(detail);
    if (found !== "") return { status: response.status, message: found, hint: null };
  } catch {
    // Not from the API: a proxy, or a server that is starting.
  }
  const refused = response.status === 401 || response.status === 403;
  const message = refused ? "you may not read this" : `the server answered with status ${response.status}`;
  return { status: response.status, message, hint: refused ? "log in again, or ask for the right to read the DAG" : null };
}

/** Airflow's description of an error: a text, a list of wrong values, or an object with the reason. */
function detailText(detail: unknown): string {
  if (typeof detail === "string") return detail;
  if (!Array.isArray(detail)) {
    const { message, reason } = (detail ?? {}) as { message?: unknown; reason?: unknown };
    return [reason, message].filter((part) => typeof part === "string").join("\n");
  }
  return detail
    .map((each: { loc?: unknown; msg?: unknown }) => {
      const place = Array.isArray(each.loc) ? each.loc.filter((part) => part !== "body").join(".") : "";
      const message = typeof each.msg === "string" ? each.msg : "";
      return place === "" ? message : `${place}: ${message}`;
    })
    .join("; ");
}

function authorized(): Headers {
  const token = isStandalone ? sessionStorage.getItem(TOKEN) : null;
  return new Headers(token === null ? {} : { Authorization: `Bearer ${token}` });
}

/** Saves an answer of the API as a file; a link could not send the token. Returns why there is none, or null. */
export async function download(path: string, name: string): Promise<Problem | null> {
  let response: Response;
  try {
    response = await fetch(apiAddress(path), { headers: authorized(), credentials: "same-origin" });
  } catch {
    return NO_ANSWER;
  }
  if (!response.ok) return problemOf(response);
  const link = document.createElement("a");
  link.href = URL.createObjectURL(await response.blob());
  link.download = name;
  link.click();
  URL.revokeObjectURL(link.href);
  return null;
}

/** Asks for an answer that may have changed; a Problem if there is none. */
async function request(address: string, signal: AbortSignal): Promise<Answer | Problem> {
  const before = known.get(address);
  const headers = authorized();
  if (before?.etag) headers.set("If-None-Match", before.etag);
  let response: Response;
  try {
    response = await fetch(address, { headers, signal, credentials: "same-origin", cache: "no-store" });
  } catch {
    return NO_ANSWER;
  }
  const checkedAt = Date.now();
  if (response.status === 304 && before) return { ...before, checkedAt };
  if (!response.ok) return problemOf(response);
  try {
    return { value: await response.json(), etag: response.headers.get("ETag"), checkedAt };
  } catch {
    return { status: response.status, message: "the answer is not JSON: another server answers here", hint: null };
  }
}

/** Keeps the answer of `api/v1/{path}` current while the page is visible; asks nothing for null. */
export function useResource<T>(path: string | null, everyMs = 10_000): Resource<T> {
  return useAddress(path === null ? null : apiAddress(path), everyMs);
}

interface Found {
  address: string | null;
  /** Of the pages of a list, in their order; one for all else, and none before the first. */
  answers: readonly Answer[];
  problem: Problem | null;
}

/** The state after a request: nothing is drawn again for the same answers, and a failure takes none away. */
function nextOf(before: Found, found: Found): Found {
  if (before.address !== found.address) return found;
  const isSame = before.answers.length === found.answers.length && before.answers.every(({ value }, at) => value === found.answers[at]?.value);
  if (before.problem === null && found.problem === null && isSame) return before;
  return { ...found, answers: found.answers.length === 0 ? before.answers : found.answers };
}

/** The address of the page after one of a list; null after the last one. */
function addressAfter(address: string, page: unknown): string | null {
  const { next_cursor: cursor = null } = page as { next_cursor?: string | null };
  if (cursor === null) return null;
  const next = new URL(address);
  next.searchParams.set("cursor", cursor);
  return next.href;
}

/** The pages of a list that are known, from its first one. */
function knownFrom(address: string | null, most: number): readonly Answer[] {
  const found: Answer[] = [];
  for (let at = address; at !== null && found.length < most; ) {
    const answer = known.get(at);
    if (answer === undefined) break;
    found.push(answer);
    at = most === 1 ? null : addressAfter(at, answer.value);
  }
  return found;
}

/** Keeps the answer of an address current while the page is visible, or up to `most` pages of a list. */
function usePolled(address: string | null, everyMs: number, most: number): Found & { reload: () => void } {
  const [state, setState] = useState<Found>(() => ({ address, answers: knownFrom(address, most), problem: null }));
  const [asked, setAsked] = useState(0);
  const reload = useCallback(() => {
    setAsked((times) => times + 1);
  }, []);

  useEffect(() => {
    if (address === null) return;
    const aborted = new AbortController();
    let timer: ReturnType<typeof setTimeout> | undefined;
    const load = async () => {
      clearTimeout(timer);
      let pages = 0;
      for (let at: string | null = address; at !== null && pages < most; pages += 1) {
        const found: Answer | Problem = await request(at, aborted.signal);
        if (aborted.signal.aborted) return;
        const problem = "value" in found ? null : found;
        if ("value" in found) remember(at, found);
        setState((before) => nextOf(before, { address, answers: knownFrom(address, most), problem }));
        at = "value" in found && most > 1 ? addressAfter(at, found.value) : null;
      }
      // A server needs as many times the time for a list of many pages.
      if (!document.hidden) timer = setTimeout(() => void load(), everyMs * pages);
    };
    const onVisible = () => {
      if (!document.hidden) void load();
    };
    void load();
    document.addEventListener("visibilitychange", onVisible);
    window.addEventListener(TOKEN, onVisible);
    return () => {
      aborted.abort();
      clearTimeout(timer);
      document.removeEventListener("visibilitychange", onVisible);
      window.removeEventListener(TOKEN, onVisible);
    };
  }, [address, everyMs, most, asked]);

  const isOther = state.address !== address;
  return isOther ? { address, answers: knownFrom(address, most), problem: null, reload } : { ...state, reload };
}

/** Keeps the answer of an address current while the page is visible; asks nothing for null. */
export function useAddress<T>(address: string | null, everyMs: number): Resource<T> {
  const { answers, problem, reload } = usePolled(address, everyMs, 1);
  const answer = answers[0];
  return { value: (answer?.value ?? null) as T | null, checkedAt: answer?.checkedAt ?? null, problem, reload };
}

/** The pages of a list that were read, in their order. */
export interface Pages<T> {
  pages: readonly [T, ...T[]];
  /** Whether there are no others. */
  isWhole: boolean;
}

/** Keeps up to `most` pages of the list `api/v1/{path}` current; each begins where the one before ends. */
export function usePagesOf<T extends { next_cursor: string | null }>(path: string, { most = MOST_KNOWN, everyMs = 10_000 }: { most?: number; everyMs?: number }): Resource<Pages<T>> {
  const { answers, problem, reload } = usePolled(apiAddress(path), everyMs, most);
  const value = useMemo(() => {
    const [first, ...others] = answers.map((each) => each.value as T);
    return first === undefined ? null : { pages: [first, ...others] as const, isWhole: ((others.at(-1) ?? first).next_cursor ?? null) === null };
  }, [answers]);
  return { value, checkedAt: answers[0]?.checkedAt ?? null, problem, reload };
}
