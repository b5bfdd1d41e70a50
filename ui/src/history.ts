// The history of a job, part by part: its newest records first, and older ones once a reader wants them.
import { useState } from "react";
import { type Resource, type TimelinePage, useResource } from "./api";

/** Records that the API returns at most at once; a page shows no more of them. At first it reads as many as the API's default. */
const MOST = 2000;

/** The newest records of a history. */
export function useNewest(address: string, everyMs = 10_000): Resource<TimelinePage> {
  return useResource<TimelinePage>(`${address}/timeline`, everyMs);
}

/** The part of a history that is shown, and what shows the parts before and after it; null if there is none. */
export interface HistoryPart {
  resource: Resource<TimelinePage>;
  /** Whether it ends with the present state. */
  isNewest: boolean;
  showOlder: (() => void) | null;
  showNewer: (() => void) | null;
}

/** Goes from the newest records to older parts, and back: first to more of the newest records, then from part to part. */
export function useHistoryPart(address: string, newest: Resource<TimelinePage>): HistoryPart {
  // Where the parts up to the shown one begin; empty for the newest records.
  const [cursors, setCursors] = useState<readonly string[]>([]);
  const cursor = cursors.at(-1);
  const query = new URLSearchParams({ limit: String(MOST), ...(cursor === undefined || cursor === "" ? {} : { cursor }) });
  const part = useResource<TimelinePage>(cursor === undefined ? null : `${address}/timeline?${query.toString()}`, 30_000);
  const resource = cursor === undefined ? newest : part;
  const older = resource.value?.next_cursor ?? null;
  const next = older !== null && cursor === undefined ? "" : older;
  return {
    resource,
    isNewest: cursor === undefined || cursor === "",
    showOlder:
      next === null
        ? null
        : () => {
            setCursors([...cursors, next]);
          },
    showNewer:
      cursor === undefined
        ? null
        : () => {
            setCursors(cursors.slice(0, -1));
          },
  };
}
