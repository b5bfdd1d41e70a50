// What compiled JSX calls: React's functions, with the hidden characters of each text of the page made visible. So no
// page can forget it for the name of a job, an operator or a savepoint.
import * as React from "react/jsx-runtime";
import { visible } from "../format";

export type { JSX } from "react/jsx-runtime";
export const Fragment = React.Fragment;

/** Attributes that a person sees or hears. What a field or an address has, such as `value`, stays as it is. */
const TEXTS = ["children", "title", "aria-label", "aria-valuetext", "alt", "placeholder"] as const;

function shown(value: unknown): unknown {
  if (typeof value === "string") return visible(value);
  if (!Array.isArray(value)) return value;
  const texts: unknown[] = value.map(shown);
  return texts.some((each, at) => each !== value[at]) ? texts : (value as unknown);
}

function withTexts<P extends object>(props: P): P {
  let found = props;
  for (const name of TEXTS) {
    const value = (props as Record<string, unknown>)[name];
    const text = shown(value);
    if (text !== value) found = { ...found, [name]: text };
  }
  return found;
}

export const jsx: typeof React.jsx = (type, props, key) => React.jsx(type, withTexts(props as object), key);
export const jsxs: typeof React.jsxs = (type, props, key) => React.jsxs(type, withTexts(props as object), key);
