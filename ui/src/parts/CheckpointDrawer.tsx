import { Box, Button, Flex, Heading, Stack } from "@chakra-ui/react";
import { useEffect, useId, useRef } from "react";
import { useSearchParams } from "react-router-dom";
import type { JobState } from "../api";
import { CheckpointDetails } from "./CheckpointDetails";
import { SHOWN_POINT } from "./links";

/** The details of the checkpoint that the address names, in a dialog next to the present page. */
export function CheckpointDrawer({ address, base, job }: { address: string; base: string; job: JobState | null }) {
  const [query, setQuery] = useSearchParams();
  const shown = query.get(SHOWN_POINT);
  if (shown === null || !/^\d+$/.test(shown)) return null;
  const close = () => {
    setQuery((before) => {
      const after = new URLSearchParams(before);
      after.delete(SHOWN_POINT);
      return after;
    });
  };
  return <Drawer address={address} base={base} job={job} id={Number(shown)} close={close} />;
}

interface Props {
  address: string;
  base: string;
  job: JobState | null;
  id: number;
  close: () => void;
}

function Drawer({ address, base, job, id, close }: Props) {
  const dialog = useRef<HTMLDialogElement>(null);
  const title = useId();
  useEffect(() => {
    // A modal dialog keeps the focus, and gives it back when it closes.
    if (dialog.current?.open === false) dialog.current.showModal();
  }, []);
  return (
    <Box asChild position="fixed" inset="0 0 0 auto" height="100dvh" maxHeight="100dvh" width="min(760px, 100vw)" maxWidth="100vw" margin={0} marginStart="auto" padding={0} bg="bg" color="fg" borderStartWidth="1px" boxShadow="lg" overflowY="auto" css={{ "&::backdrop": { background: "rgba(0, 0, 0, 0.4)" } }}>
      <dialog
        ref={dialog}
        aria-labelledby={title}
        onClose={close}
        onClick={(event) => {
          // The backdrop is the dialog itself; its content has elements of its own.
          if (event.target === event.currentTarget) event.currentTarget.close();
        }}
      >
        <Stack gap={5} p={{ base: 3, md: 5 }} minHeight="100%">
          <Flex align="center" justify="space-between" gap={3}>
            <Heading as="h2" id={title} size="lg">
              Checkpoint {id}
            </Heading>
            <Button
              size="sm"
              variant="outline"
              onClick={() => {
                dialog.current?.close();
              }}
            >
              Close
            </Button>
          </Flex>
          <CheckpointDetails key={id} address={address} base={base} job={job} id={id} />
        </Stack>
      </dialog>
    </Box>
  );
}
