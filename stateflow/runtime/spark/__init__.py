"""The executor on Spark.

streaming_query: a run on Spark; its micro-batches end in checkpoints
batch_input: the input of a micro-batch, and its positions
executor: runs the tasks of a batch in Spark's Python workers
frames, inputs: frames and Python functions of the nodes before the first operator, the rows of sources, and the
    records that they reject
shuffle, sorting: brings rows to their subtasks, and sorts them there
observations: event times and row counts that Spark observes
checkpoint_location: Spark's own checkpoint files, and the files of a batch in the order in which they are read
table_registration: registers the tables of sinks in Spark's catalog
errors: translates Spark's errors
session: starts Spark
"""
