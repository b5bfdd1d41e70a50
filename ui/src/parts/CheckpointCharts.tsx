import { Button, Flex, Heading, SimpleGrid, Stack, Text } from "@chakra-ui/react";
import { useMemo, useState } from "react";
import type { CheckpointSummary, Resource, TimelinePage } from "../api";
import { formatBytes, formatCount, formatDuration, sizeOf, sizesName } from "../format";
import { type HistoryPart, useHistoryPart } from "../history";
import { type Range, SeriesChart, type SeriesData } from "../pictures/SeriesChart";
import { HistoryButtons } from "./HistoryButtons";
import { headOf } from "./LongText";

const CHARTS = [
  ["State", sizeOf, formatBytes],
  ["Rows read", (point: CheckpointSummary) => point.rows_in, formatCount],
  ["Duration", (point: CheckpointSummary) => point.duration_ms, formatDuration],
] as const;

/** As many checkpoints are shown at first; the buttons show the others. */
const AT_FIRST = 100;
const FEWEST = 10;

/** Sizes, rows and durations of a job's checkpoints, by checkpoint. All charts show the same part, at first of the newest ones. */
export function CheckpointCharts({ address, newest }: { address: string; newest: Resource<TimelinePage> }) {
  const part = useHistoryPart(address, newest);
  // Until another part is read, the last one stays.
  const page = part.resource.value ?? newest.value;
  const points = useMemo(() => (page?.checkpoints ?? []).filter((each) => each.checkpoint_id !== null), [page]);
  if (points.length < 2 && part.showNewer === null) return null;
  return <Charts points={points} part={part} />;
}

/** A part of a list of a length, as near to a first place as the list allows. */
function partAt(first: number, length: number, last: number): Range {
  const begin = Math.max(0, Math.min(first, last + 1 - length));
  return [begin, begin + length - 1];
}

/** A part of a list moved by some places, without leaving the list. */
export function moved([from, to]: Range, by: number, last: number): Range {
  return partAt(from + by, to - from + 1, last);
}

/** A part of a list around the same middle: with a factor of 2, twice as long. */
export function zoomed([from, to]: Range, factor: number, last: number): Range {
  const length = Math.min(last + 1, Math.max(FEWEST, Math.round((to - from + 1) * factor)));
  return partAt(Math.round((from + to + 1 - length) / 2), length, last);
}

function Charts({ points, part }: { points: readonly CheckpointSummary[]; part: HistoryPart }) {
  const { problem } = part.resource;
  const last = points.length - 1;
  const [hovered, setHovered] = useState<number | null>(null);
  const [range, setRange] = useRange(points);
  const data = useMemo(() => CHARTS.map(([, value]): SeriesData => ({ ids: points.map((each) => each.checkpoint_id ?? 0), values: points.map(value), undone: points.map((each) => each.undone === true) })), [points]);
  const step = Math.max(1, Math.round((range[1] - range[0]) / 2));
  const isAll = range[0] === 0 && range[1] === last;
  return (
    <Stack as="section" gap={3} aria-label="Charts of the checkpoints">
      <Heading as="h2" size="md">
        Checkpoints
      </Heading>
      <Flex gap={2} wrap="wrap" align="center">
        <Change label="Zoom in" isPossible={range[1] - range[0] + 1 > FEWEST} to={zoomed(range, 0.5, last)} onChange={setRange} />
        <Change label="Zoom out" isPossible={!isAll} to={zoomed(range, 2, last)} onChange={setRange} />
        <Change label="Earlier" isPossible={range[0] > 0} to={moved(range, -step, last)} onChange={setRange} />
        <Change label="Later" isPossible={range[1] < last} to={moved(range, step, last)} onChange={setRange} />
        <Change label="All" isPossible={!isAll} to={[0, last]} onChange={setRange} />
        <HistoryButtons part={part} size="xs" />
        <Text fontSize="sm" color="fg.muted" role="status">
          checkpoints {points[range[0]]?.checkpoint_id} to {points[range[1]]?.checkpoint_id}; grey ones are undone
          {problem !== null && `. Others cannot be read now: ${headOf(problem.message)}`}
        </Text>
      </Flex>
      <SimpleGrid columns={{ base: 1, lg: 3 }} gap={4}>
        {CHARTS.map(([title, value, format], index) => {
          const series = data[index];
          const note = value === sizeOf ? sizesName(points.slice(range[0], range[1] + 1)) : "";
          return series === undefined ? null : <SeriesChart key={title} title={title} note={note} data={series} format={format} range={range} onRange={setRange} hovered={hovered} onHover={setHovered} />;
        })}
      </SimpleGrid>
    </Stack>
  );
}

/** The part that is shown. It has the same checkpoints when the list gets older or newer ones; at first, the newest ones. */
function useRange(points: readonly CheckpointSummary[]): [Range, (range: Range) => void] {
  const [chosen, setChosen] = useState<readonly [number, number] | null>(null);
  const range = useMemo((): Range => {
    const last = points.length - 1;
    const [from, to] = (chosen ?? []).map((id) => points.findIndex((each) => each.checkpoint_id === id));
    const isKnown = from !== undefined && to !== undefined && from >= 0 && to >= 0;
    return isKnown ? [from, to] : [Math.max(0, points.length - AT_FIRST), last];
  }, [chosen, points]);
  const choose = ([from, to]: Range) => {
    setChosen([points[from]?.checkpoint_id ?? 0, points[to]?.checkpoint_id ?? 0]);
  };
  return [range, choose];
}

function Change({ label, isPossible, to, onChange }: { label: string; isPossible: boolean; to: Range; onChange: (range: Range) => void }) {
  return (
    <Button
      size="xs"
      variant="outline"
      disabled={!isPossible}
      onClick={() => {
        onChange(to);
      }}
    >
      {label}
    </Button>
  );
}
