import { Button, Flex, Stack, Text } from "@chakra-ui/react";
import { type ReactNode, useEffect, useId, useRef, useState } from "react";
import type { Problem } from "../api";
import { Notice } from "./Loaded";
import { headOf, WholeText } from "./LongText";

interface Props {
  label: string;
  /** What happens, as a question. */
  question: ReactNode;
  /** Fields of the action, between the question and its buttons. */
  fields?: ReactNode;
  /** Why it cannot be done now; null if it can. */
  refused: string | null;
  /** Does it, and returns why it was not done; null if it was. */
  act: () => Promise<Problem | null>;
  colour?: "red" | "green" | "blue" | "gray";
  size?: "xs" | "sm" | "md";
}

/** A button that asks once before it does something; disabled with the reason if it cannot be done. */
export function ConfirmedAction({ label, question, fields, refused, act, colour = "gray", size = "sm" }: Props) {
  const id = useId();
  const [isAsking, setAsking] = useState(false);
  const [isBusy, setBusy] = useState(false);
  const [problem, setProblem] = useState<Problem | null>(null);
  const panel = useRef<HTMLDivElement>(null);
  useEffect(() => {
    if (isAsking) panel.current?.focus();
  }, [isAsking]);
  const confirm = async () => {
    setBusy(true);
    const found = await act();
    setBusy(false);
    setProblem(found);
    setAsking(found !== null);
  };
  return (
    <Stack gap={2} minW={0} alignItems="start">
      <Button
        size={size}
        variant={isAsking ? "solid" : "outline"}
        colorPalette={colour}
        disabled={refused !== null}
        aria-expanded={isAsking}
        aria-describedby={refused === null ? undefined : id}
        onClick={() => {
          setProblem(null);
          setAsking(!isAsking);
        }}
      >
        {label}
      </Button>
      {refused !== null && (
        <Text id={id} fontSize="xs" color="fg.muted" maxW="16rem">
          {refused}
        </Text>
      )}
      {isAsking && refused === null && (
        <Stack ref={panel} tabIndex={-1} role="group" aria-label={label} gap={3} borderWidth="1px" borderRadius="md" p={3} maxW="xl" width="full">
          <div>{question}</div>
          {fields}
          {problem !== null && <ProblemNotice problem={problem} />}
          <Flex gap={2} wrap="wrap">
            <Button size="sm" colorPalette={colour} disabled={isBusy} onClick={() => void confirm()}>
              Yes, {label.charAt(0).toLowerCase() + label.slice(1)}
            </Button>
            <Button
              size="sm"
              variant="outline"
              disabled={isBusy}
              onClick={() => {
                setAsking(false);
              }}
            >
              Cancel
            </Button>
          </Flex>
        </Stack>
      )}
    </Stack>
  );
}

/** Why an action was not done. */
export function ProblemNotice({ problem }: { problem: Problem }) {
  return (
    <Notice status="error" title={headOf(problem.message)}>
      {problem.hint ?? ""}
      <WholeText text={problem.message} />
    </Notice>
  );
}
