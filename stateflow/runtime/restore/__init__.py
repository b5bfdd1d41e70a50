"""Restores of a job to a checkpoint or savepoint.

planner: checks the target of a restore, and plans it with the change of each sink's table; changes nothing
plan_execution: executes a plan that still holds (`checkpoint.restore.plan_document` compares it); continues a rewind
graph_changes: state and positions that the job takes from a savepoint of a changed graph
state_import: copies state into a job root, and rewrites it
new_job_root: creates a job root from a savepoint
"""
