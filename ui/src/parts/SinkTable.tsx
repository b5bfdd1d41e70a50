import type { SinkMetrics, SinkStatus } from "../api";
import { formatBytes, formatCount, formatDuration } from "../format";
import { CopiedPath } from "./Command";
import { CheckpointLink } from "./links";
import { ScrollingTable } from "./ScrollingTable";

const OUTPUT_COLUMNS = ["Rows", "Size", "Files", "Publication"];

/** What was published to a sink with a checkpoint. */
function OutputCells({ metrics }: { metrics: SinkMetrics | null }) {
  const texts = metrics === null ? ["none recorded", "", "", ""] : [formatCount(metrics.rows), formatBytes(metrics.written_bytes), formatCount(metrics.files), formatDuration(metrics.publish_ms)];
  return texts.map((text, index) => (
    <td className="line" key={index}>
      {text}
    </td>
  ));
}

/** What was published with a checkpoint, by sink. */
export function OutputTable({ sinks }: { sinks: Readonly<Record<string, SinkMetrics>> }) {
  return (
    <ScrollingTable label="Output of the checkpoint" columns={["Sink", ...OUTPUT_COLUMNS]}>
      {Object.entries(sinks).map(([uid, metrics]) => (
        <tr key={uid}>
          <td className="name">{uid}</td>
          <OutputCells metrics={metrics} />
        </tr>
      ))}
    </ScrollingTable>
  );
}

const SINK_COLUMNS = ["Sink", "Writes to", "Version", "Published up to", ...OUTPUT_COLUMNS, "Not known to be published"];

/** Where the sinks stand, and what the newest checkpoint has published to them. */
export function SinkTable({ label, sinks }: { label: string; sinks: Readonly<Record<string, SinkStatus>> }) {
  return (
    <ScrollingTable label={label} columns={SINK_COLUMNS}>
      {Object.entries(sinks).map(([uid, sink]) => (
        <tr key={uid}>
          <td className="name">{uid}</td>
          <td className="text">
            {(sink.description ?? sink.table_id) || "not known"} {sink.location !== null && <CopiedPath text={sink.location} what={`location of ${uid}`} size="cell" />}
          </td>
          <td>{sink.version === null ? "not known" : formatCount(sink.version)}</td>
          <td className="line">{sink.checkpoint_id === null ? "nothing yet" : <CheckpointLink id={sink.checkpoint_id}>{`checkpoint ${sink.checkpoint_id}`}</CheckpointLink>}</td>
          <OutputCells metrics={sink.metrics} />
          <td className="text">
            <Pending ids={sink.pending_checkpoint_ids} />
          </td>
        </tr>
      ))}
    </ScrollingTable>
  );
}

/** The newest checkpoints whose output a sink may lack. */
function Pending({ ids }: { ids: readonly number[] }) {
  const more = ids.length - MOST_PENDING;
  if (ids.length === 0) return "none";
  return (
    <>
      {ids.slice(-MOST_PENDING).map((id, index) => (
        <span key={id}>
          {index > 0 && ", "}
          <CheckpointLink id={id}>{`checkpoint ${id}`}</CheckpointLink>
        </span>
      ))}
      {more > 0 && `, and ${formatCount(more)} before`}
    </>
  );
}

const MOST_PENDING = 5;
