import { Text } from "@chakra-ui/react";
import type { ActionEntry, Resource, TimelinePage } from "../api";

/** The record of a savepoint among the newest records of the history; null if it is older. Without an id, by its name. */
function recordOf(actions: readonly ActionEntry[], name: string, id: string | null): ActionEntry | null {
  const isOf = ({ kind, facts }: ActionEntry) => kind === "savepoint" && (id === null ? facts.savepoint === name : facts.savepoint_id === id);
  return actions.findLast(isOf) ?? null;
}

interface Props {
  history: Resource<TimelinePage>;
  name: string;
  /** Null if it is not known: the record is found by the name. */
  id: string | null;
}

/** Whether the history's record of a savepoint is as it was recorded. Only a command reads the files of the savepoint. */
export function SavepointRecord({ history: { value, problem }, name, id }: Props) {
  if (value === null && problem === null) return <Text color="fg.muted">Its record is being read.</Text>;
  const record = recordOf(value?.actions ?? [], name, id);
  if (record === null) {
    const isRead = value !== null && value.problem === null;
    return <Text color="fg.muted">{isRead ? "Its record is not among the newest ones of the history." : "Its record is not known: the history cannot be read now."}</Text>;
  }
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
