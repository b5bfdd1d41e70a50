import { useState } from "react";
import { type CheckpointPage, type JobState, useResource } from "../api";
import { formatBytes, formatChange, formatCount, offsetText, type StateBytes } from "../format";
import { isCheckpoint } from "../pictures/timelineLayout";
import { SelectField } from "./Fields";
import { Loaded } from "./Loaded";
import { ScrollingTable } from "./ScrollingTable";
import { Section } from "./Section";

interface Size extends StateBytes {
  entries: number | null;
}

/** Sizes and entries by operator; if the job does not keep the files, as the record has them. */
function sizesOf({ operators, entry }: CheckpointPage): Map<string, Size> {
  if (operators.length > 0) return new Map(operators.map((each) => [each.uid, { full_bytes: each.size_bytes, live_bytes: each.live_bytes, entries: each.metrics?.state_entries ?? null }]));
  if (entry === null || !isCheckpoint(entry)) return new Map();
  return new Map(Object.entries(entry.operators).map(([uid, each]) => [uid, { full_bytes: each.state_bytes, live_bytes: each.live_bytes, entries: each.state_entries }]));
}

/** Null is not known, and undefined is none: the checkpoint does not have the operator. */
type Found = Size | null | undefined;

/** "1 kB → 2.5 kB (+1.5 kB) live"; the sizes of files unless all live sizes are known. */
function changeText(old: Found, now: Found): string {
  const areLive = [old, now].every((each) => each == null || each.live_bytes !== null);
  const bytesOf = (each: Found) => (each == null ? each : areLive ? each.live_bytes : each.full_bytes);
  return `${formatChange(bytesOf(old), bytesOf(now), formatBytes)} ${areLive ? "live" : "in files"}`;
}

function entriesOf(found: Found): number | null | undefined {
  return found == null ? found : found.entries;
}

/** What differs from another checkpoint, at first the one that this one continued from. */
export function CheckpointDifference({ address, job, page, id }: { address: string; job: JobState | null; page: CheckpointPage; id: number }) {
  const base = page.entry === null ? null : isCheckpoint(page.entry) ? page.entry.base_checkpoint_id : page.entry.restored_checkpoint_id;
  const [chosen, setChosen] = useState<string | null>(null);
  const others = [...new Set([base, ...(job?.description?.retained_checkpoint_ids ?? [])])].filter((each): each is number => each !== null && each !== id).sort((a, b) => b - a);
  const wanted = chosen ?? (base === null || base === id ? "" : String(base));
  const other = useResource<CheckpointPage>(wanted === "" ? null : `${address}/checkpoints/${wanted}`, 60_000);
  if (others.length === 0) return null;
  return (
    <Section title="What differs">
      <SelectField label="Compared with checkpoint" value={wanted} choices={[["", "none"], ...others.map((each) => [String(each), String(each)] as const)]} onChange={setChosen} />
      {wanted !== "" && <Loaded resource={other}>{(found) => <DifferenceTable before={found} after={page} />}</Loaded>}
    </Section>
  );
}

function DifferenceTable({ before, after }: { before: CheckpointPage; after: CheckpointPage }) {
  const [old, now] = [sizesOf(before), sizesOf(after)];
  const uids = [...new Set([...old.keys(), ...now.keys()])].sort((a, b) => a.localeCompare(b));
  const positions = new Map(before.sources.map(({ uid, offset }) => [uid, offsetText(offset)]));
  return (
    <ScrollingTable label="Difference between the checkpoints" columns={["Operator or source", "State or position", "Entries"]}>
      {uids.map((uid) => (
        <tr key={uid}>
          <td className="name">{uid}</td>
          <td>{changeText(old.size === 0 ? null : old.get(uid), now.size === 0 ? null : now.get(uid))}</td>
          <td>{formatChange(entriesOf(old.size === 0 ? null : old.get(uid)), entriesOf(now.size === 0 ? null : now.get(uid)), formatCount)}</td>
        </tr>
      ))}
      {after.sources.map(({ uid, offset }) => (
        <tr key={`source ${uid}`}>
          <td className="name">source {uid}</td>
          <td className="code" colSpan={2}>
            {positions.get(uid) === offsetText(offset) ? offsetText(offset) : `${positions.get(uid) ?? "not known"} → ${offsetText(offset)}`}
          </td>
        </tr>
      ))}
    </ScrollingTable>
  );
}
