"""The logical plan of a job, as the streams of `build` declare it."""
