import { Box, Button, Flex, Heading, Input, Stack, Text } from "@chakra-ui/react";
import { useState } from "react";
import { useParams, useSearchParams } from "react-router-dom";
import { answer, type DagRun, type Family, isWaiting, type Question, useDagRun, useMe, useQuestions, useReturned } from "../airflow";
import { type FamilyDag, type JobState, type Problem, type Resource, type SavepointPage, useResource } from "../api";
import { answerUntil, type Asked, hasNumbers, hasTarget, isOvertaken, outdatedBecause, type PlanOutput, refusals, type Refusals } from "../approval";
import { Answered } from "../parts/Answered";
import { ProblemNotice } from "../parts/ConfirmedAction";
import { DiffText } from "../parts/DiffText";
import { DagRunLink, PageLink, PersonLink, recoveryPath, restorePath } from "../parts/links";
import { Loaded, Notice } from "../parts/Loaded";
import { Cautions, Losses } from "../parts/Losses";
import { PlanChanges, PlanTarget } from "../parts/PlanChanges";
import { RequestLosses } from "../parts/RequestLosses";
import { Time } from "../parts/Time";
import { useSeen } from "../parts/useSeen";

/** The question of a DAG run: `…/approval/DAG_RUN?dag=DAG`; without a DAG, of the recovery DAG. */
export function Approval({ state, address, base, family }: { state: Resource<JobState>; address: string; base: string; family: Family }) {
  const { dagRun = "" } = useParams();
  const [query] = useSearchParams();
  const wanted = query.get("dag");
  const dag = wanted === null ? family.dag("recovery") : (family.dags.find((each) => each.dag_id === wanted) ?? null);
  if (dag !== null) return <Questions state={state} address={address} base={base} dag={dag} run={dagRun} />;
  if (family.isKnown) return <Notice status="error" title="This job has no such DAG" />;
  return family.problem === null ? <Text role="status">Loading</Text> : <ProblemNotice problem={family.problem} />;
}

interface Props {
  state: Resource<JobState>;
  address: string;
  base: string;
  dag: FamilyDag;
  run: string;
}

function Questions(props: Props) {
  const { base, dag, run } = props;
  const questions = useQuestions(dag.dag_id, run);
  return (
    <Loaded resource={questions}>
      {({ hitl_details: found }) => {
        const question = found.find(isWaiting) ?? found[0];
        if (question !== undefined) return <OneQuestion {...props} question={question} reload={questions.reload} />;
        return (
          <Notice status="info" title="This DAG run asks nothing yet">
            <PageLink to={dag.role === "recovery" ? recoveryPath(base, dag.dag_id, run) : base || "/"}>Where it is</PageLink>, or the <DagRunLink dag={dag.dag_id} run={run} />
          </Notice>
        );
      }}
    </Loaded>
  );
}

interface QuestionProps extends Props {
  question: Question;
  reload: () => void;
}

function OneQuestion({ state, address, base, dag, run, question, reload }: QuestionProps) {
  const dagRun = useDagRun(dag.dag_id, run).value;
  const output = useReturned<PlanOutput>(dag.role === "recovery" ? dag.dag_id : null, run, "plan");
  const asked = useReturned<Asked>(dag.role === "recovery" ? null : dag.dag_id, run, question.task_instance.task_id, "asked").value;
  const me = useMe();
  const plan = output.value?.plan ?? null;
  const waits = isWaiting(question);
  const isOfSavepoint = plan?.savepoint_path != null || (asked?.savepoints ?? []).length > 0;
  const saved = useResource<SavepointPage>(isOfSavepoint && waits ? `${address}/savepoints` : null, 15_000).value;
  const overtaken = plan !== null ? outdatedBecause(plan, state.value, saved) : isOvertaken(asked ?? {}, state.value);
  const outdated = waits ? overtaken : null;
  const [losses, areSeen] = useSeen();
  return (
    <Stack gap={4}>
      <Heading as="h2" size={{ base: "md", md: "lg" }} overflowWrap="anywhere">
        {question.subject}
      </Heading>
      {outdated !== null && (
        <Notice status="error" title={outdated.sentence}>
          {plan !== null && (outdated.isGone ? <PageLink to={restorePath(base)}>Choose another point</PageLink> : <PageLink to={restorePath(base, plan.target)}>Plan the restore again</PageLink>)}
        </Notice>
      )}
      {(plan !== null || asked !== null) && (
        <Stack gap={2}>
          {plan !== null ? <Losses plan={plan} /> : asked !== null && <RequestLosses asked={asked} waits={waits} job={state.value} saved={saved} />}
          <div ref={losses} />
        </Stack>
      )}
      <Asks question={question} run={dagRun} />
      {waits && plan !== null && outdated === null && <Validity state={state} hasPoint={hasTarget(plan, state.value, saved)} />}
      {output.value !== null && <PlanOf output={output.value} />}
      {output.problem !== null && output.value === null && (
        <Notice status="warning" title="The plan cannot be read now">
          {output.problem.message}. The question has it as text.
        </Notice>
      )}
      <Body question={question} isOpen={output.value?.cautions === undefined && !hasNumbers(asked ?? {})} />
      <DagRunLink dag={dag.dag_id} run={run} />
      {waits ? <Answer question={question} refused={refusals(question, dagRun, me, dag, outdated)} reload={reload} sticks={(plan === null && asked === null) || areSeen} /> : <Answered question={question} />}
      {!waits && dag.role === "recovery" && <PageLink to={recoveryPath(base, dag.dag_id, run)}>What happens to the restore</PageLink>}
    </Stack>
  );
}

