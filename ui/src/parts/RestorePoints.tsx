import { Button, Flex, Heading, Stack, Table } from "@chakra-ui/react";
import { type FormEvent, useState } from "react";
import { type SavepointPage, type TimelinePage, type TimelinePoint, useResource } from "../api";
import { formatBytes, formatCount } from "../format";
import { TextField } from "./Fields";
import { RestoreLink } from "./links";
import { FreshnessNotice, Loaded, Notice } from "./Loaded";
import { ScrollingTable } from "./ScrollingTable";
import { Time } from "./Time";

/** A point to which a restore can return. */
export interface Point {
  target: string;
  name: string;
  at: string | null;
  bytes: number;
  /** Rows that the job has read after it; null if that is not known. */
  rowsAfter: number | null;
  remark: string;
}

/** Rows of the completed checkpoints after one, of the branch that is not undone. */
function rowsAfter(checkpoints: readonly TimelinePoint[], id: number | null): number | null {
  const point = checkpoints.find((each) => each.checkpoint_id === id);
  if (id === null || point === undefined || point.undone === true) return null;
  const later = checkpoints.filter((each) => each.checkpoint_id !== null && each.checkpoint_id > id && each.undone === false);
  return later.reduce((rows, each) => rows + each.rows_in, 0);
}

/** The kept checkpoints and the savepoints of a job, the newest first. The newest checkpoint is where the job is. */
export function pointsOf({ checkpoints }: Pick<TimelinePage, "checkpoints">, { savepoints }: Pick<SavepointPage, "savepoints">): Point[] {
  const newest = checkpoints.reduce((most, each) => (each.undone === false ? Math.max(most, each.checkpoint_id ?? 0) : most), 0);
  const kept = checkpoints.filter((each) => each.retained && each.checkpoint_id !== null && each.checkpoint_id !== newest);
  const points: Point[] = kept.map((each) => ({
    target: String(each.checkpoint_id),
    name: `checkpoint ${each.checkpoint_id ?? ""}`,
    at: each.ended_at,
    bytes: each.full_bytes,
    rowsAfter: rowsAfter(checkpoints, each.checkpoint_id),
    remark: each.undone === true ? "undone" : "",
  }));
  const saved: Point[] = savepoints.map((each) => ({
    target: each.name,
    name: `savepoint ${each.name}`,
    at: each.made_at,
    bytes: each.size_bytes,
    rowsAfter: rowsAfter(checkpoints, each.checkpoint_id),
    remark: [each.checkpoint_id === null ? "" : `checkpoint ${each.checkpoint_id}`, each.reason ?? ""].filter((part) => part !== "").join(": "),
  }));
  return [...points, ...saved].sort((a, b) => Date.parse(b.at ?? "") - Date.parse(a.at ?? "") || a.name.localeCompare(b.name));
}

/** Points to choose from, and a field for any other one. */
export function RestorePoints({ address, base, onChoose }: { address: string; base: string; onChoose: (target: string) => void }) {
  const timeline = useResource<TimelinePage>(`${address}/timeline?limit=500`);
  const saved = useResource<SavepointPage>(`${address}/savepoints`);
  return (
    <Stack gap={4}>
      <Heading as="h2" size="lg">
        1. Choose the point
      </Heading>
      <Loaded resource={timeline}>
        {(page) => (
          <Loaded resource={saved}>
            {(savepoints) => (
              <Stack gap={4}>
                <FreshnessNotice of={page} history />
                <PointTable points={pointsOf(page, savepoints)} base={base} />
              </Stack>
            )}
          </Loaded>
        )}
      </Loaded>
      <OtherPoint onChoose={onChoose} />
    </Stack>
  );
}

function PointTable({ points, base }: { points: readonly Point[]; base: string }) {
  if (points.length === 0) {
    return (
      <Notice status="info" title="There is no earlier point">
        The job keeps no checkpoint before the newest one, and has no savepoint.
      </Notice>
    );
  }
  return (
    <ScrollingTable label="Points to restore">
      <Table.Header>
        <Table.Row>
          {["Point", "Made", "State", "Rows after it", "Remarks", "Restore"].map((title) => (
            <Table.ColumnHeader key={title}>{title}</Table.ColumnHeader>
          ))}
        </Table.Row>
      </Table.Header>
      <Table.Body>
        {points.map((point) => (
          <Table.Row key={point.name}>
            <Table.Cell fontWeight="semibold">{point.name}</Table.Cell>
            <Table.Cell whiteSpace="nowrap">{point.at === null ? "not known" : <Time at={point.at} />}</Table.Cell>
            <Table.Cell whiteSpace="nowrap">{formatBytes(point.bytes)}</Table.Cell>
            <Table.Cell>{point.rowsAfter === null ? "not known" : formatCount(point.rowsAfter)}</Table.Cell>
            <Table.Cell overflowWrap="anywhere">{point.remark}</Table.Cell>
            <Table.Cell>
              <RestoreLink base={base} target={point.target} size="xs" />
            </Table.Cell>
          </Table.Row>
        ))}
      </Table.Body>
    </ScrollingTable>
  );
}

function OtherPoint({ onChoose }: { onChoose: (target: string) => void }) {
  const [target, setTarget] = useState("");
  const choose = (event: FormEvent) => {
    event.preventDefault();
    if (target.trim() !== "") onChoose(target.trim());
  };
  return (
    <form onSubmit={choose}>
      <Flex gap={3} align="end" wrap="wrap">
        <TextField label="Another point" value={target} onChange={setTarget} help="The path of a savepoint, before:2026-01-31T03:00 (UTC), or before:SOURCE=OFFSET" />
        <Button type="submit" size="sm" variant="outline" disabled={target.trim() === ""}>
          Use this point
        </Button>
      </Flex>
    </form>
  );
}
