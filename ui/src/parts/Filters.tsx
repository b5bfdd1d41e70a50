import { Box, Button, Flex } from "@chakra-ui/react";
import { useSearchParams } from "react-router-dom";
import { enteredOf, instantOf } from "../format";
import { MomentField, SelectField, TextField } from "./Fields";
import { useDebounced } from "./useDebounced";

/** A filter of a list: its name in the address is the name of the API's parameter. */
export type Filter =
  | { name: string; label: string; type: "choice"; choices: readonly (readonly [string, string])[] }
  | { name: string; label: string; type: "text" | "moment" };

/** A date and time with its seconds needs more room than a word; browsers cut what does not fit. */
const WIDTHS = { moment: { base: "full", sm: "15rem" }, other: { base: "calc(50% - 6px)", sm: "10.5rem" } } as const;

/** The filters that the address has, as the API takes them. */
export function useFilters(filters: readonly Filter[]): URLSearchParams {
  const [query] = useSearchParams();
  const found = new URLSearchParams();
  for (const { name, type } of filters) {
    const given = query.get(name) ?? "";
    const value = type === "moment" ? (instantOf(given) ?? "") : given;
    if (value !== "") found.set(name, value);
  }
  // A text is complete once its reader stops typing.
  const settled = useDebounced(found.toString());
  return new URLSearchParams(settled);
}

/** Fields for the filters of a list. They are in the address, so that a person can send what they see: times in UTC, shown in the zone of the reader. */
export function Filters({ label, filters }: { label: string; filters: readonly Filter[] }) {
  const [query, setQuery] = useSearchParams();
  const change = (name: string, value: string) => {
    setQuery(
      (before) => {
        const after = new URLSearchParams(before);
        if (value === "") after.delete(name);
        else after.set(name, value);
        return after;
      },
      { replace: true },
    );
  };
  const isFiltered = filters.some(({ name }) => query.has(name));
  return (
    <Flex as="section" aria-label={label} gap={3} wrap="wrap" align="end">
      {filters.map((filter) => (
        <Box key={filter.name} width={WIDTHS[filter.type === "moment" ? "moment" : "other"]} minW={0}>
          <FilterField
            filter={filter}
            value={query.get(filter.name) ?? ""}
            onChange={(value) => {
              change(filter.name, value);
            }}
          />
        </Box>
      ))}
      {isFiltered && (
        <Button
          size="sm"
          variant="outline"
          onClick={() => {
            setQuery(
              (before) => {
                const after = new URLSearchParams(before);
                filters.forEach(({ name }) => {
                  after.delete(name);
                });
                return after;
              },
              { replace: true },
            );
          }}
        >
          Remove the filters
        </Button>
      )}
    </Flex>
  );
}

function FilterField({ filter, value, onChange }: { filter: Filter; value: string; onChange: (value: string) => void }) {
  if (filter.type === "choice") {
    // An address can have a value that is not among the choices, such as an old run.
    const isListed = filter.choices.some(([choice]) => choice === value);
    return <SelectField label={filter.label} value={value} choices={isListed ? filter.choices : [...filter.choices, [value, value]]} onChange={onChange} />;
  }
  if (filter.type === "moment") {
    const change = (entered: string) => {
      onChange(instantOf(entered) ?? "");
    };
    // A time without a zone, which a person has written into the address, is one of the reader's zone.
    return <MomentField label={filter.label} value={enteredOf(instantOf(value) ?? "")} onChange={change} />;
  }
  return <TextField label={filter.label} value={value} onChange={onChange} />;
}