function Asks({ question, run }: { question: Question; run: DagRun | null }) {
  const until = answerUntil(question);
  const reason = run?.conf?.reason;
  const requester = run?.triggering_user_name ?? null;
  const who = question.assigned_users.map((user) => user.name).join(", ");
  return (
    <Stack gap={1}>
      <Text overflowWrap="anywhere">
        <strong>{requester === null ? "A schedule or a program" : <PersonLink name={requester} />}</strong> has asked this <Time at={question.created_at} />.
      </Text>
      {typeof reason === "string" && (
        <Text overflowWrap="anywhere" whiteSpace="pre-wrap">
          Reason: {reason}
        </Text>
      )}
      <Text color="fg.muted" overflowWrap="anywhere">
        {who === "" ? "Each person with the right to answer questions of this DAG may answer" : `${who} may answer`}
        {until !== null && (
          <>
            , until <Time at={until} full />. No answer by then counts as a rejection
          </>
        )}
        .
      </Text>
    </Stack>
  );
}

/** Says that the plan was compared with the job, or that it could not be. `hasPoint` is whether its point exists, if that is known. */
function Validity({ state, hasPoint }: { state: Resource<JobState>; hasPoint: boolean | null }) {
  if (state.value === null || state.problem !== null || state.value.problem !== null) {
    return <Notice status="warning" title="It is not known whether the plan is still valid: the job cannot be read now" />;
  }
  return (
    <Text color="green.fg" role="status">
      ✓ The plan is still valid: the job is at the same checkpoint and run{hasPoint === null ? ". It is not known whether the point of the restore still exists." : ", and the point of the restore still exists."}
    </Text>
  );
}

function PlanOf({ output: { plan, cautions = [], replay } }: { output: PlanOutput }) {
  const difference = plan.job_file_difference;
  return (
    <Stack gap={4}>
      <Cautions cautions={cautions} />
      <PlanTarget plan={plan} />
      {replay !== undefined && <Text>{replay}</Text>}
      <PlanChanges plan={plan} />
      <Stack as="section" gap={2}>
        <Heading as="h3" size="sm" overflowWrap="anywhere">
          Job file {plan.job_file ?? ""}
        </Heading>
        {plan.code_difference !== null && <Text overflowWrap="anywhere">{plan.code_difference}</Text>}
        {difference !== null && difference !== "" && <DiffText label="Difference from the job file of the newest run" text={difference} />}
        {difference === "" && <Text>It is that of the newest run.</Text>}
        {difference === null && <Text color="fg.muted">Its difference is not known.</Text>}
      </Stack>
    </Stack>
  );
}

/** The question as the task wrote it. It is Markdown, and shown as text: texts of jobs are never HTML. */
function Body({ question: { body }, isOpen }: { question: Question; isOpen: boolean }) {
  if (body === null || body === "") return null;
  return (
    <Box as="details" {...(isOpen ? { open: true } : {})} borderWidth="1px" borderRadius="md" p={3}>
      <Box as="summary" cursor="pointer" fontWeight="medium">
        The question as text
      </Box>
      <Text whiteSpace="pre-wrap" overflowWrap="anywhere" fontSize="sm" mt={2}>
        {body}
      </Text>
    </Box>
  );
}

interface AnswerProps {
  question: Question;
  refused: Refusals;
  reload: () => void;
  /** Whether the buttons stay at the bottom of the window; otherwise they are at the end of the page. */
  sticks: boolean;
}

/** The note and the buttons. */
function Answer({ question, refused, reload, sticks }: AnswerProps) {
  const [note, setNote] = useState("");
  const [isBusy, setBusy] = useState(false);
  const [problem, setProblem] = useState<Problem | null>(null);
  const give = async (option: string) => {
    setBusy(true);
    setProblem(await answer(question, option, note));
    setBusy(false);
    reload();
  };
  const reasons = [...new Set([refused.approve, refused.reject].filter((reason) => reason !== null))];
  return (
    <Box as="section" aria-label="Answer" style={{ position: sticks ? "sticky" : "static" }} bottom={0} bg="bg" borderTopWidth="1px" py={{ base: 2, md: 3 }} zIndex="docked">
      <Stack gap={2}>
        {problem !== null && <ProblemNotice problem={problem} />}
        <Input
          aria-label="Note"
          placeholder="Note"
          value={note}
          onChange={(event) => {
            setNote(event.target.value);
          }}
        />
        {reasons.map((reason) => (
          <Text key={reason} id="answer-refused" fontSize="sm" color="orange.fg">
            {reason}
          </Text>
        ))}
        <Flex gap={3}>
          {question.options.map((option) => {
            const why = option === "Approve" ? refused.approve : refused.reject;
            return (
              <Button
                key={option}
                flex="1"
                size="lg"
                colorPalette={option === "Approve" ? "green" : "red"}
                variant={option === "Approve" ? "solid" : "outline"}
                disabled={why !== null || isBusy}
                aria-describedby={why === null ? undefined : "answer-refused"}
                onClick={() => void give(option)}
              >
                {option}
              </Button>
            );
          })}
        </Flex>
      </Stack>
    </Box>
  );
}
