// The list of all jobs, whatever the number of its pages.
import { type JobList, type JobRow, type Resource, usePagesOf } from "./api";

/** The jobs that the reader may see, as far as they were read. */
export interface AllJobs {
  jobs: readonly JobRow[];
  searches: JobList["searches"];
  /** Whether there are no others. */
  isWhole: boolean;
}

/** Keeps the jobs of all pages of the list current. */
export function useJobs(everyMs?: number): Resource<AllJobs> {
  const resource = usePagesOf<JobList>("jobs", { everyMs });
  if (resource.value === null) return { ...resource, value: null };
  const { pages, isWhole } = resource.value;
  return { ...resource, value: { jobs: pages.flatMap((page) => page.jobs), searches: pages[0].searches, isWhole } };
}

/** Whether there is no job root at the address of a row: an address that is wrong, or a job that has never run. */
export function isMissing({ job, problem }: Pick<JobRow, "job" | "problem">): boolean {
  return job === null && problem?.code === "unknown-job";
}
