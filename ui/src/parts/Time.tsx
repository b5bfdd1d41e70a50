import { useSyncExternalStore } from "react";
import { formatAge, formatTime } from "../format";

// One clock for all ages of a page.
const TICK_MS = 10_000;
/** A record that is this little ahead is of now. */
const AHEAD_MS = 30_000;
let now = Date.now();
let timer: ReturnType<typeof setInterval> | undefined;
const listeners = new Set<() => void>();

/** What Airflow dispatches when the user chooses another time zone. */
const ZONE_EVENT = "local-storage";

function tick(): void {
  now = Date.now();
  listeners.forEach((each) => {
    each();
  });
}

function subscribe(listener: () => void): () => void {
  if (listeners.size === 0) {
    now = Date.now();
    timer = setInterval(tick, TICK_MS);
    window.addEventListener(ZONE_EVENT, tick);
  }
  listeners.add(listener);
  return () => {
    listeners.delete(listener);
    if (listeners.size > 0) return;
    clearInterval(timer);
    window.removeEventListener(ZONE_EVENT, tick);
  };
}

/** A time as "3 min ago", with the exact time on hover; or in full. */
export function Time({ at, full = false }: { at: string; full?: boolean }) {
  const current = useSyncExternalStore(subscribe, () => now);
  const instant = Date.parse(at);
  // The clock of the page is up to a tick behind, and the clock of another host may be ahead.
  const age = formatAge(at, instant > current && instant < current + AHEAD_MS ? instant : current);
  return (
    <time dateTime={at} title={full ? age : formatTime(at, "exact")}>
      {full ? formatTime(at) : age}
    </time>
  );
}

/** A time in full, and as "3 min ago". */
export function Moment({ at }: { at: string }) {
  return (
    <>
      <Time at={at} full /> (<Time at={at} />)
    </>
  );
}
