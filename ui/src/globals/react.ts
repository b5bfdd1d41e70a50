// React of Airflow's page. A name that a page imports and that is missing here fails the build.
import type * as ReactTypes from "react";

const React = (globalThis as unknown as { React: typeof ReactTypes }).React;
export const { Component, createContext, memo, useCallback, useContext, useEffect, useId, useLayoutEffect, useMemo, useRef, useState, useSyncExternalStore } = React;
