"""HTTP to servers that are not trusted: connections with limits, and bounded reading of answers."""
