"""Physical planning: from the graph of a job to operator chains.

physical_plan: operator chains and their levels
routing: which subtask gets a row, and in which order
state_discovery: the states that the functions of a job declare
explain: the text of `stateflow explain`
"""
