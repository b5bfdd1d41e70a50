import { Box, Flex, Heading, Stack, Text } from "@chakra-ui/react";
import { useEffect, useRef, useState } from "react";
import { trigger, useDagDetails } from "../airflow";
import type { FamilyDag, Savepoint } from "../api";
import { disposeCommand, verifyCommand } from "../commands";
import { formatBytes } from "../format";
import { isBlank } from "../restoreOptions";
import { missingField, NO_LIMITS, retentionConf } from "../retention";
import { Command, CopiedPath } from "./Command";
import { ConfirmedAction } from "./ConfirmedAction";
import { triggerRefusal } from "./DagChoice";
import { TextField } from "./Fields";
import { Folded } from "./Folded";
import { approvalPath, CheckpointLink, PageLink, RestoreLink } from "./links";
import { People } from "./People";
import { SavepointRecord } from "./SavepointRecord";
import { Time } from "./Time";
import { TriggeredRun } from "./TriggeredRun";

interface Props {
  savepoint: Savepoint;
  base: string;
  /** Null as long as it is not known. */
  jobRoot: string | null;
  /** The DAG of the retention. */
  dag: FamilyDag | null;
  /** Whether a DAG that is missing does not exist. */
  isKnown: boolean;
  /** Whether the address names it. */
  isNamed: boolean;
}

/** A savepoint: its age, size and owner, who made it and why, and what a person can do with it. */
export function SavepointCard({ savepoint, base, jobRoot, dag, isKnown, isNamed }: Props) {
  const { name, checkpoint_id: checkpoint } = savepoint;
  const card = useRef<HTMLElement>(null);
  useEffect(() => {
    if (isNamed) card.current?.scrollIntoView({ block: "center" });
  }, [isNamed]);
  return (
    <Box asChild borderWidth="1px" borderRadius="md" p={4} minW={0} borderColor={isNamed ? "blue.solid" : undefined}>
      <article ref={card} aria-label={`Savepoint ${name}`} aria-current={isNamed ? "true" : undefined}>
        <Heading as="h2" size="md" overflowWrap="anywhere">
          {name}
        </Heading>
        <Text>
          {savepoint.format}
          {savepoint.origin !== null && `, ${savepoint.origin}`}
          {savepoint.drained && ", after all input"}
        </Text>
        <Text color="fg.muted">
          {checkpoint === null ? "no checkpoint" : <CheckpointLink id={checkpoint}>checkpoint {checkpoint}</CheckpointLink>}
          {savepoint.made_at !== null && (
            <>
              , <Time at={savepoint.made_at} />
            </>
          )}
        </Text>
        <Text overflowWrap="anywhere">
          <People by={savepoint.by} requestedBy={savepoint.requested_by} />
          {savepoint.reason !== null && `: ${savepoint.reason}`}
        </Text>
        {savepoint.note !== null && <Text overflowWrap="anywhere">Note: {savepoint.note}</Text>}
        <Sharing savepoint={savepoint} />
        <SavepointRecord integrity={savepoint.record_integrity} />
        <Box fontSize="xs" my={2}>
          <CopiedPath text={savepoint.path} what={`path of ${name}`} />
        </Box>
        <Flex gap={2} wrap="wrap" align="center">
          <RestoreLink base={base} target={name} size="xs" />
          <PageLink to={`${base}/savepoints?from=${encodeURIComponent(name)}`}>Compare</PageLink>
        </Flex>
        <Box mt={2}>
          {jobRoot !== null && <Folded title={`Verify the files of ${name}`}>{() => <Verification name={name} jobRoot={jobRoot} />}</Folded>}
          <Folded title={`Delete ${name}`}>{() => <Disposal savepoint={savepoint} base={base} jobRoot={jobRoot} dag={dag} isKnown={isKnown} />}</Folded>
        </Box>
      </article>
    </Box>
  );
}

/** Whose files the savepoint has: its own, or, once a job has claimed it, files that the checkpoints of that job share. */
function Sharing({ savepoint: { size_bytes: bytes, claimed_by: owner, claimed_at: at } }: { savepoint: Savepoint }) {
  if (owner === null) return <Text>{formatBytes(bytes)} in its own files; it shares no file with a checkpoint.</Text>;
  return (
    <Text color="orange.fg" overflowWrap="anywhere">
      {owner.job} has claimed it
      {at !== null && (
        <>
          {" "}
          <Time at={at} />
        </>
      )}
      : the checkpoints of that job share {formatBytes(bytes)} in its files, and the job deletes them.
    </Text>
  );
}

