import { Box, Button, Flex, SimpleGrid, Stack } from "@chakra-ui/react";
import { useState } from "react";
import { type JobFiles, UNKNOWN_FILES } from "../commands";
import { TextField } from "./Fields";

/** A command, with a button that copies it. */
export function Command({ text }: { text: string }) {
  return (
    <Flex align="center" gap={2} bg="bg.muted" borderRadius="md" px={3} py={2}>
      <Box as="code" flex="1" fontFamily="mono" fontSize="sm" overflowWrap="anywhere">
        {text}
      </Box>
      <CopyButton text={text} what="command" />
    </Flex>
  );
}

/** Commands that need the job's files, of which a page knows at most the name of the job file, with fields for them. */
export function CommandsWithFiles({ jobFile, commands }: { jobFile: string | null; commands: (files: JobFiles) => readonly string[] }) {
  const [files, setFiles] = useState({ ...UNKNOWN_FILES, job: jobFile ?? UNKNOWN_FILES.job });
  return (
    <Stack gap={2}>
      <SimpleGrid columns={{ base: 1, md: 2 }} gap={3} maxW="3xl">
        <TextField
          label="Job file"
          value={files.job}
          onChange={(job) => {
            setFiles({ ...files, job });
          }}
          help="Its path where the commands are typed."
        />
        <TextField
          label="Settings file"
          value={files.settings}
          onChange={(settings) => {
            setFiles({ ...files, settings });
          }}
          help="The TOML file with which the job runs, for --config; empty for none. Add --set for each further setting."
        />
      </SimpleGrid>
      {commands(files).map((text, index) => (
        <Command key={index} text={text} />
      ))}
    </Stack>
  );
}

interface CopyProps {
  text: string;
  what: string;
  /** "cell" in a `ScrollingTable`. */
  size?: "cell" | "xs";
}

/** A path or an address, with a button that copies it. */
export function CopiedPath({ text, what, size }: CopyProps) {
  return (
    <>
      <code style={{ overflowWrap: "anywhere" }}>{text}</code> <CopyButton text={text} what={what} size={size} />
    </>
  );
}

/** Copies a text to the clipboard, and says so; in a cell of a `ScrollingTable`, as its style says. */
export function CopyButton({ text, what, size = "xs" }: CopyProps) {
  const [outcome, setOutcome] = useState<string | null>(null);
  const copy = async () => {
    try {
      await navigator.clipboard.writeText(text);
      setOutcome("Copied");
    } catch {
      // Browsers permit it only over HTTPS and on loopback.
      setOutcome("Select and copy it");
    }
  };
  const shared = { "aria-label": `Copy the ${what}`, onClick: () => void copy(), children: <span role="status">{outcome ?? "Copy"}</span> };
  return size === "cell" ? <button type="button" className="button" {...shared} /> : <Button size={size} variant="outline" {...shared} />;
}
