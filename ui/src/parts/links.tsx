import { Button, Link as ChakraLink } from "@chakra-ui/react";
import type { ReactNode } from "react";
import { Link } from "react-router-dom";
import { dagRunPage } from "../airflow";

/** The address of the restore wizard with a point; `base` is the path of the job's pages. */
export function restorePath(base: string, target: string | null = null): string {
  return target === null ? `${base}/restore` : `${base}/restore?to=${encodeURIComponent(target)}`;
}

export function recoveryPath(base: string, run: string): string {
  return `${base}/recovery/${encodeURIComponent(run)}`;
}

/** The address of the page that answers the question of a DAG run. */
export function approvalPath(base: string, dag: string, run: string): string {
  return `${base}/approval/${encodeURIComponent(run)}?dag=${encodeURIComponent(dag)}`;
}

/** A link to another page. */
export function PageLink({ to, children }: { to: string; children: ReactNode }) {
  return (
    <ChakraLink asChild textDecoration="underline">
      <Link to={to}>{children}</Link>
    </ChakraLink>
  );
}

/** A link to the restore wizard that looks like a button. */
export function RestoreLink({ base, target, label = "Restore to here", size = "sm" }: { base: string; target: string | null; label?: string; size?: "xs" | "sm" }) {
  return (
    <Button asChild size={size} variant="outline" alignSelf="start">
      <Link to={restorePath(base, target)} aria-label={target === null ? undefined : `${label}: ${target}`}>
        {label}
      </Link>
    </Button>
  );
}

/** A link to a DAG run in Airflow. */
export function DagRunLink({ dag, run }: { dag: string; run: string }) {
  return <PageLink to={dagRunPage(dag, run)}>DAG run {run} in Airflow</PageLink>;
}