function Verification({ name, jobRoot }: { name: string; jobRoot: string }) {
  return (
    <Stack gap={2} my={2}>
      <Text>This reads each file of the savepoint, and compares it with its hash. It changes nothing.</Text>
      <Command text={verifyCommand(jobRoot, name)} />
    </Stack>
  );
}

/** How a person deletes the savepoint for ever: by the DAG of the retention, after an approval, or by a command. */
function Disposal({ savepoint, base, jobRoot, dag, isKnown }: Omit<Props, "isNamed">) {
  const { name, size_bytes: bytes, claimed_by: owner } = savepoint;
  return (
    <Stack gap={2} mt={2}>
      <DisposalSentence name={name} bytes={bytes} />
      {owner !== null && <Text>{owner.job} has claimed it, and deletes it itself.</Text>}
      {dag !== null && owner === null && <DisposeAction key={dag.dag_id} dag={dag} savepoint={savepoint} base={base} />}
      {(dag === null || owner !== null) && isKnown && jobRoot !== null && <DisposeCommand jobRoot={jobRoot} name={name} claimed={owner !== null} />}
    </Stack>
  );
}

function DisposeCommand({ jobRoot, name, claimed }: { jobRoot: string; name: string; claimed: boolean }) {
  const [reason, setReason] = useState("");
  return (
    <>
      <TextField label="Reason for the deletion" value={reason} onChange={setReason} help="It is stored in the job's history." />
      <Command text={disposeCommand(jobRoot, name, reason, claimed)} />
    </>
  );
}

function DisposalSentence({ name, bytes }: { name: string; bytes: number }) {
  return (
    <Text color="red.fg" fontWeight="semibold" overflowWrap="anywhere">
      This deletes 1 savepoint, {name}, of {formatBytes(bytes)} for ever: nothing can be restored from it any more.
    </Text>
  );
}

/** Asks for the deletion of a savepoint, which a person who may answer the question approves. */
function DisposeAction({ dag, savepoint: { name, size_bytes: bytes }, base }: { dag: FamilyDag; savepoint: Savepoint; base: string }) {
  const [reason, setReason] = useState("");
  const [run, setRun] = useState<string | null>(null);
  const params = useDagDetails(dag.dag_id).value?.params ?? null;
  const refused = () => {
    const because = triggerRefusal(dag);
    if (because !== null) return because;
    if (params === null) return `It is not known yet whether ${dag.dag_id} deletes single savepoints.`;
    if (!("dispose" in params)) return `${dag.dag_id} does not delete single savepoints.`;
    return missingField(dag.dag_id, params, Object.keys(NO_LIMITS));
  };
  const act = async () => {
    if (isBlank(reason)) return { status: null, message: "A reason is required", hint: "The approver reads it, and the job's history keeps it." };
    // Without limits: the defaults of the form would delete other savepoints and checkpoints as well.
    const answer = await trigger(dag.dag_id, retentionConf(params ?? {}, NO_LIMITS, { dispose: name, reason: reason.trim() }));
    if ("problem" in answer) return answer.problem;
    setRun(answer.run);
    return null;
  };
  return (
    <Stack gap={2}>
      <ConfirmedAction
        label={`Request the deletion of ${name}`}
        size="xs"
        colour="red"
        refused={refused()}
        question={
          <Stack gap={2}>
            <Text>This triggers {dag.dag_id}, which asks the people who may answer its question to approve the deletion. Nothing is deleted before that.</Text>
            <DisposalSentence name={name} bytes={bytes} />
            <Text>The DAG run applies no other limit: it keeps all checkpoints and all other savepoints, takes no savepoint, and leaves the tables as they are. It also deletes files that nothing needs any more.</Text>
          </Stack>
        }
        fields={<TextField label="Reason for the deletion" required value={reason} onChange={setReason} help="It is stored in the job's history, and shown to the approver." />}
        act={act}
      />
      {run !== null && (
        <TriggeredRun dag={dag.dag_id} run={run}>
          <PageLink to={approvalPath(base, dag.dag_id, run)}>A person who may answer its question has to approve the deletion.</PageLink>
        </TriggeredRun>
      )}
    </Stack>
  );
}
