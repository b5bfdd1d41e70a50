import { Button, Flex } from "@chakra-ui/react";
import { useState } from "react";

/** The cursors of the pages up to the one that is shown; empty for the first page. */
export interface Pages {
  query: string;
  cursors: readonly string[];
  setCursors: (cursors: readonly string[]) => void;
}

/** Keeps the place in a list that the API returns page by page, the newest first. */
export function usePages(): Pages {
  const [cursors, setCursors] = useState<readonly string[]>([]);
  const cursor = cursors.at(-1);
  return { query: cursor === undefined ? "" : `?cursor=${encodeURIComponent(cursor)}`, cursors, setCursors };
}

/** Buttons for the next and the previous page. */
export function Pager({ pages: { cursors, setCursors }, next }: { pages: Pages; next: string | null }) {
  if (next === null && cursors.length === 0) return null;
  return (
    <Flex gap={2}>
      <Button
        size="sm"
        variant="outline"
        disabled={cursors.length === 0}
        onClick={() => {
          setCursors(cursors.slice(0, -1));
        }}
      >
        Newer
      </Button>
      <Button
        size="sm"
        variant="outline"
        disabled={next === null}
        onClick={() => {
          if (next !== null) setCursors([...cursors, next]);
        }}
      >
        Older
      </Button>
    </Flex>
  );
}
