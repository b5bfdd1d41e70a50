// What compiled JSX calls, of Airflow's page.
import type * as RuntimeTypes from "react/jsx-runtime";

const runtime = (globalThis as unknown as { ReactJSXRuntime: typeof RuntimeTypes }).ReactJSXRuntime;
export const { Fragment, jsx, jsxs } = runtime;
