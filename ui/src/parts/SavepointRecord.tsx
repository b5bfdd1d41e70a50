import { Text } from "@chakra-ui/react";
import type { Savepoint } from "../api";

/** Whether the history's record of a savepoint is as it was recorded. Only a command reads the files of the savepoint. */
export function SavepointRecord({ integrity }: { integrity: Savepoint["record_integrity"] }) {
  if (integrity === null) return <Text color="fg.muted">The history, as far as it is read, has no record of it.</Text>;
  if (integrity === "changed") {
    return (
      <Text color="red.fg" fontWeight="semibold">
        Its record in the history was changed.
      </Text>
    );
  }
  if (integrity === "verified") return <Text color="green.fg">✓ Its record in the history is verified.</Text>;
  return <Text color="fg.muted">Its record in the history is not verified yet.</Text>;
}
