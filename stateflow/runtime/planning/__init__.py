"""Physical planning: from the graph of a job to operator chains, and their explanation."""
