import { Box, Flex, Text } from "@chakra-ui/react";
import { useEffect, useRef } from "react";
import uPlot from "uplot";
import styles from "uplot/dist/uPlot.min.css?inline";

/** Numbers of checkpoints, the oldest first. */
export interface SeriesData {
  /** Names of the checkpoints: their ids. */
  ids: readonly number[];
  values: readonly number[];
  /** Whether a restore has undone the checkpoint. */
  undone: readonly boolean[];
}

/** The first and the last index that are shown. */
export type Range = readonly [number, number];

interface Props {
  title: string;
  /** What the numbers are, if the title does not say it. */
  note: string;
  data: SeriesData;
  /** Writes a number with its unit. */
  format: (value: number) => string;
  range: Range;
  onRange: (range: Range) => void;
  /** The index at which the pointer is, in any of several charts; null for none. */
  hovered: number | null;
  onHover: (index: number | null) => void;
}

const HEIGHT = 130;

/** The colour of a token at this moment: a canvas does not follow when the page becomes dark. */
function colour(token: string): string {
  return getComputedStyle(document.documentElement).getPropertyValue(`--chakra-colors-${token}`).trim() || "gray";
}

/** The columns of the chart: checkpoints of the present state, and those that are undone, as bars of two colours. */
export function columnsOf({ values, undone }: SeriesData): uPlot.AlignedData {
  const pick = (wanted: boolean) => values.map((value, index) => (undone[index] === wanted ? value : null));
  return [values.map((_, index) => index), pick(false), pick(true)];
}

/** A number by checkpoint, in the order of checkpoints. Dragging over the chart shows only that part. */
export function SeriesChart(props: Props) {
  const { title, note, data, format, hovered, range } = props;
  const box = useRef<HTMLDivElement>(null);
  useChart(box, props);
  const at = hovered ?? data.ids.length - 1;
  const shown = data.values.slice(range[0], range[1] + 1);
  const most = shown.reduce((largest, value) => Math.max(largest, value), 0);
  const now = data.values[at];
  return (
    <Box as="figure" borderWidth="1px" borderRadius="md" p={3} minW={0}>
      <style>{styles}</style>
      <Flex as="figcaption" justify="space-between" gap={2} fontSize="sm" wrap="wrap">
        <Text>
          <strong>{title}</strong>
          {note !== "" && ` (${note})`}
        </Text>
        <Text color="fg.muted">
          checkpoint {data.ids[at]}: {now === undefined ? "" : format(now)}
          {data.undone[at] === true && ", undone"}
        </Text>
      </Flex>
      <Box ref={box} role="img" aria-label={`${title} of checkpoints ${data.ids[range[0]] ?? ""} to ${data.ids[range[1]] ?? ""}: at most ${format(most)}`} height={`${HEIGHT}px`} />
    </Box>
  );
}

/** Keeps a chart in an element as wide as the element. */
function useChart(box: React.RefObject<HTMLDivElement | null>, props: Props): void {
  const newest = useRef(props);
  const chart = useRef<uPlot | null>(null);
  useEffect(() => {
    newest.current = props;
  });
  useEffect(() => {
    if (box.current === null) return;
    const made = new uPlot(optionsOf(newest, box.current.clientWidth), columnsOf(newest.current.data), box.current);
    chart.current = made;
    const resized = new ResizeObserver(([entry]) => {
      if (entry !== undefined && entry.contentRect.width > 0) made.setSize({ width: entry.contentRect.width, height: HEIGHT });
    });
    resized.observe(box.current);
    const coloured = new MutationObserver(() => {
      made.redraw(false, true);
    });
    coloured.observe(document.documentElement, { attributes: true, attributeFilter: ["class", "style", "data-theme"] });
    return () => {
      resized.disconnect();
      coloured.disconnect();
      made.destroy();
      chart.current = null;
    };
  }, [box]);
  const { data, range } = props;
  useEffect(() => {
    chart.current?.batch(() => {
      chart.current?.setData(columnsOf(data), false);
      chart.current?.setScale("x", { min: range[0] - 0.6, max: range[1] + 0.6 });
    });
  }, [data, range]);
}

/** The part of the chart between two places, at least one checkpoint. */
export function rangeBetween(from: number, to: number, last: number): Range {
  const first = Math.min(Math.max(0, Math.ceil(Math.min(from, to))), last);
  return [first, Math.min(Math.max(first, Math.floor(Math.max(from, to))), last)];
}

function optionsOf(newest: React.RefObject<Props>, width: number): uPlot.Options {
  const bars = uPlot.paths.bars?.({ size: [0.8, 24] });
  const axis: uPlot.Axis = { stroke: () => colour("fg-muted"), grid: { stroke: () => colour("border"), width: 1 }, ticks: { show: false }, font: "11px sans-serif" };
  const bar = (token: string): uPlot.Series => ({ paths: bars, fill: () => colour(token), stroke: () => colour(token), width: 0, points: { show: false } });
  return {
    width,
    height: HEIGHT,
    legend: { show: false },
    scales: { x: { time: false, range: (_, min, max) => [min, max] }, y: { range: (_, __, max) => [0, max > 0 ? 1.05 * max : 1] } },
    axes: [
      { ...axis, size: 22, incrs: [1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000], values: (_, places) => places.map((at) => String(newest.current.data.ids[at] ?? "")) },
      { ...axis, size: 64, values: (_, values) => values.map((value) => newest.current.format(value)) },
    ],
    series: [{}, bar("blue-solid"), bar("gray-500")],
    cursor: { y: false, points: { show: false }, drag: { x: true, y: false, setScale: false } },
    hooks: {
      setCursor: [
        (chart) => {
          newest.current.onHover(chart.cursor.idx ?? null);
        },
      ],
      setSelect: [
        (chart) => {
          const { left, width: wide } = chart.select;
          if (wide < 4) return;
          newest.current.onRange(rangeBetween(chart.posToVal(left, "x"), chart.posToVal(left + wide, "x"), newest.current.data.ids.length - 1));
          chart.setSelect({ left: 0, top: 0, width: 0, height: 0 }, false);
        },
      ],
    },
  };
}
