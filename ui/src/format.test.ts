import { expect, it } from "vitest";
import { enteredOf, formatAge, formatBytes, formatChange, formatCount, formatDuration, formatTime, instantOf, visible } from "./format";
import { pluginBase } from "./parts/links";

// The tests run with LANG=en_US.
/** Versions of Node write different spaces before AM and PM. */
const plain = (text: string) => text.replaceAll(/\s/gu, " ");
const now = Date.parse("2026-01-31T03:00:00.000Z");

it("writes sizes with the unit of thousands", () => {
  expect([0, 999, 1000, 2470, 62_900, 999_600, 1e15].map(formatBytes)).toEqual([
    "0 bytes",
    "999 bytes",
    "1 kB",
    "2.5 kB",
    "63 kB",
    "1 MB",
    "1 PB",
  ]);
});

it("writes durations in the largest unit of which there is one", () => {
  expect([0.4, 59, 5862, 61_000, 7_200_000, 90_000_000].map(formatDuration)).toEqual([
    "0 ms",
    "59 ms",
    "5.9 sec",
    "1 min",
    "2 hr",
    "1 day",
  ]);
});

it("rounds before it chooses the unit", () => {
  expect([999, 999.6, 59_400, 59_600, 84_000, 3_569_999, 3_570_000, 3_599_999, 84_600_000, 86_399_999].map(formatDuration)).toEqual([
    "999 ms",
    "1 sec",
    "59 sec",
    "1 min",
    "1.4 min",
    "59 min",
    "1 hr",
    "1 hr",
    "1 day",
    "1 day",
  ]);
  expect([999_499, 999_500, 999_999, 9_949, 9_950, 999_999_999, 1e18, -999_999].map(formatBytes)).toEqual(["999 kB", "1 MB", "1 MB", "9.9 kB", "10 kB", "1 GB", "1,000 PB", "-1 MB"]);
});

it("writes ages in the past and in the future", () => {
  expect(formatAge("2026-01-31T02:57:00.000Z", now)).toBe("3 min. ago");
  expect(formatAge("2026-01-29T03:00:00.000Z", now)).toBe("2 days ago");
  expect(formatAge("2026-01-31T04:00:00.000Z", now)).toBe("in 1 hr.");
  expect(formatAge("2026-01-31T02:59:59.900Z", now)).toBe("now");
});

it("groups digits", () => {
  expect(formatCount(336_776)).toBe("336,776");
});

it("writes times in the zone that the user has chosen in Airflow, and in the browser's without", () => {
  const at = "2026-01-31T03:00:00.000Z";
  localStorage.setItem("timezone", JSON.stringify("Asia/Tokyo"));
  expect(plain(formatTime(at, "exact"))).toBe("January 31, 2026 at 12:00:00 PM GMT+9");
  localStorage.setItem("timezone", JSON.stringify("Nowhere/At_all"));
  expect(plain(formatTime(at))).toBe("Jan 31, 2026, 3:00:00 AM");
  localStorage.setItem("timezone", "no JSON");
  expect(plain(formatTime(at, "short"))).toBe("Jan 31, 03:00 AM");
  localStorage.clear();
});

it("writes what has changed between two numbers", () => {
  expect(formatChange(1000, 2500, formatBytes)).toBe("1 kB → 2.5 kB (+1.5 kB)");
  expect(formatChange(5, 2, formatCount)).toBe("5 → 2 (−3)");
  expect([formatChange(undefined, 2, formatCount), formatChange(7, 7, formatCount), formatChange(undefined, undefined, formatCount)]).toEqual(["none → 2", "7", "none"]);
  // Not known is not none.
  expect([formatChange(2, null, formatCount), formatChange(null, undefined, formatCount), formatChange(null, null, formatCount)]).toEqual(["2 → not known", "not known → none", "not known"]);
});

it("reads dates and times in the zone in which it shows them", () => {
  // The browser of the tests has UTC.
  expect(instantOf("2026-01-31T03:00")).toBe("2026-01-31T03:00:00.000Z");
  localStorage.setItem("timezone", JSON.stringify("Asia/Tokyo"));
  expect(instantOf("2026-01-31T03:00")).toBe("2026-01-30T18:00:00.000Z");
  // New York changes from UTC-5 to UTC-4 at 02:00 on 8 March 2026.
  localStorage.setItem("timezone", JSON.stringify("America/New_York"));
  expect(["2026-03-08T01:59:59", "2026-03-08T03:00", "2026-11-30T12:00:30"].map(instantOf)).toEqual(["2026-03-08T06:59:59.000Z", "2026-03-08T07:00:00.000Z", "2026-11-30T17:00:30.000Z"]);
  localStorage.clear();
  expect([instantOf(""), instantOf("soon")]).toEqual([null, null]);
});

it("writes an instant as it is entered, in each zone and year", () => {
  expect(["2026-01-31T03:00:00.000Z", "2026-01-31T03:00:07Z", "", "soon"].map(enteredOf)).toEqual(["2026-01-31T03:00", "2026-01-31T03:00:07", "", ""]);
  localStorage.setItem("timezone", JSON.stringify("Asia/Tokyo"));
  expect(enteredOf("2026-01-30T18:00:00.000Z")).toBe("2026-01-31T03:00");
  // An instant with its zone is the same for each reader.
  expect([instantOf("2026-01-31T03:00:00.000Z"), instantOf("2026-01-31T03:00+01:00")]).toEqual(["2026-01-31T03:00:00.000Z", "2026-01-31T02:00:00.000Z"]);
  // The years that a field has while 2026 is typed.
  const typed = ["0002-01-31T03:00", "0020-01-31T03:00", "0202-01-31T03:00", "2026-01-31T03:00"];
  expect(typed.map((each) => enteredOf(instantOf(each) ?? ""))).toEqual(typed);
  localStorage.clear();
});

it("makes visible what would hide or turn a text, as the command line does, and leaves the rest of a text", () => {
  const hidden = ["\u0000", "\r", "\u001b", "\u007f", "\u009b", "\u00ad", "\u034f", "\u061c", "\u200b", "\u200f", "\u202a", "\u202e", "\u2066", "\u2069", "\ufeff", "\ud800"];
  for (const each of hidden) expect(visible(`a${each}b`)).toBe(`a\\u${each.charCodeAt(0).toString(16).padStart(4, "0")}b`);
  expect(visible("\u{e0041}")).toBe("\\udb40\\udc41");
  expect(visible("x\n\ty é العربية 😀")).toBe("x\n\ty é العربية 😀");
});

it("finds the path of the app also of a DAG with the name of a part of the path", () => {
  expect(["/plugin/stateflow/jobs/a/journal", "/dags/flights/plugin/stateflow-state/savepoints", "/dags/plugin/plugin/stateflow-state/approval/plugin"].map(pluginBase)).toEqual([
    "/plugin/stateflow",
    "/dags/flights/plugin/stateflow-state",
    "/dags/plugin/plugin/stateflow-state",
  ]);
});
