import { expect, it } from "vitest";
import { formatAge, formatBytes, formatCount, formatDuration, formatTime } from "./format";

// The tests run with LANG=en_US.
/** Versions of Node write different spaces before AM and PM. */
const plain = (text: string) => text.replaceAll(/\s/gu, " ");
const now = Date.parse("2026-01-31T03:00:00.000Z");

it("writes sizes with the unit of thousands", () => {
  expect([0, 999, 1000, 2470, 62_900, 999_600, 1e15].map(formatBytes)).toEqual([
    "0 byte",
    "999 byte",
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

it("writes ages in the past and in the future", () => {
  expect(formatAge("2026-01-31T02:57:00.000Z", now)).toBe("3 min. ago");
  expect(formatAge("2026-01-29T03:00:00.000Z", now)).toBe("2 days ago");
  expect(formatAge("2026-01-31T04:00:00.000Z", now)).toBe("in 1 hr.");
  expect(formatAge("2026-01-31T02:59:59.900Z", now)).toBe("0 sec. ago");
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
