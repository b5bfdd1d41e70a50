"""Restores of a job to a checkpoint or savepoint.

planner: plans a restore; changes nothing
plan_execution: checks that a plan still holds, and executes it
context: the checked target of a restore, which planner and execution share
graph_changes: state and positions that the job takes from a savepoint of a changed graph
source_starts: positions that a user chooses for sources
sink_changes: the changes to the sinks' tables
state_import: copies state into a job root, and rewrites it
rewind: undoes published output, and continues an interrupted rewind
new_job_root: creates a job root from a savepoint
"""
