import { Text } from "@chakra-ui/react";
import type { Question } from "../airflow";
import { PersonLink } from "./links";
import { Notice } from "./Loaded";
import { Time } from "./Time";

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
