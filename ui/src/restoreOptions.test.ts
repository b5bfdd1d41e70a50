import { expect, it } from "vitest";
import { restoreCommands } from "./commands";
import { isBlank, optionsFor, planQuery, recoveryConf } from "./restoreOptions";
import { targetText } from "./targets";

const all = {
  ...optionsFor("before:2026-01-31T03:00"),
  keepTables: ["out", "audit"],
  drop: ["old"],
  newNames: { count: "counts", other: " " },
  positions: { orders: "earliest", clicks: '{"0": 5}', idle: "" },
  fromOtherJob: true,
  claimMode: "claim" as const,
  run: true,
};

it("asks for a plan without the defaults", () => {
  expect(planQuery(optionsFor("12"))).toBe("target=12&sinks=restore&claim_mode=no-claim");
});

it("writes each option as the form of the recovery DAG has it", () => {
  expect(recoveryConf(all, "bad data", "abc")).toEqual({
    target: "before:2026-01-31T03:00",
    sinks: "restore",
    keep_tables: "out,audit",
    drop: "old",
    new_names: "count=counts",
    source_positions: 'orders=earliest\nclicks={"0": 5}',
    from_other_job: true,
    claim_mode: "claim",
    reason: "bad data",
    run: true,
    expected_plan: "abc",
  });
  expect(Object.fromEntries(new URLSearchParams(planQuery(all)))).toEqual({
    target: "before:2026-01-31T03:00",
    sinks: "restore",
    keep_tables: "out,audit",
    drop: "old",
    new_names: "count=counts",
    source_positions: 'orders=earliest\nclicks={"0": 5}',
    from_other_job: "true",
    claim_mode: "claim",
  });
});

it("names no tables to keep if all are kept", () => {
  expect(recoveryConf({ ...all, sinks: "keep" }, "r", "d")).toMatchObject({ sinks: "keep", keep_tables: null });
});

it("quotes the words of the commands", () => {
  const [plan, execute] = restoreCommands("/jobs/my job", all, "it's $(bad)", { job: "my job.py", settings: "" });
  expect(plan).toBe(
    "stateflow restore 'my job.py' --job-root '/jobs/my job' --plan before:2026-01-31T03:00 --keep-table out --keep-table audit --drop old" +
      " --map count=counts --source orders=earliest --source 'clicks={\"0\": 5}' --from-other-job --claim-mode claim --out plan.json",
  );
  expect(execute).toBe(`stateflow restore 'my job.py' --job-root '/jobs/my job' --execute plan.json --reason 'it'"'"'s $(bad)'`);
});

it.each(["", " \n\t", "\u200b\u00ad", "\u3164"])("takes %j for blank", (text) => {
  expect(isBlank(text)).toBe(true);
  expect(isBlank(`${text}x`)).toBe(false);
});

it("says that a time without an offset is in UTC", () => {
  expect(["12", "before:2026-01-31T03:00", "before:20260131", "before:2026-01-31T03:00Z", "before:2026-01-31T03:00:00+01:00", "before:orders=7", "weekly"].map(targetText)).toEqual([
    "checkpoint 12",
    "before:2026-01-31T03:00 UTC",
    "before:20260131 UTC",
    "before:2026-01-31T03:00Z",
    "before:2026-01-31T03:00:00+01:00",
    "before:orders=7",
    "weekly",
  ]);
});
