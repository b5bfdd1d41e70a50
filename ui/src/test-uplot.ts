// Takes the place of uPlot in tests: jsdom has no canvas to draw on.
import type uPlot from "uplot";

export class FakePlot {
  static readonly made: FakePlot[] = [];
  static readonly paths = { bars: () => () => null };
  isDestroyed = false;
  cursor = { idx: null as number | null };
  select = { left: 0, top: 0, width: 0, height: 0 };
  readonly scales: Record<string, { min: number; max: number }> = {};

  constructor(
    readonly options: uPlot.Options,
    public data: uPlot.AlignedData,
  ) {
    FakePlot.made.push(this);
  }

  setData(data: uPlot.AlignedData): void {
    this.data = data;
  }

  setScale(name: string, limits: { min: number; max: number }): void {
    this.scales[name] = limits;
  }

  setSelect(select: FakePlot["select"]): void {
    this.select = select;
  }

  setSize(): void {
    // Nothing is drawn.
  }

  redraw(): void {
    // Nothing is drawn.
  }

  batch(change: () => void): void {
    change();
  }

  /** One pixel for each place. */
  posToVal(position: number): number {
    return position;
  }

  destroy(): void {
    this.isDestroyed = true;
  }
}
