import { cleanup } from "@testing-library/react";
import { afterEach, vi } from "vitest";
import { FakePlot } from "./test-uplot";

afterEach(() => {
  cleanup();
  localStorage.clear();
});

// jsdom has no canvas; axe looks whether a text is an icon of a font.
HTMLCanvasElement.prototype.getContext = () => null;

vi.mock("uplot", () => ({ default: FakePlot }));

// jsdom has no layout, and does not show dialogs.
Element.prototype.scrollIntoView = () => undefined;
Object.assign(globalThis, {
  IntersectionObserver: class {
    observe(): void {
      // No element is in the window.
    }
    disconnect(): void {
      // Nothing is observed.
    }
  },
  ResizeObserver: class {
    observe(): void {
      // No element has a size.
    }
    disconnect(): void {
      // Nothing is observed.
    }
  },
});
HTMLDialogElement.prototype.showModal = function showModal() {
  this.open = true;
};
HTMLDialogElement.prototype.close = function close() {
  this.open = false;
  this.dispatchEvent(new Event("close"));
};
