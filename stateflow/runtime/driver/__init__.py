"""The driver of a run, which both executors share.

job_run: one run of a job, from its claim to its end, also by a newer run; the entry point
job_restore: brings a claimed job to the state that its first batch starts from
batch_runner: runs the tasks of a batch up to its barrier
checkpointing: makes checkpoints of the barriers, and publishes output
request_server: serves savepoint, checkpoint and stop requests
background: history and garbage collection, whose failures never end a run
termination: bounds and signals that end a run, and its work without input
"""
