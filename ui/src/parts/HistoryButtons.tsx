import { Button, Flex } from "@chakra-ui/react";
import type { HistoryPart } from "../history";

/** Buttons for the parts of a history before and after the shown one. */
export function HistoryButtons({ part: { showOlder, showNewer }, size = "sm" }: { part: HistoryPart; size?: "xs" | "sm" }) {
  const shown = [
    ["Show older records", showOlder],
    ["Show newer records", showNewer],
  ] as const;
  return (
    <Flex gap={2} wrap="wrap" align="center" _empty={{ display: "none" }}>
      {shown.map(
        ([label, show]) =>
          show !== null && (
            <Button key={label} size={size} variant="outline" onClick={show}>
              {label}
            </Button>
          ),
      )}
    </Flex>
  );
}
