import { Box, Button, Flex, Heading, Stack, Text } from "@chakra-ui/react";
import { useState } from "react";
import { useParams, useSearchParams } from "react-router-dom";
import { answer, type DagRun, type Family, isWaiting, type Question, useDagRun, useMe, useQuestions, useReturned } from "../airflow";
import type { FamilyDag, JobState, Problem, Resource } from "../api";
import { answerUntil, outdatedBecause, type PlanOutput, refusals, type Refusals } from "../approval";
import { ProblemNotice } from "../parts/ConfirmedAction";
import { DiffText } from "../parts/DiffText";
import { TextField } from "../parts/Fields";
import { DagRunLink, PageLink, PersonLink, recoveryPath, restorePath } from "../parts/links";
import { Loaded, Notice } from "../parts/Loaded";
import { Cautions, LossNumbers, LossSentences, PlanChanges, PlanTarget } from "../parts/PlanChanges";
import { Time } from "../parts/Time";

/** The question of a DAG run: `…/approval/DAG_RUN?dag=DAG`; without a DAG, of the recovery DAG. */
export function Approval({ state, base, family }: { state: Resource<JobState>; base: string; family: Family }) {
  const { dagRun = "" } = useParams();
  const [query] = useSearchParams();
  const wanted = query.get("dag");
  const dag = wanted === null ? family.dag("recovery") : (family.dags.find((each) => each.dag_id === wanted) ?? null);
  if (dag !== null) return <Questions state={state} base={base} dag={dag} run={dagRun} />;
  if (family.isKnown) return <Notice status="error" title="This job has no such DAG" />;
  return family.problem === null ? <Text role="status">Loading</Text> : <ProblemNotice problem={family.problem} />;
}

interface Props {
  state: Resource<JobState>;
  base: string;
  dag: FamilyDag;
  run: string;
}

function Questions({ state, base, dag, run }: Props) {
  const questions = useQuestions(dag.dag_id, run);
  return (
    <Loaded resource={questions}>
      {({ hitl_details: found }) => {
        const question = found.find(isWaiting) ?? found[0];
        if (question !== undefined) return <OneQuestion {...{ state, base, dag, run, question }} reload={questions.reload} />;
        return (
          <Notice status="info" title="This DAG run asks nothing yet">
            <PageLink to={dag.role === "recovery" ? recoveryPath(base, run) : base || "/"}>Where it is</PageLink>, or the <DagRunLink dag={dag.dag_id} run={run} />
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

function OneQuestion({ state, base, dag, run, question, reload }: QuestionProps) {
  const dagRun = useDagRun(dag.dag_id, run).value;
  const output = useReturned<PlanOutput>(dag.role === "recovery" ? dag.dag_id : null, run, "plan");
  const me = useMe();
  const plan = output.value?.plan ?? null;
  const waits = isWaiting(question);
  const outdated = plan !== null && waits ? outdatedBecause(plan, state.value) : null;
  return (
    <Stack gap={4}>
      <Heading as="h2" size="lg" overflowWrap="anywhere">
        {question.subject}
      </Heading>
      <Asks question={question} run={dagRun} />
      {outdated !== null && plan !== null && (
        <Notice status="error" title={`The plan is ${outdated}`}>
          <PageLink to={restorePath(base, plan.target)}>Plan the restore again</PageLink>
        </Notice>
      )}
      {waits && plan !== null && outdated === null && <Validity state={state} />}
      {output.value !== null && <PlanOf output={output.value} />}
      {output.problem !== null && output.value === null && (
        <Notice status="warning" title="The plan cannot be read now">
          {output.problem.message}. The question has it as text.
        </Notice>
      )}
      <Body question={question} isOpen={output.value?.cautions === undefined} />
      <DagRunLink dag={dag.dag_id} run={run} />
      {waits ? <Answer question={question} refused={refusals(question, dagRun, me, dag, outdated)} reload={reload} /> : <Answered question={question} />}
      {!waits && dag.role === "recovery" && <PageLink to={recoveryPath(base, run)}>What happens to the restore</PageLink>}
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

/** Says that the plan was compared with the job, or that it could not be. */
function Validity({ state }: { state: Resource<JobState> }) {
  if (state.value === null || state.problem !== null || state.value.problem !== null) {
    return <Notice status="warning" title="It is not known whether the plan is still valid: the job cannot be read now" />;
  }
  return (
    <Text color="green.fg" role="status">
      ✓ The plan is still valid: the job is at the same checkpoint and run.
    </Text>
  );
}

function PlanOf({ output: { plan, cautions = [], replay } }: { output: PlanOutput }) {
  const difference = plan.job_file_difference;
  return (
    <Stack gap={4}>
      <LossNumbers plan={plan} />
      <LossSentences plan={plan} />
      <Cautions cautions={cautions} />
      <PlanTarget plan={plan} />
      {replay !== undefined && <Text>{replay}</Text>}
      <PlanChanges plan={plan} />
      <Stack as="section" gap={2}>
        <Heading as="h3" size="sm" overflowWrap="anywhere">
          Job file {plan.job_file}
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

/** What a person has answered. */
export function Answered({ question: { responded_by_user: user, responded_at: at, chosen_options: chosen, params_input: given, response_received: answered } }: { question: Question }) {
  if (!answered) return <Notice status="info" title="The task does not wait for an answer any more" />;
  const isApproved = chosen?.includes("Approve") === true;
  const note = given.note;
  return (
    <Notice status={isApproved ? "info" : "warning"} title={isApproved ? "Approved" : "Rejected"}>
      <Text overflowWrap="anywhere">
        {user === null ? (
          "No person answered in time"
        ) : (
          <>
            By <PersonLink name={user.name} />
          </>
        )}
        {at !== null && (
          <>
            , <Time at={at} />
          </>
        )}
        {typeof note === "string" && note !== "" && `: ${note}`}
      </Text>
    </Notice>
  );
}

/** The buttons, which stay at the bottom of the window. */
function Answer({ question, refused, reload }: { question: Question; refused: Refusals; reload: () => void }) {
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
    <Box as="section" aria-label="Answer" position="sticky" bottom={0} bg="bg" borderTopWidth="1px" py={3} zIndex="docked">
      <Stack gap={2}>
        {problem !== null && <ProblemNotice problem={problem} />}
        <TextField label="Note" value={note} onChange={setNote} />
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
