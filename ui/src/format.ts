// Numbers, sizes and times in the browser's language. Times are in the browser's time zone; in Airflow, in the zone that
// the user has chosen there.

const COUNT = new Intl.NumberFormat(undefined, { maximumFractionDigits: 1 });
const RELATIVE = new Intl.RelativeTimeFormat(undefined, { numeric: "always", style: "short" });
const STYLES = {
  exact: { dateStyle: "long", timeStyle: "long" },
  full: { dateStyle: "medium", timeStyle: "medium" },
  short: { month: "short", day: "numeric", hour: "2-digit", minute: "2-digit" },
} as const;
/** Where Airflow keeps the chosen zone, as JSON. */
const AIRFLOW_ZONE = "timezone";

const SIZES = ["byte", "kilobyte", "megabyte", "gigabyte", "terabyte", "petabyte"] as const;
const DURATIONS = [
  ["day", 86_400_000],
  ["hour", 3_600_000],
  ["minute", 60_000],
  ["second", 1000],
  ["millisecond", 1],
] as const;

function withUnit(value: number, unit: string): string {
  const maximumFractionDigits = value < 10 && unit !== "byte" && unit !== "millisecond" ? 1 : 0;
  return new Intl.NumberFormat(undefined, { style: "unit", unit, unitDisplay: "short", maximumFractionDigits }).format(value);
}

/** "1,234". */
export function formatCount(value: number): string {
  return COUNT.format(value);
}

/** "2.5 kB", with thousands as the command line has them. */
export function formatBytes(bytes: number): string {
  let value = bytes;
  let size = 0;
  // 999.95 kB would be rounded to "1,000 kB".
  while (Math.abs(value) >= 999.5 && size < SIZES.length - 1) {
    value /= 1000;
    size += 1;
  }
  return withUnit(value, SIZES[size] ?? "byte");
}

/** "5.9 sec", in the largest unit of which there is at least one. */
export function formatDuration(ms: number): string {
  const [unit, length] = DURATIONS.find(([, each]) => ms >= each) ?? ["millisecond", 1];
  return withUnit(ms / length, unit);
}

/** "3 min. ago". */
export function formatAge(at: string, now: number): string {
  const ms = Date.parse(at) - now;
  const [unit, length] = DURATIONS.find(([name, each]) => name !== "millisecond" && Math.abs(ms) >= each) ?? ["second", 1000];
  return RELATIVE.format(Math.trunc(ms / length), unit === "millisecond" ? "second" : unit);
}

function chosenZone(): string | undefined {
  try {
    const zone: unknown = JSON.parse(localStorage.getItem(AIRFLOW_ZONE) ?? "null");
    return typeof zone === "string" ? new Intl.DateTimeFormat(undefined, { timeZone: zone }).resolvedOptions().timeZone : undefined;
  } catch {
    // Another program's value, or a zone that the browser does not know.
    return undefined;
  }
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
