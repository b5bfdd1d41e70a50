import { Box, Table } from "@chakra-ui/react";
import type { ReactNode } from "react";

/** A table that scrolls sideways where the window is narrower, also with the keyboard. */
export function ScrollingTable({ label, children }: { label: string; children: ReactNode }) {
  return (
    <Box overflowX="auto" tabIndex={0} role="region" aria-label={label} borderWidth="1px" borderRadius="md">
      <Table.Root size="sm">{children}</Table.Root>
    </Box>
  );
}
