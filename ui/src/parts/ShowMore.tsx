import { Button } from "@chakra-ui/react";
import { type ReactNode, useState } from "react";
import { formatCount } from "../format";

interface Props<T> {
  all: readonly T[];
  /** How many are shown at first, and more at each click. */
  step: number;
  /** How many are shown in any case. */
  least?: number;
  /** What they are, in the plural. */
  what: string;
  children: (shown: readonly T[]) => ReactNode;
}

/** The first of many things, and a button that shows more of them: a page with all would take seconds. */
export function ShowMore<T>({ all, step, least = 0, what, children }: Props<T>) {
  const [most, setMost] = useState(step);
  const shown = all.slice(0, Math.max(most, least));
  return (
    <>
      {children(shown)}
      {shown.length < all.length && (
        <Button
          size="sm"
          variant="outline"
          alignSelf="start"
          onClick={() => {
            setMost(shown.length + step);
          }}
        >
          Show more of {formatCount(all.length)} {what}
        </Button>
      )}
    </>
  );
}
