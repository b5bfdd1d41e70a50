import { Box, Button, Flex } from "@chakra-ui/react";
import { useState } from "react";

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

/** Copies a text to the clipboard, and says so. */
export function CopyButton({ text, what }: { text: string; what: string }) {
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
  return (
    <Button size="xs" variant="outline" aria-label={`Copy the ${what}`} onClick={() => void copy()}>
      <span role="status">{outcome ?? "Copy"}</span>
    </Button>
  );
}
