import { describe, expect, it } from "vitest";
import type { ActionEntry, CheckpointSummary } from "../api";
import { inOrder, layOut, type TimelineRecord } from "./timelineLayout";

const at = (minute: number) => new Date(Date.UTC(2026, 0, 31, 3, minute)).toISOString();

function checkpoint(id: number, run: number, more: Partial<CheckpointSummary> = {}): CheckpointSummary {
  return {
    checkpoint_id: id,
    previous_checkpoint_id: null,
    generation: run * 100,
    run,
    ordinal: 1,
    branch: null,
    status: "completed",
    ended_at: at(id),
    duration_ms: 10,
    rows_in: 1,
    increment_bytes: 1,
    full_bytes: 1,
    live_bytes: null,
    kind: "checkpoint",
    failure: null,
    undone: false,
    retained: false,
    integrity: null,
    ...more,
  };
}

function action(kind: string, seq: number, more: Partial<ActionEntry> = {}): ActionEntry {
  return {
    kind,
    checkpoint_id: null,
    restored_checkpoint_id: null,
    undone: null,
    retained: null,
    integrity: null,
    seq,
    ended_at: at(seq),
    by: null,
    requested_by: null,
    reason: null,
    note: null,
    duration_ms: null,
    size_bytes: null,
    facts: {},
    ...more,
  };
}

const restore = (seq: number, base: number) => action("restore", seq, { checkpoint_id: seq, restored_checkpoint_id: base });

const lanesOf = (records: TimelineRecord[]) => Object.fromEntries(layOut(records).marks.map((mark) => [mark.label, mark.lane]));

describe("collapsing", () => {
  it("shows the checkpoints of a run that nothing refers to as one mark with their number", () => {
    const { marks, slots } = layOut([1, 2, 3, 4, 5, 6].map((id) => checkpoint(id, 1)));
    // The first and the newest one stay.
    expect(marks.map((mark) => mark.label)).toEqual(["1", "2–5 (4)", "6"]);
    expect(slots).toBe(3);
  });

  it("never hides a base, a point with a savepoint, the boundary of a run or of retention", () => {
    const records = [
      ...[1, 2, 3].map((id) => checkpoint(id, 1)),
      checkpoint(4, 1, { retained: true }),
      ...[5, 6, 7].map((id) => checkpoint(id, 2)),
      action("savepoint", 6, { checkpoint_id: 6 }),
      checkpoint(8, 2),
      restore(9, 5),
      checkpoint(10, 3),
    ];
    expect(layOut(records).marks.every((mark) => mark.kind !== "group")).toBe(true);
  });

  it("shows the checkpoints of an expanded group one by one", () => {
    const records = [1, 2, 3, 4, 5, 6].map((id) => checkpoint(id, 1));
    const group = layOut(records).marks.find((mark) => mark.kind === "group");
    expect(layOut(records, { expanded: new Set([group?.key ?? ""]) }).slots).toBe(6);
  });

  it("can collapse checkpoints of several runs, whose numbers it then names", () => {
    const records = [1, 2, 3, 4, 5, 6, 7].map((id) => checkpoint(id, Math.ceil(id / 2)));
    expect(layOut(records).marks.every((mark) => mark.kind !== "group")).toBe(true);
    const { marks, runs } = layOut(records, { acrossRuns: true });
    expect(marks.map((mark) => mark.label)).toEqual(["1", "2–6 (5)", "7"]);
    expect(runs.map((span) => [span.run, span.lastRun])).toEqual([
      [1, 1],
      [1, 3],
      [4, 4],
    ]);
  });

  it("keeps the key of a group while checkpoints join it", () => {
    const key = (last: number) => {
      const ids = Array.from({ length: last }, (_, index) => index + 1);
      return layOut(ids.map((id) => checkpoint(id, 1))).marks.find((mark) => mark.kind === "group")?.key;
    };
    expect(key(9)).toBe(key(6));
  });
});

describe("branches", () => {
  it("shows undone checkpoints below, and what follows the restore in the lane of the present state", () => {
    const records = [checkpoint(1, 1), checkpoint(2, 1), checkpoint(3, 2), restore(4, 1), checkpoint(5, 3)];
    expect(lanesOf(records)).toEqual({ 1: 0, 2: 1, 3: 1, 4: 0, 5: 0 });
  });

  it("gives branches that would touch each other lanes of their own", () => {
    const records = [checkpoint(1, 1), checkpoint(2, 1), restore(3, 1), checkpoint(4, 2), restore(5, 1), checkpoint(6, 3)];
    const lanes = lanesOf(records);
    expect(lanes[2]).not.toBe(lanes[4]);
    expect([lanes[2], lanes[4]]).not.toContain(0);
    expect(lanes[6]).toBe(0);
  });

  it("shows a restored branch as present again if a later restore returns to it", () => {
    const records = [checkpoint(1, 1), checkpoint(2, 1), restore(3, 1), checkpoint(4, 2), restore(5, 2), checkpoint(6, 3)];
    expect(lanesOf(records)).toMatchObject({ 1: 0, 2: 0, 4: 1, 6: 0 });
  });

  it("finds the present branch in an older part, whose newest points may be undone", () => {
    const records = [checkpoint(1, 1), checkpoint(2, 1), checkpoint(3, 2, { undone: true }), checkpoint(4, 2, { undone: true })];
    expect(lanesOf(records)).toEqual({ 1: 0, 2: 0, 3: 1, 4: 1 });
    expect(layOut(records, { isNewest: false }).marks.some((mark) => mark.newest)).toBe(false);
  });

  it("draws an arc from each restore to its base, those that contain others above them", () => {
    const records = [checkpoint(1, 1), checkpoint(2, 1), checkpoint(3, 1), restore(4, 2), checkpoint(5, 2), restore(6, 1)];
    const { arcs, marks } = layOut(records);
    const slot = (label: string) => marks.find((mark) => mark.label === label)?.slot;
    expect(arcs.map((arc) => [arc.fromSlot, arc.toSlot])).toEqual([
      [slot("4"), slot("2")],
      [slot("6"), slot("1")],
    ]);
    expect(arcs.map((arc) => arc.level)).toEqual([0, 1]);
  });

  it("draws the arc of a restore whose base is older than the records, or of another job, from the left edge", () => {
    expect(layOut([checkpoint(8, 1), restore(9, 3)]).arcs[0]?.toSlot).toBe(-1);
    expect(layOut([checkpoint(8, 1), action("restore", 9, { checkpoint_id: 9 })]).arcs[0]?.toSlot).toBe(-1);
  });

  it("connects a point with the one before it, thickly within a run", () => {
    const { edges } = layOut([checkpoint(1, 1), checkpoint(2, 1), checkpoint(3, 2)]);
    expect(edges.map((edge) => [edge.fromSlot, edge.toSlot, edge.sameRun])).toEqual([
      [0, 1, true],
      [1, 2, false],
    ]);
  });
});

