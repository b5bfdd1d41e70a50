import { Button } from "@chakra-ui/react";
import { createContext, type CSSProperties, type ReactNode, useContext } from "react";
import { Link, useSearchParams } from "react-router-dom";
import { dagRunPage } from "../airflow";

const Base = createContext("");

/** Says to the links inside which pages they are on: the pages of a job, or of all jobs. */
export const PagesAt = Base.Provider;

/** The path of the pages of the job; outside of a job, of all pages. Both have a journal. */
export function useBase(): string {
  return useContext(Base);
}

/** The path at which Airflow shows an app: everything up to the name after the last `plugin`, since a DAG can have this id, too. */
export function pluginBase(pathname: string): string {
  return /^.*\/plugin\/[^/]+/.exec(pathname)?.[0] ?? "";
}

/** The part of an address that has the checkpoint whose details are shown. */
export const SHOWN_POINT = "point";

/** The address of the restore wizard with a point; `base` is the path of the job's pages. */
export function restorePath(base: string, target: string | null = null): string {
  return target === null ? `${base}/restore` : `${base}/restore?to=${encodeURIComponent(target)}`;
}

/** The address of the page that shows the steps of a DAG run. */
export function recoveryPath(base: string, dag: string, run: string): string {
  return `${base}/recovery/${encodeURIComponent(run)}?dag=${encodeURIComponent(dag)}`;
}

/** The address of the page of a run. */
export function runPath(base: string, generation: number): string {
  return `${base}/runs/${generation}`;
}

/** The address of a savepoint of the job. */
export function savepointPath(base: string, name: string): string {
  return `${base}/savepoints?savepoint=${encodeURIComponent(name)}`;
}

/** The address of the page that answers the question of a DAG run. */
export function approvalPath(base: string, dag: string, run: string): string {
  return `${base}/approval/${encodeURIComponent(run)}?dag=${encodeURIComponent(dag)}`;
}

const UNDERLINED: CSSProperties = { textDecoration: "underline" };

/** A link to another page. Not one of Chakra, which takes much longer: a table has a hundred. */
export function PageLink({ to, children }: { to: string; children: ReactNode }) {
  return (
    <Link to={to} style={UNDERLINED}>
      {children}
    </Link>
  );
}

/** "run 3"; a run whose number is not known has the number of its start in the log. */
export function runName(run: number | null, generation: number): string {
  return run === null ? `run of generation ${generation}` : `run ${run}`;
}

/** A link to the page of a run of the job. */
export function RunLink({ generation, run }: { generation: number; run: number | null }) {
  const base = useBase();
  return <PageLink to={runPath(base, generation)}>{runName(run, generation)}</PageLink>;
}

/** A link that shows the details of a checkpoint of the job next to the present page. */
export function CheckpointLink({ id, children }: { id: number; children?: ReactNode }) {
  const [query] = useSearchParams();
  const shown = new URLSearchParams(query);
  shown.set(SHOWN_POINT, String(id));
  return <PageLink to={`?${shown.toString()}`}>{children ?? id}</PageLink>;
}

/** A link to a savepoint of the job. */
export function SavepointLink({ name }: { name: string }) {
  const base = useBase();
  return <PageLink to={savepointPath(base, name)}>{name}</PageLink>;
}

/** A link to what a person did. */
export function PersonLink({ name, children }: { name: string; children?: ReactNode }) {
  const base = useBase();
  return <PageLink to={`${base}/journal?person=${encodeURIComponent(name)}`}>{children ?? name}</PageLink>;
}

/** A link to the restore wizard that looks like a button; in a cell of a `ScrollingTable`, as its style says. */
export function RestoreLink({ base, target, label = "Restore to here", size = "sm" }: { base: string; target: string | null; label?: string; size?: "cell" | "xs" | "sm" }) {
  const link = (
    <Link to={restorePath(base, target)} aria-label={target === null ? undefined : `${label}: ${target}`} className={size === "cell" ? "button" : undefined}>
      {label}
    </Link>
  );
  if (size === "cell") return link;
  return (
    <Button asChild size={size} variant="outline" alignSelf="start">
      {link}
    </Button>
  );
}

/** A link to a DAG run in Airflow. */
export function DagRunLink({ dag, run }: { dag: string; run: string }) {
  return <PageLink to={dagRunPage(dag, run)}>{`DAG run ${run} in Airflow`}</PageLink>;
}
