"""Running a job: planning, the driver, tasks, restores, and the two executors."""
