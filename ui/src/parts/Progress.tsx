import type { RunProgress } from "../api";
import { counted, formatCount } from "../format";
import { type Fact, Facts } from "./Facts";
import { Section } from "./Section";
import { Moment } from "./Time";

/** How far a run is in a batch that takes long, by the run's newest report. */
export function Progress({ progress, tryNumber }: { progress: RunProgress; tryNumber: number | null }) {
  const facts: Fact[] = [
    ["Batch", `number ${formatCount(progress.ordinal)}, after ${counted(progress.batches, "completed batch", "completed batches")}`],
    ["Its begin", progress.batch_started_at === null ? "not known" : <Moment key="begin" at={progress.batch_started_at} />],
    ["Rows read before it", `${counted(progress.rows_in, "row")}, by the completed batches`],
    ["Host and process", progress.driver],
    ...(tryNumber === null ? [] : [["Try", formatCount(tryNumber)] as const]),
    ["Reported", progress.reported_at === null ? "not known" : <Moment key="reported" at={progress.reported_at} />],
  ];
  return (
    <Section title="The batch that is running">
      <Facts facts={facts} />
    </Section>
  );
}
