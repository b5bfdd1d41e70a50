import { render, screen } from "@testing-library/react";
import { expect, it } from "vitest";

it("makes hidden characters visible in each text that a person sees or hears, and leaves values and addresses", () => {
  const hidden = "a\u202eb";
  render(
    <section aria-label={hidden} title={hidden}>
      {hidden} of {[hidden, <b key="1">{hidden}</b>]}
      <a href={`#${hidden}`}>{`name ${hidden}`}</a>
      <input aria-label="field" placeholder={hidden} defaultValue={hidden} />
    </section>,
  );
  const found = screen.getByRole("region", { name: "a\\u202eb" });
  expect([found.title, found.textContent]).toEqual(["a\\u202eb", "a\\u202eb of a\\u202eba\\u202ebname a\\u202eb"]);
  const field = screen.getByRole<HTMLInputElement>("textbox", { name: "field" });
  expect([field.placeholder, field.value]).toEqual(["a\\u202eb", hidden]);
  expect(screen.getByRole("link").getAttribute("href")).toBe(`#${hidden}`);
});
