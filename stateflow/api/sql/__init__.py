"""SQL statements over streams: text, plan, and the calls of the API that a plan describes."""
