// Numbers, sizes and times in the browser's language. Times are in the browser's time zone; in Airflow, in the zone that
// the user has chosen there.

const COUNT = new Intl.NumberFormat(undefined, { maximumFractionDigits: 1 });
const RELATIVE = new Intl.RelativeTimeFormat(undefined, { numeric: "always", style: "short" });
const NOW = new Intl.RelativeTimeFormat(undefined, { numeric: "auto" }).format(0, "second");
const STYLES = {
  exact: { dateStyle: "long", timeStyle: "long" },
  full: { dateStyle: "medium", timeStyle: "medium" },
  short: { month: "short", day: "numeric", hour: "2-digit", minute: "2-digit" },
} as const;
/** Where Airflow keeps the chosen zone, as JSON. */
const AIRFLOW_ZONE = "timezone";

type Unit = readonly [name: string, length: number];
/** From the smallest unit, which is not divided, to the largest one; the length is in the smallest one. */
type Units = readonly [Unit, ...Unit[]];

const SIZES = [
  ["byte", 1],
  ["kilobyte", 1e3],
  ["megabyte", 1e6],
  ["gigabyte", 1e9],
  ["terabyte", 1e12],
  ["petabyte", 1e15],
] as const;
const DURATIONS = [
  ["millisecond", 1],
  ["second", 1000],
  ["minute", 60_000],
  ["hour", 3_600_000],
  ["day", 86_400_000],
] as const;

const unitFormats = new Map<string, Intl.NumberFormat>();

/** A value in the largest unit of which there is at least one after it is rounded: 59.96 s are 1 min. */
function withUnit(value: number, [smallest, ...larger]: Units): string {
  let [unit, length] = smallest;
  let amount = Math.round(value);
  for (const [next, size] of larger) {
    if (Math.abs(amount) * length < size) break;
    const exact = value / size;
    [unit, length, amount] = [next, size, Math.abs(exact) < 10 ? Math.round(10 * exact) / 10 : Math.round(exact)];
  }
  const format = unitFormats.get(unit) ?? new Intl.NumberFormat(undefined, {
    style: "unit",
    unit,
    // "898 byte" is the short form of English.
    unitDisplay: unit === "byte" ? "long" : "short",
    maximumFractionDigits: 1,
  });
  unitFormats.set(unit, format);
  return format.format(amount);
}

/** "1,234". */
export function formatCount(value: number): string {
  return COUNT.format(value);
}

/** "2 files", "1 row". */
export function counted(count: number, one: string, many = `${one}s`): string {
  return `${formatCount(count)} ${count === 1 ? one : many}`;
}

/** A size of state: of its entries, and of its files, which also have entries that were overwritten or deleted. */
export interface StateBytes {
  live_bytes: number | null;
  full_bytes: number;
}

/** The size of the entries where it is known, and of the files otherwise. */
export function sizeOf({ live_bytes: live, full_bytes: full }: StateBytes): number {
  return live ?? full;
}

/** "about 2.5 kB live", or "4 kB in files" where the live size is not known. */
export function sizeText({ live_bytes: live, full_bytes: full }: StateBytes): string {
  return live === null ? `${formatBytes(full)} in files` : `about ${formatBytes(live)} live`;
}

/** Which sizes `sizeOf` has returned. */
export function sizesName(sizes: readonly Pick<StateBytes, "live_bytes">[]): string {
  const unknown = sizes.filter((each) => each.live_bytes === null).length;
  if (unknown === sizes.length) return "size of files";
  return unknown === 0 ? "live size" : `live size; of ${counted(unknown, "checkpoint")}, whose live size is not known, size of files`;
}

/** The size of a job's state at its newest checkpoint, which may be damaged. */
export function stateText({ full_bytes: full, live_bytes: live, checkpoint_id: id }: { full_bytes: number | null; live_bytes: number | null; checkpoint_id: number | null }): string {
  if (full !== null) return sizeText({ full_bytes: full, live_bytes: live });
  return id === null ? "none" : "not known";
}

const HIDDEN = /(?![\t\n])[\p{Cc}\p{Cs}\u00ad\u061c\u115f\u1160\u180e\u200b-\u200f\u2028-\u202e\u2060-\u2069\u3164\ufeff\ufff9-\ufffb\u{e0000}-\u{e007f}]|\u034f/gu;
/** Most texts: a test for them takes a third of the time. */
const PLAIN = /^[ -~]*$/;

/**
 * A text of a person or a job with its control characters, invisible ones and changes of direction as `\u202e`: they would show an approver
 * another text than the one that is executed. The same characters as on the command line.
 */
export function visible(text: string): string {
  const escape = (unit: string) => `\\u${unit.charCodeAt(0).toString(16).padStart(4, "0")}`;
  return PLAIN.test(text) ? text : text.replace(HIDDEN, (found) => found.split("").map(escape).join(""));
}

