import { PageLink } from "../parts/links";
import { Notice } from "../parts/Loaded";

/** Shown where the address names no page. */
export function UnknownAddress({ base }: { base: string }) {
  return (
    <Notice status="error" title="There is no page at this address">
      <PageLink to={base || "/"}>Go to the first page</PageLink>
    </Notice>
  );
}
