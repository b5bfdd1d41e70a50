import { formatBytes } from "../format";

const WIDTH = 96;
const HEIGHT = 24;

/** The sizes of a state at its newest checkpoints, oldest first, as a small line. */
export function TrendLine({ sizes }: { sizes: readonly number[] }) {
  const [first, last] = [sizes[0], sizes.at(-1)];
  if (first === undefined || last === undefined || sizes.length < 2) return null;
  const [least, most] = [Math.min(...sizes), Math.max(...sizes)];
  const range = most - least || 1;
  const place = (size: number, index: number) => {
    const x = 2 + (index * (WIDTH - 4)) / (sizes.length - 1);
    const y = most === least ? HEIGHT / 2 : HEIGHT - 3 - ((size - least) * (HEIGHT - 6)) / range;
    return [x, y] as const;
  };
  const [endX, endY] = place(last, sizes.length - 1);
  const text = `from ${formatBytes(first)} to ${formatBytes(last)} over ${sizes.length} checkpoints`;
  return (
    <svg role="img" aria-label={text} width={WIDTH} height={HEIGHT} viewBox={`0 0 ${WIDTH} ${HEIGHT}`}>
      <title>{text}</title>
      <polyline
        points={sizes.map((size, index) => place(size, index).map((at) => at.toFixed(1)).join(",")).join(" ")}
        fill="none"
        stroke="var(--chakra-colors-blue-solid)"
        strokeWidth={1.5}
        strokeLinejoin="round"
      />
      <circle cx={endX} cy={endY} r={2.5} fill="var(--chakra-colors-blue-solid)" />
    </svg>
  );
}
