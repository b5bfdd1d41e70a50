// What pictures in SVG share: colours that follow light and dark, and texts.
import type { CSSProperties } from "react";

export const BACKGROUND = "var(--chakra-colors-bg)";
export const TEXT = "var(--chakra-colors-fg)";
export const MUTED = "var(--chakra-colors-fg-muted)";

/** Lines that cross a text leave it readable. */
export const READABLE: CSSProperties = { paintOrder: "stroke", stroke: BACKGROUND, strokeWidth: 4, fontSize: 11 };

/** A text of at most so many letters. */
export function shorten(text: string, most: number): string {
  return text.length <= most ? text : `${text.slice(0, most - 1)}…`;
}
