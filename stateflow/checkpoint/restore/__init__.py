"""Restore targets, restore plans, and the assignment of state to subtasks."""
