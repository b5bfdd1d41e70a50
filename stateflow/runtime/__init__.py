"""Running a job: planning, the driver, tasks, restores, and the two executors.

job, job_loader: a job that is ready to run; loads the user's file and modules
preflight, idle: all checks of a start; decides whether a start has nothing to do
planning: operator chains of a graph, routes of rows, declared states, `stateflow explain`
driver: claims and restores the job, runs batches, makes checkpoints, answers requests
executor, local_run, spark: the interface of executors and what they receive, and its two implementations
task: a task, with its operators and stores
restore: plans and executes a restore, and creates a job root from a savepoint
publisher: publishes pending output of sinks
watermarks, restart_strategy: pure rules from batch to batch, and after a failure
user_code: names the line, operator, key and row of errors in user code
"""
