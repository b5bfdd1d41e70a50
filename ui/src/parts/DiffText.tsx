import { Box } from "@chakra-ui/react";
import { visible } from "../format";

const CLASSES: Record<string, string> = { "+": "added", "-": "removed", "@": "place" };
/** Of all lines: thousands of components of Chakra would take seconds. */
const STYLE = { "& span": { display: "block" }, "& .added": { color: "green.fg" }, "& .removed": { color: "red.fg" }, "& .place": { color: "fg.muted" } } as const;
const MOST_LINES = 2000;

/** A unified difference of two texts. The signs at the begin of each line say the same as the colours. */
export function DiffText({ label, text }: { label: string; text: string }) {
  const lines = visible(text).replace(/\n$/, "").split("\n");
  return (
    <Box as="pre" tabIndex={0} role="region" aria-label={label} overflow="auto" maxH="24rem" fontFamily="mono" fontSize="xs" borderWidth="1px" borderRadius="md" p={3} css={STYLE}>
      {lines.slice(0, MOST_LINES).map((line, index) => (
        <span key={index} className={CLASSES[line.charAt(0)]}>
          {line === "" ? " " : line}
        </span>
      ))}
      {lines.length > MOST_LINES && (
        <span className="place">{lines.length - MOST_LINES} more lines</span>
      )}
    </Box>
  );
}
