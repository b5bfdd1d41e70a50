import { Text } from "@chakra-ui/react";
import type { ActionEntry } from "../api";

/** The record of a savepoint among the newest records of the history; null if it is older. Without an id, by its name. */
export function recordOf(actions: readonly ActionEntry[], name: string, id: string | null): ActionEntry | null {
  const isOf = ({ kind, facts }: ActionEntry) => kind === "savepoint" && (id === null ? facts.savepoint === name : facts.savepoint_id === id);
  return actions.findLast(isOf) ?? null;
}

/** Whether the history's record of a savepoint is as it was recorded. Only a command reads the files of the savepoint. */
export function SavepointRecord({ record }: { record: ActionEntry | null }) {
  if (record === null) return <Text color="fg.muted">Its record is not among the newest ones of the history.</Text>;
  if (record.integrity === "changed") {
    return (
      <Text color="red.fg" fontWeight="semibold">
        Its record in the history was changed.
      </Text>
    );
  }
  if (record.integrity === "verified") return <Text color="green.fg">✓ Its record in the history is verified.</Text>;
  return <Text color="fg.muted">Its record in the history is not verified yet.</Text>;
}
