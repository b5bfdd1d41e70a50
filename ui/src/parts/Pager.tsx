import { Button, Flex } from "@chakra-ui/react";
import { useState } from "react";

/** The cursors of the pages up to the one that is shown; empty for the first page. */
export interface Pages {
  /** Of the address: the filters, and the cursor of the page. */
  query: string;
  setCursors: (cursors: readonly string[]) => void;
  cursors: readonly string[];
}

/** Keeps the place in a list that the API returns page by page, the newest first. Other filters begin at the first page. */
export function usePages(filters: URLSearchParams): Pages {
  const filtered = filters.toString();
  const [kept, setKept] = useState<{ filtered: string; cursors: readonly string[] }>({ filtered, cursors: [] });
  const cursors = kept.filtered === filtered ? kept.cursors : [];
  const query = new URLSearchParams(filters);
  const cursor = cursors.at(-1);
  if (cursor !== undefined) query.set("cursor", cursor);
  return {
    query: query.size === 0 ? "" : `?${query.toString()}`,
    cursors,
    setCursors: (next) => {
      setKept({ filtered, cursors: next });
    },
  };
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
