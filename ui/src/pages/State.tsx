import { Stack, Text } from "@chakra-ui/react";
import { type Family, useDag } from "../airflow";
import { type FamilyDag, isWhole, type JobState, type PendingRestore, type PointPage, type Resource, useResource } from "../api";
import { counted, formatCount } from "../format";
import { useNewest } from "../history";
import { CheckpointCharts } from "../parts/CheckpointCharts";
import { JobActions } from "../parts/JobActions";
import { CheckpointLink, PageLink, RunLink } from "../parts/links";
import { FreshnessNotice, Loaded, Notice } from "../parts/Loaded";
import { LongText } from "../parts/LongText";
import { People } from "../parts/People";
import { Points } from "../parts/Points";
import { Progress } from "../parts/Progress";
import { Operators, Sinks, Sources } from "../parts/StateTables";
import { StateTiles } from "../parts/StateTiles";
import { Time } from "../parts/Time";
import { Waiting } from "../parts/Waiting";
import { restoredTables } from "../recovery";
import { earlierEnd, triesOf } from "../runs";

/** Where a job stands: its newest checkpoint, state, input, savepoint and points. */
export function State({ state, base, address, family }: { state: Resource<JobState>; base: string; address: string; family: Family }) {
  const history = useNewest(address, 30_000);
  return (
    <Loaded resource={state}>
      {(job) => (
        <Stack gap={5}>
          <FreshnessNotice of={job} />
          <Sentence job={job} address={address} base={base} family={family} />
          <Problems job={job} />
          <JobActions family={family} base={base} jobRoot={job.job_root} />
          <StateTiles job={job} base={base} />
          <RunningBatch job={job} />
          <Operators operators={job.operators} />
          <Sources sources={job.sources} />
          <Sinks sinks={job.sinks} />
          <CheckpointCharts address={address} newest={history} />
          <Points address={address} base={base} newest={job.checkpoint_id} runs={job.runs} />
        </Stack>
      )}
    </Loaded>
  );
}

function Sentence({ job, address, base, family }: { job: JobState; address: string; base: string; family: Family }) {
  if (job.checkpoint_id === null) {
    return <Text fontSize="lg">{job.job === null ? "Nothing is known of this job." : `${job.job} has no checkpoint yet.`}</Text>;
  }
  return (
    <Text fontSize="lg" overflowWrap="anywhere">
      <strong>{job.job}</strong> stands at <CheckpointLink id={job.checkpoint_id}>{job.label ?? `checkpoint ${job.checkpoint_id}`}</CheckpointLink>
      <Restored job={job} base={base} />
      {job.committed_at !== null && (
        <>
          {job.restore === null ? ", committed " : " It was committed "}
          <Time at={job.committed_at} />
        </>
      )}
      {(job.committed_at !== null || job.restore === null) && (
        <>
          <ByRun job={job} />.
        </>
      )}{" "}
      Input waiting: <Waiting backlog={job.backlog} unknown={job.backlog_unknown} />. <Undone job={job} address={address} base={base} />{" "}
      <NextRun job={job} dags={family.dags.filter((each) => each.role === "run")} />
    </Text>
  );
}

/** ", restored 3 min ago by oscar, requested by uma: wrong rows." after a restore, as long as no run has made a checkpoint. */
function Restored({ job: { restore }, base }: { job: JobState; base: string }) {
  if (restore === null) return null;
  return (
    <>
      , <PageLink to={`${base}/timeline?mark=${restore.kind}:${restore.seq}`}>restored</PageLink> {restore.ended_at !== null && <Time at={restore.ended_at} />}
      {restore.by !== null && " by "}
      <People by={restore.by} requestedBy={restore.requested_by} />
      {restore.reason === null ? "" : `: ${restore.reason.replace(/\.$/, "")}`}
      {restore.note === null ? "." : ` (${restore.note}).`}
    </>
  );
}

/** How far the newest run is in a batch that takes long. */
function RunningBatch({ job: { description, runs } }: { job: JobState }) {
  const progress = description?.progress ?? null;
  return progress !== null && <Progress progress={progress} tryNumber={runs.find((run) => run.is_open)?.attempt?.try_number ?? null} />;
}

