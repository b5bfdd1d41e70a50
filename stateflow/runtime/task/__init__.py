"""Execution of one task: a chain of operators over its share of a batch, in a Spark worker or in this process.

task: runs a task; reads its input in phases, and opens the operator of its chain
input_reader: rows by key and time, as operators read them
keyed_operator: calls a keyed function row by row, and its timers
vector_operator: calls a vectorized function, or a join of two inputs, with all rows of a key or window
operator_runtime: context, state and errors of an operator's function
stateless_functions: functions without keyed state
outputs: the rows and barriers that a task emits
store_cache: the state of a subtask, and the stores that a worker keeps open
operator_state: operator state, and its parts after a rescale
row_conversion: between Arrow columns and objects of row classes
dead_letters: rows whose function failed and records that a source rejected, and their budget
"""
