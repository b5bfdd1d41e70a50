/** Keeps an element and all within it from moving or fading where the reader wants less motion: Chakra's buttons fade. */
export const STILL = { "@media (prefers-reduced-motion: reduce)": { "&, & *": { animation: "none", transition: "none" } } } as const;
