"""Restore targets, restore plans, and the assignment of state to operators and subtasks.

- `targets`: resolves targets such as ``latest`` or ``before:flights=7``.
- `plan_document`: the plan that a user reviews.
- `graph_map`: maps operators, states and sources of a target to those of a changed job.
- `state_assignment`: assigns state to operators, and redistributes it among subtasks.
- `source_positions`: positions of the sources in a checkpoint of another version of the job.
"""
