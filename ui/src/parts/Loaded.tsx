import { Alert, Button, Input, Skeleton, Stack, Text } from "@chakra-ui/react";
import { createContext, type FormEvent, type ReactNode, useContext, useId, useState } from "react";
import { type Freshness, hasToken, isStandalone, type Problem, rememberToken, type Resource } from "../api";
import { headOf, LongText } from "./LongText";
import { Time } from "./Time";

// A page with several answers says once that it may be outdated.
const Outdated = createContext(false);

/** An answer's content; while there is none, that it is loading, or why it is missing. An old answer says so. */
export function Loaded<T>({ resource, children }: { resource: Resource<T>; children: (value: T) => ReactNode }) {
  const { value, checkedAt, problem, reload } = resource;
  const isSaid = useContext(Outdated);
  if (value === null) {
    if (problem?.status === 401 && isStandalone) return <TokenForm />;
    if (problem !== null) return <ProblemAlert problem={problem} reload={reload} />;
    return (
      <Stack gap={3} aria-busy="true" role="status" aria-label="Loading">
        <Skeleton height="8" />
        <Skeleton height="40" />
      </Stack>
    );
  }
  return (
    <Stack gap={4}>
      {problem !== null && !isSaid && (
        <Notice status="warning" title="This may be outdated">
          It was read {checkedAt !== null && <Time at={new Date(checkedAt).toISOString()} />}: {headOf(problem.message)}.
        </Notice>
      )}
      <Outdated.Provider value={isSaid || problem !== null}>{children(value)}</Outdated.Provider>
    </Stack>
  );
}

function ProblemAlert({ problem, reload }: { problem: Problem; reload: () => void }) {
  return (
    <Notice status="error" title={problem.status === 404 ? "Not found" : "This cannot be shown"}>
      <LongText text={problem.message} />
      {problem.hint !== null && <Text overflowWrap="anywhere">{problem.hint}</Text>}
      <Button size="sm" variant="outline" mt={2} onClick={reload}>
        Try again
      </Button>
    </Notice>
  );
}

/** Asks for the token of the server. */
function TokenForm() {
  const [token, setToken] = useState("");
  const id = useId();
  const enter = (event: FormEvent) => {
    event.preventDefault();
    rememberToken(token);
  };
  return (
    <form onSubmit={enter}>
      <Stack gap={3} maxW="md">
        {hasToken() && <Notice status="error" title="This is not the token of the server" />}
        <Text>
          The server shows jobs to those who have its token. It is in the file that the server was started with: on its host, <code>cat FILE</code> prints it, with
          the FILE of <code>--token-file FILE</code>.
        </Text>
        <label htmlFor={id}>Token of the server</label>
        <Input
          id={id}
          type="password"
          autoComplete="current-password"
          value={token}
          onChange={(event) => {
            setToken(event.target.value);
          }}
        />
        <Button type="submit" alignSelf="start" disabled={token.trim() === ""}>
          Enter
        </Button>
      </Stack>
    </form>
  );
}

/** Says that a job root cannot be read now; with `history`, also that records of its history are missing. */
export function FreshnessNotice({ of, history = false }: { of: Freshness; history?: boolean }) {
  const { problem, last_read_at: readAt, history_complete: complete, history_truncated: truncated } = of;
  if (problem !== null) {
    return (
      <Notice status={readAt === null ? "error" : "warning"} title="The job root cannot be read now">
        <LongText text={problem.message} />
        {problem.hint !== null && <Text overflowWrap="anywhere">{problem.hint}</Text>}
        {readAt !== null && (
          <Text>
            It was read <Time at={readAt} />.
          </Text>
        )}
      </Notice>
    );
  }
  if (history && truncated) return <Notice status="info" title="The oldest records of the history are not shown" />;
  if (history && !complete) return <Notice status="info" title="Older records of the history are being read" />;
  return null;
}

/** A message of a page. */
export function Notice({ status, title, children }: { status: "info" | "warning" | "error"; title: string; children?: ReactNode }) {
  return (
    <Alert.Root status={status} role={status === "error" ? "alert" : "status"}>
      <Alert.Indicator />
      <Alert.Content minW={0}>
        <Alert.Title>{title}</Alert.Title>
        <Alert.Description as="div">{children}</Alert.Description>
      </Alert.Content>
    </Alert.Root>
  );
}
