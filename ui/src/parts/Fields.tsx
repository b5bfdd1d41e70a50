import { Box, Input, NativeSelect, Stack, Text, Textarea } from "@chakra-ui/react";
import { useId } from "react";
import { formatCount } from "../format";

interface FieldProps {
  label: string;
  value: string;
  onChange: (value: string) => void;
  /** What the reader should know before they enter something. */
  help?: string;
}

/** A field for a line, or for several. */
export function TextField({ label, value, onChange, help, isLong = false, required = false }: FieldProps & { isLong?: boolean; required?: boolean }) {
  const id = useId();
  const shared = { id, value, required, "aria-describedby": help === undefined ? undefined : `${id}-help` };
  return (
    <Stack gap={1} minW={0}>
      <Label id={id} text={label} />
      {isLong ? (
        <Textarea
          {...shared}
          rows={3}
          onChange={(event) => {
            onChange(event.target.value);
          }}
        />
      ) : (
        <Input
          {...shared}
          onChange={(event) => {
            onChange(event.target.value);
          }}
        />
      )}
      <Help id={id} text={help} />
    </Stack>
  );
}

/** A choice of one of a few values. */
export function SelectField<T extends string>({ label, value, onChange, help, choices }: Omit<FieldProps, "onChange" | "value"> & { value: T; onChange: (value: T) => void; choices: readonly (readonly [T, string])[] }) {
  const id = useId();
  return (
    <Stack gap={1} minW={0}>
      <Label id={id} text={label} />
      <NativeSelect.Root>
        <NativeSelect.Field
          id={id}
          value={value}
          aria-describedby={help === undefined ? undefined : `${id}-help`}
          onChange={(event) => {
            onChange(event.target.value as T);
          }}
        >
          {choices.map(([each, text]) => (
            <option key={each} value={each}>
              {text}
            </option>
          ))}
        </NativeSelect.Field>
        <NativeSelect.Indicator />
      </NativeSelect.Root>
      <Help id={id} text={help} />
    </Stack>
  );
}

/** A field for a date and a time, in the zone in which the pages show times. */
export function MomentField({ label, value, onChange, help }: FieldProps) {
  const id = useId();
  return (
    <Stack gap={1} minW={0}>
      <Label id={id} text={label} />
      <Input
        id={id}
        type="datetime-local"
        step={1}
        value={value}
        aria-describedby={help === undefined ? undefined : `${id}-help`}
        onChange={(event) => {
          onChange(event.target.value);
        }}
      />
      <Help id={id} text={help} />
    </Stack>
  );
}

/** A choice of a number between two others. */
export function RangeField({ label, value, least, most, onChange, help }: { label: string; value: number; least: number; most: number; onChange: (value: number) => void; help?: string }) {
  const id = useId();
  return (
    <Stack gap={1} minW={0}>
      <Label id={id} text={`${label}: ${formatCount(value)}`} />
      <input
        id={id}
        type="range"
        min={least}
        max={most}
        step={1}
        value={value}
        aria-describedby={help === undefined ? undefined : `${id}-help`}
        onChange={(event) => {
          onChange(event.target.valueAsNumber);
        }}
      />
      <Help id={id} text={help} />
    </Stack>
  );
}

/** A choice of yes or no. */
export function CheckField({ label, value, onChange }: { label: string; value: boolean; onChange: (value: boolean) => void }) {
  return (
    <Box as="label" display="flex" gap={2} alignItems="baseline" overflowWrap="anywhere">
      <input
        type="checkbox"
        checked={value}
        onChange={(event) => {
          onChange(event.target.checked);
        }}
      />
      {/* Chakra gives each element a value of its own, with which a long name makes the page wider. */}
      <span style={{ overflowWrap: "inherit" }}>{label}</span>
    </Box>
  );
}

/** A choice of any of several names. */
export function CheckGroup({ label, names, chosen, onChange }: { label: string; names: readonly string[]; chosen: readonly string[]; onChange: (chosen: readonly string[]) => void }) {
  if (names.length === 0) return null;
  return (
    <fieldset>
      <Text as="legend" fontWeight="medium" mb={1}>
        {label}
      </Text>
      <Stack gap={1}>
        {names.map((name) => (
          <CheckField
            key={name}
            label={name}
            value={chosen.includes(name)}
            onChange={(isChosen) => {
              onChange(isChosen ? [...chosen, name] : chosen.filter((each) => each !== name));
            }}
          />
        ))}
      </Stack>
    </fieldset>
  );
}

function Label({ id, text }: { id: string; text: string }) {
  return (
    <Text asChild fontWeight="medium" overflowWrap="anywhere">
      <label htmlFor={id}>{text}</label>
    </Text>
  );
}

function Help({ id, text }: { id: string; text: string | undefined }) {
  if (text === undefined) return null;
  return (
    <Text id={`${id}-help`} fontSize="sm" color="fg.muted">
      {text}
    </Text>
  );
}
