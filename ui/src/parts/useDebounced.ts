import { useEffect, useState } from "react";

/** How long a person may pause while they type. */
const SETTLED_MS = 300;

/** A value once it has not changed for a while. */
export function useDebounced<T>(value: T): T {
  const [settled, setSettled] = useState(value);
  useEffect(() => {
    const timer = setTimeout(() => {
      setSettled(value);
    }, SETTLED_MS);
    return () => {
      clearTimeout(timer);
    };
  }, [value]);
  return settled;
}
