import { Link as ChakraLink } from "@chakra-ui/react";
import { Link } from "react-router-dom";
import { Notice } from "../parts/Loaded";

/** Shown where the address names no page. */
export function UnknownAddress({ base }: { base: string }) {
  return (
    <Notice status="error" title="There is no page at this address">
      <ChakraLink asChild textDecoration="underline">
        <Link to={base || "/"}>Go to the first page</Link>
      </ChakraLink>
    </Notice>
  );
}
