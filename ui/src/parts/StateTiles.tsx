import { Box, Flex, SimpleGrid, Text } from "@chakra-ui/react";
import type { ReactNode } from "react";
import type { JobState, OperatorStatus } from "../api";
import { counted, formatBytes, formatDuration, offsetText, sizeOf, sizesName, stateText } from "../format";
import { DurationBar } from "../pictures/DurationBar";
import { TrendLine } from "../pictures/TrendLine";
import { LastSavepoint } from "./LastSavepoint";
import { CheckpointLink } from "./links";
import { People } from "./People";
import { SavepointRecord } from "./SavepointRecord";
import { Waiting } from "./Waiting";

/** The newest checkpoint, the state, the input that waits, and the last savepoint of a job, side by side. */
export function StateTiles({ job, base }: { job: JobState; base: string }) {
  return (
    <SimpleGrid columns={{ base: 1, sm: 2, xl: 4 }} gap={4}>
      <NewestTile job={job} />
      <Tile title="State">
        {stateText(job)}
        <div>
          <TrendLine sizes={job.state_sizes.map(sizeOf)} />
        </div>
        {job.state_sizes.length > 1 && <Remark>The line has the {sizesName(job.state_sizes)}.</Remark>}
        {job.live_bytes !== null && job.full_bytes !== null && <Remark>{formatBytes(job.full_bytes)} in files, which also have overwritten and deleted entries</Remark>}
        <Shares operators={job.operators} />
      </Tile>
      <Tile title="Input waiting">
        <Waiting backlog={job.backlog} unknown={job.backlog_unknown} />
        {job.backlog_unknown !== null && <Remark>{job.backlog_unknown}</Remark>}
        {job.sources.slice(0, MOST_IN_TILE).map(({ uid, offset }) => (
          <Remark key={uid}>
            {uid} is at <code>{offsetText(offset)}</code>
          </Remark>
        ))}
        <More count={job.sources.length} what="source" />
      </Tile>
      <SavepointTile job={job} base={base} />
    </SimpleGrid>
  );
}

function Tile({ title, children }: { title: string; children: ReactNode }) {
  return (
    <Box as="section" aria-label={title} borderWidth="1px" borderRadius="md" p={4} minW={0}>
      <Text color="fg.muted" fontSize="sm">
        {title}
      </Text>
      <Box fontSize="lg" overflowWrap="anywhere">
        {children}
      </Box>
    </Box>
  );
}

function Remark({ children }: { children: ReactNode }) {
  return (
    <Text fontSize="sm" color="fg.muted">
      {children}
    </Text>
  );
}

/** As many names fit into a tile; the tables below it have all. */
const MOST_IN_TILE = 4;

function More({ count, what }: { count: number; what: string }) {
  const more = count - MOST_IN_TILE;
  return more > 0 && <Remark>{counted(more, `more ${what}`)}</Remark>;
}

function NewestTile({ job: { newest, checkpoint_id: id } }: { job: JobState }) {
  return (
    <Tile title="Newest checkpoint">
      {id === null ? "none" : <CheckpointLink id={id} />}
      {newest !== null && (
        <>
          <Remark>
            {counted(newest.rows_in, "row")} in {formatDuration(newest.duration_ms)}
          </Remark>
          <DurationBar entry={newest} />
        </>
      )}
    </Tile>
  );
}

/** The largest states as bars. */
function Shares({ operators }: { operators: readonly OperatorStatus[] }) {
  const sizes = operators.map(({ uid, live_bytes, size_bytes }) => ({ uid, bytes: sizeOf({ live_bytes, full_bytes: size_bytes }) }));
  const largest = sizes.sort((a, b) => b.bytes - a.bytes);
  const most = largest[0]?.bytes ?? 0;
  return (
    <>
      {largest.slice(0, MOST_IN_TILE).map(({ uid, bytes }) => (
        <Flex key={uid} align="center" gap={2} fontSize="xs" color="fg.muted">
          <Text width="6rem" flexShrink={0} truncate title={uid}>
            {uid}
          </Text>
          <Box flex="1" height="8px" bg="bg.muted" borderRadius="sm" aria-hidden="true">
            <Box height="full" borderRadius="sm" bg="blue.solid" width={`${most === 0 ? 0 : (100 * bytes) / most}%`} />
          </Box>
          <Text whiteSpace="nowrap">{formatBytes(bytes)}</Text>
        </Flex>
      ))}
      <More count={operators.length} what="operator" />
    </>
  );
}

function SavepointTile({ job, base }: { job: JobState; base: string }) {
  const { savepoint } = job;
  return (
    <Tile title="Last savepoint">
      <LastSavepoint job={job} base={base} />
      {savepoint?.size_bytes != null && <Remark>{formatBytes(savepoint.size_bytes)}</Remark>}
      {savepoint?.by != null && (
        <Remark>
          <People by={savepoint.by} requestedBy={savepoint.requested_by} />
        </Remark>
      )}
      {savepoint !== null && (
        <Box fontSize="sm">
          <SavepointRecord integrity={job.savepoint_integrity} />
        </Box>
      )}
    </Tile>
  );
}