describe("marks", () => {
  it("puts a savepoint at its point, and one of an unknown point into a slot of its own", () => {
    const known = layOut([checkpoint(1, 1), checkpoint(2, 1), action("savepoint", 1)]);
    expect(known.marks.find((mark) => mark.kind === "savepoint")?.slot).toBe(0);
    expect(known.slots).toBe(2);
    const unknown = layOut([action("savepoint", 1), checkpoint(2, 1)]);
    expect(unknown.slots).toBe(2);
  });

  it("marks failures, rejections and aborted checkpoints", () => {
    const aborted = checkpoint(0, 1, { checkpoint_id: null, previous_checkpoint_id: 1, status: "aborted" });
    const records = [checkpoint(1, 1), aborted, action("failure", 1), action("failed-start", 1), action("rejection", 1)];
    expect(layOut(records).marks.map((mark) => mark.kind)).toEqual(["checkpoint", "aborted", "failure", "failure", "rejection"]);
  });

  it("has another key for each mark", () => {
    const twice = action("dispose", 1);
    const keys = layOut([checkpoint(1, 1), twice, twice, action("dispose", 1, { ended_at: at(9) })]).marks.map((mark) => mark.key);
    expect(new Set(keys).size).toBe(4);
  });

  it("says which point is the newest", () => {
    const records = [checkpoint(1, 1), checkpoint(2, 1), restore(3, 1), action("failure", 3)];
    expect(layOut(records).marks.filter((mark) => mark.newest).map((mark) => mark.label)).toEqual(["3"]);
  });

  it("lays out no records, and many", () => {
    expect(layOut([])).toMatchObject({ slots: 0, marks: [], edges: [], arcs: [] });
    const many = Array.from({ length: 10_000 }, (_, index) => checkpoint(index + 1, Math.floor(index / 13)));
    // A group for each of the 769 full runs, the first checkpoint, and the three of the last run.
    expect(layOut(many).slots).toBe(773);
  });
});

describe("the order of records", () => {
  const labels = (records: TimelineRecord[]) => records.map((record) => ("ordinal" in record ? record.checkpoint_id : record.kind));

  it("is that of the log, whatever the times of points are", () => {
    const checkpoints = [checkpoint(1, 1, { ended_at: at(50) }), checkpoint(3, 2, { ended_at: at(3) })];
    expect(labels(inOrder({ checkpoints, actions: [restore(2, 1)] }))).toEqual([1, "restore", 3]);
  });

  it("puts an action after its point, and by its time between later ones", () => {
    const checkpoints = [1, 2, 3].map((id) => checkpoint(id, 1));
    // Made of checkpoint 1, after checkpoint 2.
    const late = action("savepoint", 1, { ended_at: at(2) });
    // By a clock that is behind.
    const early = action("failure", 3, { ended_at: at(0) });
    expect(labels(inOrder({ checkpoints, actions: [late, early] }))).toEqual([1, 2, "savepoint", 3, "failure"]);
  });

  it("puts actions on older points first", () => {
    expect(labels(inOrder({ checkpoints: [checkpoint(9, 1)], actions: [action("savepoint", 4)] }))).toEqual(["savepoint", 9]);
  });
});

it("gives each of several savepoints of one point a place of its own in the slot", () => {
  const saved = (minute: number, name: string) => action("savepoint", 2, { checkpoint_id: 2, ended_at: at(minute), facts: { savepoint: name } });
  const { marks } = layOut([checkpoint(1, 1), checkpoint(2, 1), saved(3, "a"), saved(4, "b"), checkpoint(5, 1), action("savepoint", 5, { checkpoint_id: 5 })]);
  const found = marks.filter((mark) => mark.kind === "savepoint");
  expect(found.map(({ slot, place }) => [slot, place.index, place.count])).toEqual([
    [1, 0, 2],
    [1, 1, 2],
    [2, 0, 1],
  ]);
  expect(new Set(found.map(({ key }) => key)).size).toBe(3);
  expect(marks.filter((mark) => mark.kind === "checkpoint").map(({ place }) => place)).toEqual([1, 2, 3].map(() => ({ index: 0, count: 1 })));
});
