import { cleanup } from "@testing-library/react";
import { afterEach } from "vitest";

afterEach(cleanup);

// jsdom has no canvas; axe looks whether a text is an icon of a font.
HTMLCanvasElement.prototype.getContext = () => null;
