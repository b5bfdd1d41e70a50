"""The commands that run a job, and the progress that they report."""