/** " by run 11 (try 2; try 1 failed: storage)". */
function ByRun({ job: { newest, runs, run, generation } }: { job: JobState }) {
  const made = newest?.generation ?? generation;
  if (run === null || made === null) return null;
  const own = runs.find((each) => each.generation === made);
  const tries = own === undefined ? [] : triesOf(own, runs).filter(([, each]) => each.generation <= made);
  const [attempt] = tries.at(-1) ?? [];
  const earlier = tries.slice(0, -1).map(([{ try_number: number }, each]) => `try ${number} ${earlierEnd(each)}`);
  return (
    <>
      {" by "}
      <RunLink generation={made} run={run} />
      {attempt !== undefined && attempt.try_number > 1 && ` (${[`try ${attempt.try_number}`, ...earlier].join("; ")})`}
    </>
  );
}

/** Since when nothing is undone: the newest restore. */
function Undone({ job, address, base }: { job: JobState; address: string; base: string }) {
  const restore = useResource<PointPage>(job.undone_count === 0 ? null : `${address}/points?kind=restore&limit=1`, 60_000).value?.points[0];
  if (job.undone_count === 0) return isWhole(job) ? "Nothing is undone." : "Nothing is undone as far as the history is read.";
  const count = `${isWhole(job) ? "" : "at least "}${counted(job.undone_count, "checkpoint")}`;
  return (
    <>
      {restore?.ended_at != null && (
        <>
          Nothing undone since <Time at={restore.ended_at} full />; before that,{" "}
        </>
      )}
      <PageLink to={`${base}/timeline`}>{count}</PageLink> of its history {job.undone_count === 1 ? "is" : "are"} undone.
    </>
  );
}

/** When Airflow runs the job next. */
function NextRun({ job, dags }: { job: JobState; dags: readonly FamilyDag[] }) {
  // Of several, the list of jobs knows the next run.
  const { value } = useDag(dags.length === 1 ? (dags[0]?.dag_id ?? null) : null);
  const isPaused = dags.length > 0 && dags.every((dag) => value?.is_paused ?? dag.is_paused);
  const next = value?.next_dagrun_run_after ?? job.next_run_at;
  if (isPaused) return `No run is planned: its ${dags.length === 1 ? "DAG is" : "DAGs are"} paused.`;
  if (next === null) return dags.length === 0 ? null : "No run is planned.";
  return (
    <>
      The next run is planned <Time at={next} />.
    </>
  );
}

function Problems({ job }: { job: JobState }) {
  const failure = job.failed_start ?? job.failure;
  const { restoring = null, background = [], quarantined_count: skipped = 0 } = job.description ?? {};
  return (
    <>
      {restoring !== null && (
        <Notice status="warning" title={`A restore to ${restoring.target_label} is not completed`}>
          The next start completes it. <People by={restoring.by} requestedBy={restoring.requested_by} />
          {restoring.reason !== null && `: ${restoring.reason}`}
          <Text>{restoredText(restoring)}</Text>
        </Notice>
      )}
      {job.description?.restore_open === true && (
        <Notice status="warning" title="A restore has claimed the job and has not ended">
          It is running, or was killed. The job has the state of before: the same restore continues from it, and a run that starts now ends the restore.
        </Notice>
      )}
      {failure !== null && (
        <Notice status="error" title={`${job.failed_start === null ? "The newest run" : "The newest start"} failed: ${failure.code}`}>
          <LongText text={failure.message} />
          {failure.failed_at !== null && <Time at={failure.failed_at} />}
          {job.failed_start === null && (
            <>
              {" in "}
              <RunLink generation={failure.generation} run={job.runs.find((run) => run.generation === failure.generation)?.run ?? null} />
            </>
          )}
        </Notice>
      )}
      {job.history_changed !== null && (
        <Notice status="error" title="Records of the history are not as they were recorded">
          <LongText text={job.history_changed.message} />
        </Notice>
      )}
      {background.map((each) => (
        <Notice key={each.work} status="warning" title={`Background work failed: ${each.work.replaceAll("_", " ")}`}>
          <LongText text={each.message} />
        </Notice>
      ))}
      {skipped > 0 && <Notice status="warning" title={`${counted(skipped, "corrupt input file was", "corrupt input files were")} skipped`} />}
    </>
  );
}

/** "1 of 2 tables restored." */
function restoredText(restoring: PendingRestore): string {
  const { done, all } = restoredTables(restoring);
  return all === 0 ? "It restores no table." : `${formatCount(done)} of ${counted(all, "table")} restored.`;
}
