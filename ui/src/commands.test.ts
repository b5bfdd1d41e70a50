// The requests of the pages, which tests in Python read too: those parse the commands with the real command line, and
// run the real DAG of the retention with the configurations.
import { expect, it } from "vitest";
import { disposeCommand, restoreCommands, retentionCommands, runCommand, savepointCommand, stopCommand, verifyCommand } from "./commands";
import { optionsFor } from "./restoreOptions";
import { limitsOf, missingField, NO_LIMITS, previewQuery, retentionConf } from "./retention";
import requests from "./test-requests.json";

const ROOT = "s3://bucket/jobs of 'uma'";
const FILES = { job: "/my jobs/it's \"one\".py", settings: "/my jobs/$settings.toml" };
const REASON = ' it\'s "bad"; rm -rf $(pwd)\nnow ';
const LIMITS = { retain: 2, savepoints: 1, max_age: "36 h" };
const OPTIONS = {
  ...optionsFor("before:orders={\"0\": 5}"),
  keepTables: ["out"],
  drop: ["old.sum"],
  newNames: { count: "counts" },
  positions: { clicks: '{"0": 5}' },
  fromOtherJob: true,
  claimMode: "claim" as const,
};
/** The fields of the form as Airflow answers with them. */
const PARAMS = {
  preview: { value: false },
  retain: { value: null },
  savepoints: { value: 7 },
  max_age: { value: " 30d " },
  reason: { value: null },
  tables: { value: true },
  dispose: { value: null },
};

it("writes the commands that the command line understands", () => {
  const [plan, execute] = restoreCommands(ROOT, OPTIONS, REASON, FILES);
  const [prune, gc] = retentionCommands(ROOT, LIMITS, false);
  const [listPruned, listGarbage] = retentionCommands(ROOT, LIMITS, true);
  expect({
    run: runCommand(ROOT, FILES),
    "run without settings": runCommand(ROOT),
    savepoint: savepointCommand(ROOT),
    stop: stopCommand(ROOT),
    plan,
    execute,
    prune,
    gc,
    "list pruned": listPruned,
    "list garbage": listGarbage,
    verify: verifyCommand(ROOT, "before-v2"),
    dispose: disposeCommand(ROOT, "before-v2", REASON, false),
    "dispose claimed": disposeCommand(ROOT, "before-v2", " ", true),
  }).toEqual(requests.commands);
});

it("prunes no savepoints without a limit for them", () => {
  expect(retentionCommands("/jobs/a", NO_LIMITS, true)).toEqual(["stateflow gc --job-root /jobs/a --dry-run"]);
});

it("deletes a savepoint without any limit of the form, and applies a retention with all of them", () => {
  expect({
    disposal: retentionConf(PARAMS, NO_LIMITS, { dispose: "mine", reason: "the upgrade is done" }),
    retention: retentionConf(PARAMS, { ...limitsOf(PARAMS), retain: 2 }, null),
  }).toEqual(requests.confs);
  expect(previewQuery(limitsOf(PARAMS))).toBe("savepoints=7&max_age=30d");
});

it("knows from the form whether a DAG run would do more", () => {
  const older = Object.fromEntries(Object.entries(PARAMS).filter(([name]) => name !== "max_age" && name !== "tables"));
  expect(missingField("dag", PARAMS, Object.keys(NO_LIMITS))).toBeNull();
  expect(missingField("dag", older, Object.keys(NO_LIMITS))).toContain("max_age");
  // A form without the field has no task that maintains tables.
  expect(retentionConf(older, NO_LIMITS, null)).not.toHaveProperty("tables");
});