/** The position of a source. */
export function offsetText(offset: unknown): string {
  if (offset === null || offset === undefined) return "start";
  return visible(typeof offset === "string" ? offset : JSON.stringify(offset));
}

/** "2.5 kB", with thousands as the command line has them. */
export function formatBytes(bytes: number): string {
  return withUnit(bytes, SIZES);
}

/** "5.9 sec". */
export function formatDuration(ms: number): string {
  return withUnit(ms, DURATIONS);
}

/** "3 min. ago"; "now" for less than a second. */
export function formatAge(at: string, now: number): string {
  const ms = Date.parse(at) - now;
  const [unit, length] = DURATIONS.findLast(([, each]) => Math.abs(ms) >= each) ?? DURATIONS[0];
  return unit === "millisecond" ? NOW : RELATIVE.format(Math.trunc(ms / length), unit);
}

/** "1 kB → 2.5 kB (+1.5 kB)"; `format` writes a number with its unit. Null is not known, and undefined is none. */
export function formatChange(from: number | null | undefined, to: number | null | undefined, format: (value: number) => string): string {
  const text = (value: number | null | undefined) => (value === undefined ? "none" : value === null ? "not known" : format(value));
  if (from === to) return text(from);
  const both = `${text(from)} → ${text(to)}`;
  if (typeof from !== "number" || typeof to !== "number") return both;
  return `${both} (${to > from ? "+" : "−"}${format(Math.abs(to - from))})`;
}

/** The zone that a stored text chooses. */
function zoneOf(stored: string): string | undefined {
  try {
    const zone: unknown = JSON.parse(stored);
    return typeof zone === "string" ? new Intl.DateTimeFormat(undefined, { timeZone: zone }).resolvedOptions().timeZone : undefined;
  } catch {
    // Another program's value, or a zone that the browser does not know.
    return undefined;
  }
}

let known: { stored: string; zone: string | undefined } = { stored: "null", zone: undefined };

/** The zone that the user has chosen in Airflow. A table asks for it a hundred times: only another text is read again. */
function chosenZone(): string | undefined {
  const stored = localStorage.getItem(AIRFLOW_ZONE) ?? "null";
  if (stored !== known.stored) known = { stored, zone: zoneOf(stored) };
  return known.zone;
}

/** The name of the zone in which times are shown and entered. */
export function zoneName(): string {
  return chosenZone() ?? Intl.DateTimeFormat().resolvedOptions().timeZone;
}

const formats = new Map<string, Intl.DateTimeFormat>();

/** A date and time: `exact` with its time zone, `full`, or `short` without year and seconds. */
export function formatTime(at: string, style: keyof typeof STYLES = "full"): string {
  const timeZone = chosenZone();
  const key = `${style} ${timeZone ?? ""}`;
  const format = formats.get(key) ?? new Intl.DateTimeFormat(undefined, { ...STYLES[style], timeZone });
  formats.set(key, format);
  return format.format(new Date(at));
}

/** Milliseconds by which the clock of a zone is ahead of UTC at an instant; without a zone, the browser's clock. */
function zoneOffset(at: number, timeZone?: string): number {
  const parts = new Intl.DateTimeFormat("en-US", { timeZone, hourCycle: "h23", year: "numeric", month: "numeric", day: "numeric", hour: "numeric", minute: "numeric", second: "numeric" }).formatToParts(at);
  const part = (type: string) => Number(parts.find((each) => each.type === type)?.value);
  // `Date.UTC` takes a year below 100 for one of the 20th century. A field has such years while a person types.
  const shown = new Date(Date.UTC(2000, part("month") - 1, part("day"), part("hour"), part("minute"), part("second")));
  shown.setUTCFullYear(part("year"), part("month") - 1, part("day"));
  return shown.getTime() - Math.floor(at / 1000) * 1000;
}

const HAS_ZONE = /(?:Z|[+-]\d\d:\d\d)$/;

/** The instant of a date and time that a person has entered, such as "2026-01-31T03:00", as ISO text; null if it is none. */
export function instantOf(entered: string): string | null {
  const zone = HAS_ZONE.test(entered) ? undefined : chosenZone();
  const written = Date.parse(zone === undefined ? entered : `${entered}Z`);
  if (Number.isNaN(written)) return null;
  if (zone === undefined) return new Date(written).toISOString();
  // The offset of the instant, which is known only after a first guess.
  const guess = written - zoneOffset(written, zone);
  return new Date(written - zoneOffset(guess, zone)).toISOString();
}

/** An instant as the date and time that a person would enter, such as "2026-01-31T03:00"; empty if it is none. */
export function enteredOf(instant: string): string {
  const at = Date.parse(instant);
  if (Number.isNaN(at)) return "";
  const shown = new Date(at + zoneOffset(at, chosenZone())).toISOString();
  // As a browser writes it: without seconds if they are 0.
  return shown.slice(0, shown.endsWith(":00.000Z") ? 16 : 19);
}
