import { Stack, Text } from "@chakra-ui/react";
import type { ReactNode } from "react";
import { type DagRun, useDagRun } from "../airflow";
import { DagRunLink } from "./links";
import { Notice } from "./Loaded";

const RESULTS: Record<DagRun["state"], string> = {
  queued: "The DAG run is queued.",
  running: "The DAG run is running.",
  success: "✓ The DAG run has succeeded.",
  failed: "✗ The DAG run has failed. The log of its task has the reason.",
};

/** A DAG run that an action has triggered, its result once it is known, and what comes next. */
export function TriggeredRun({ dag, run, children }: { dag: string; run: string; children: ReactNode }) {
  const state = useDagRun(dag, run).value?.state ?? "queued";
  return (
    <Notice status={state === "failed" ? "error" : "info"} title={`${dag} is triggered`}>
      <Stack gap={1}>
        <Text>{RESULTS[state]}</Text>
        <div>{children}</div>
        <DagRunLink dag={dag} run={run} />
      </Stack>
    </Notice>
  );
}
