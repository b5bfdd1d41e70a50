import { Text } from "@chakra-ui/react";
import { visible } from "../format";
import { Folded } from "./Folded";

const MOST_LETTERS = 240;

/** The first line of a text, which says what is wrong: schemas and stack traces come after it; hidden characters in it are visible. */
export function headOf(text: string): string {
  const [line = ""] = visible(text).trim().split("\n", 1);
  return line.length > MOST_LETTERS ? `${line.slice(0, MOST_LETTERS - 1)}…` : line;
}

/** The whole of a text whose first line is shown; nothing if that is all. */
export function WholeText({ text }: { text: string }) {
  if (headOf(text) === visible(text).trim()) return null;
  return (
    <Folded title="The whole message">
      {() => (
        <Text whiteSpace="pre-wrap" overflowWrap="anywhere" fontSize="sm">
          {visible(text)}
        </Text>
      )}
    </Folded>
  );
}

/** The message of a program: its first line, and all of it folded. */
export function LongText({ text }: { text: string }) {
  return (
    <>
      <Text overflowWrap="anywhere">{headOf(text)}</Text>
      <WholeText text={text} />
    </>
  );
}
