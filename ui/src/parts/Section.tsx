import { Heading, Stack } from "@chakra-ui/react";
import type { ReactNode } from "react";

/** A part of a page with its heading. */
export function Section({ title, children }: { title: string; children: ReactNode }) {
  return (
    <Stack as="section" gap={2} aria-label={title}>
      <Heading as="h3" size="sm">
        {title}
      </Heading>
      {children}
    </Stack>
  );
}
