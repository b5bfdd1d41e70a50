"""Base classes of user functions, and the contexts that their methods receive."""
