// What the pages read: the types of the answers of `api/v1`, and the hook that keeps an answer current.
import { useCallback, useEffect, useState } from "react";
import type { components } from "./generated/api";

type Schemas = components["schemas"];
export type ActionEntry = Schemas["ActionEntry"];
export type Backlog = Schemas["JobBacklog"];
export type CheckpointEntry = Schemas["CheckpointEntry"];
export type CheckpointPage = Schemas["CheckpointPage"];
export type Entry = CheckpointEntry | ActionEntry;
export type Freshness = Schemas["Freshness"];
export type Health = Schemas["Health"];
export type JobList = Schemas["JobList"];
export type JobRow = Schemas["JobRow"];
export type JobState = Schemas["JobState"];
export type JournalEntry = Schemas["JournalEntry"];
export type JournalPage = Schemas["JournalPage"];
export type OperatorStatus = Schemas["OperatorStatus"];
export type Person = Schemas["Requester"];
export type PointPage = Schemas["PointPage"];
export type Savepoint = Schemas["SavepointDescription"];
export type SavepointPage = Schemas["SavepointPage"];
export type SourceStatus = Schemas["SourceStatus"];
export type TimelinePage = Schemas["TimelinePage"];
export type TimelinePoint = Schemas["TimelinePoint"];

// The bundle is served beside `api/`: this holds behind any path prefix, and in Airflow's page.
const bundle = import.meta.url;
/** Whether the pages are on their own: their server asks for a token, where Airflow has a session. */
export const isStandalone = import.meta.env.MODE === "standalone";
const TOKEN = "stateflow-token";

/** The address of an answer of the API. */
export function apiAddress(path: string): string {
  return new URL(`api/v1/${path}`, bundle).href;
}

/** Keeps a token until the browser's tab is closed. */
export function rememberToken(token: string): void {
  sessionStorage.setItem(TOKEN, token);
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
const MOST_KNOWN = 50;

function remember(path: string, answer: Answer): void {
  known.delete(path);
  known.set(path, answer);
  const oldest = known.keys().next().value;
  if (known.size > MOST_KNOWN && oldest !== undefined) known.delete(oldest);
}

const NO_ANSWER: Problem = { status: null, message: "the server does not answer", hint: null };

async function problemOf(response: Response): Promise<Problem> {
  const text = await response.text();
  try {
    const { error } = JSON.parse(text) as { error?: { message?: string; hint?: string | null } };
    if (error?.message) return { status: response.status, message: error.message, hint: error.hint ?? null };
  } catch {
    // Not from the API: a proxy, or a server that is starting.
  }
  const refused = response.status === 401 || response.status === 403;
  const message = refused ? "you may not read this" : `the server answered with status ${response.status}`;
  return { status: response.status, message, hint: refused ? "log in again, or ask for the right to read the DAG" : null };
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
async function request(path: string, signal: AbortSignal): Promise<Answer | Problem> {
  const before = known.get(path);
  const headers = authorized();
  if (before?.etag) headers.set("If-None-Match", before.etag);
  let response: Response;
  try {
    response = await fetch(apiAddress(path), { headers, signal, credentials: "same-origin", cache: "no-store" });
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

/** Keeps the answer of `api/v1/{path}` current while the page is visible. */
export function useResource<T>(path: string, everyMs = 10_000): Resource<T> {
  const [state, setState] = useState<{ path: string; answer: Answer | null; problem: Problem | null }>({
    path,
    answer: known.get(path) ?? null,
    problem: null,
  });
  const [asked, setAsked] = useState(0);
  const reload = useCallback(() => {
    setAsked((times) => times + 1);
  }, []);

  useEffect(() => {
    const aborted = new AbortController();
    let timer: ReturnType<typeof setTimeout> | undefined;
    const load = async () => {
      clearTimeout(timer);
      const found = await request(path, aborted.signal);
      if (aborted.signal.aborted) return;
      if ("value" in found) remember(path, found);
      const answer = "value" in found ? found : (known.get(path) ?? null);
      setState({ path, answer, problem: "value" in found ? null : found });
      if (!document.hidden) timer = setTimeout(() => void load(), everyMs);
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
  }, [path, everyMs, asked]);

  const isOther = state.path !== path;
  const answer = isOther ? (known.get(path) ?? null) : state.answer;
  const problem = isOther ? null : state.problem;
  return { value: (answer?.value ?? null) as T | null, checkedAt: answer?.checkedAt ?? null, problem, reload };
}
