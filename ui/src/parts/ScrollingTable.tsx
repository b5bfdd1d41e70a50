import { Box } from "@chakra-ui/react";
import type { ReactNode } from "react";

// A component of Chakra for each cell takes most of the time of a page with many rows: here one style is for all cells.
// A class of a cell says what its text is.
const STYLE = {
  "& table": { width: "full", borderCollapse: "collapse", textStyle: "sm", fontVariantNumeric: "lining-nums tabular-nums" },
  "& th, & td": { px: 2, py: 2, textAlign: "start", borderBottomWidth: "1px" },
  "& th": { fontWeight: "medium" },
  "& tbody tr:last-child td": { borderBottomWidth: 0 },
  "& .name": { fontWeight: "semibold" },
  "& .line": { whiteSpace: "nowrap" },
  "& .text": { overflowWrap: "anywhere", minWidth: "8rem" },
  "& .long": { overflowWrap: "anywhere", minWidth: "14rem" },
  "& .code": { overflowWrap: "anywhere", fontFamily: "mono" },
  "& .muted": { color: "fg.muted" },
  "& .bad": { color: "red.fg" },
  "& .button": { display: "inline-block", whiteSpace: "nowrap", textStyle: "xs", fontWeight: "medium", borderWidth: "1px", borderRadius: "sm", px: 2, py: 1 },
  // In a narrow window, a row of a stacked table is a list of its cells, each with the title of its column.
  "@media (max-width: 40rem)": {
    "& .stacked thead": { display: "none" },
    "& .stacked tr": { display: "block", py: 2, borderBottomWidth: "1px" },
    "& .stacked td": { display: "block", py: 0.5, borderBottomWidth: 0, overflowWrap: "anywhere" },
    "& .stacked td:empty": { display: "none" },
    "& .stacked .line": { whiteSpace: "normal" },
    "& .stacked td[data-title]::before": { content: "attr(data-title) ': '", color: "fg.muted" },
  },
} as const;

/**
 * A table that scrolls sideways where the window is narrower, also with the keyboard. Its children are rows: `tr` with `td`. With `stacked`,
 * its rows are lists where the window is narrow: then each cell has the title of its column as `data-title`.
 */
export function ScrollingTable({ label, columns = [], stacked = false, children }: { label: string; columns?: readonly string[]; stacked?: boolean; children: ReactNode }) {
  return (
    <Box overflowX="auto" tabIndex={0} role="region" aria-label={label} borderWidth="1px" borderRadius="md" css={STYLE}>
      <table className={stacked ? "stacked" : undefined}>
        {columns.length > 0 && (
          <thead>
            <tr>
              {columns.map((title) => (
                <th key={title} scope="col">
                  {title}
                </th>
              ))}
            </tr>
          </thead>
        )}
        <tbody>{children}</tbody>
      </table>
    </Box>
  );
}
